"""What is said of one save."""
