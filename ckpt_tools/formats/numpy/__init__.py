"""NumPy's own files: one array, arrays one after the other, and archives of them."""
