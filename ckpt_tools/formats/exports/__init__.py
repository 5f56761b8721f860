"""Formats that models are exported to, for those that run them."""
