"""Formats that models are exported to, for inference programs."""
