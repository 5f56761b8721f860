"""Results -> text: one module per output format, each with a pure ``render``."""
