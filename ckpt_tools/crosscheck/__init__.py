"""Findings over several files: ranks that disagree, copies, owners, trackers."""
