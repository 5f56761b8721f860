"""Seals: what ``ckpt seal`` writes."""
