"""Every rule in a file of its own, below the directory of its scope; catalogue.py has all of them."""
