"""From a root to its checkpoints: which files are parts, by their names, and which files are missing."""
