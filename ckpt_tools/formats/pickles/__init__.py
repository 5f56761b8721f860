"""Pickles, read without running them, and what the names in them may do."""
