"""Two checkpoints, or two files: what differs between them."""
