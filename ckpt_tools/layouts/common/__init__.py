"""What layouts share: the value that a layout is, its templates, and what they say of a path."""
