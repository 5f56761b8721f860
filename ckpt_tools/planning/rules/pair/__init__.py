"""What is said of two saves."""
