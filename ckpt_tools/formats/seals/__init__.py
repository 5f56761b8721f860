"""Seals: the files that ``ckpt seal`` writes."""
