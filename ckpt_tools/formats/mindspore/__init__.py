"""MindSpore's checkpoints, plain and encrypted, and its strategy files."""
