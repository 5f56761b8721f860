"""Code that layouts share: the value that describes a layout, path templates, and what these read from a
path.
"""
