"""One question about one root: which files are read for it, how deeply, and by which process."""
