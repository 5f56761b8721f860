"""Old checkpoints removed, those that are worth keeping kept: which (policy), and which never go."""
