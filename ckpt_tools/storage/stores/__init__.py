"""Stores with a URL: listed once, their objects named as files are, and read by ranges of one version."""
