"""Roots in, checkpoints out: which files are parts of a checkpoint, by their names, and what a checkpoint
lacks.
"""
