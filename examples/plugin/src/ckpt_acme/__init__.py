"""What ckpt has to know of the Acme trainer. Each module is one frozen value, found by its entry point."""

CKPT_API = 2
"""The version of ckpt's interface for plug-ins that this was written for."""
