"""What is said of ROOT as a whole."""
