"""Every rule by its id: one file each, below the directory of its scope."""
