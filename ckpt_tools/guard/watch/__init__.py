"""Watching runs: each checkpoint is verified once it is finished, and again from time to time."""
