"""The fields of a line of ``--progress json``."""

FIELDS = ["type", "state", "bytes", "bytes_total", "files", "files_total", "file", "seconds", "rate"]
