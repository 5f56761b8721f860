"""What is said beside the save that was chosen."""
