"""Object stores and other file systems with a URL: each listed once, its objects named as files are, and read
by ranges of one version.
"""
