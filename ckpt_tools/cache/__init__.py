"""Verdicts kept between runs, and the locks that let many processes read a file once."""
