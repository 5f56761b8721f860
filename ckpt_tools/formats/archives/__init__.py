"""Zip and tar archives."""
