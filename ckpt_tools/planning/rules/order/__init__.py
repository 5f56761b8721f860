"""What is said of which save is the newest."""
