"""MessagePack, as flax writes it."""
