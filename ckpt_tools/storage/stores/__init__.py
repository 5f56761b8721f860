"""Object stores and other file systems with a URL: what lies there is listed once, named as files are, and
read by ranges of one version.
"""
