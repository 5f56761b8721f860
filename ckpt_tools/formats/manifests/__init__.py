"""Files that say what other files held when they were written: digests, names and sizes."""
