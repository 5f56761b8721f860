"""Roots in, checkpoints out: which files are parts of a checkpoint, by their names, and what it lacks."""
