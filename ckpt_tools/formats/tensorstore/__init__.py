"""What JAX's libraries write through tensorstore: zarr, OCDBT, and the tree of Orbax."""
