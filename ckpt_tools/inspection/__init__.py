"""One file in, one report out: what it is, whether it is sound, and at which level that was seen."""
