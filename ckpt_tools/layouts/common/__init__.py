"""Code that layouts share: the value that describes a layout, path templates, and what they read of paths."""
