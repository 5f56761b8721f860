"""JSON files that belong to checkpoints."""
