"""The nouns: frozen values that every stage takes and returns. Standard library only, no I/O."""
