"""Manifests: files with the names, sizes and digests of other files."""
