"""From a root to its checkpoints: which files are parts of a checkpoint, by their names, and which files a
checkpoint lacks.
"""
