"""Plain text that belongs to checkpoints."""
