"""One question about one root: which files are read, how deeply, and by whom."""
