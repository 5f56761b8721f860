"""The differences between two checkpoints, or two files."""
