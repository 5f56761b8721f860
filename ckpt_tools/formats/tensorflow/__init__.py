"""TensorFlow's bundles."""
