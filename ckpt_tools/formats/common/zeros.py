"""Files that hold nothing but the elements of one tensor, all of which may be zero."""

from __future__ import annotations

from ckpt_tools.storage import Source

ZEROS = "zeros"
"""The name, among what is known of a file, of its first and last elements being zero."""
_AT_ONCE = 1 << 20


def all_zero(source: Source) -> bool:
    """Whether no byte of a file is anything else; reads it up to the first that is. Raises OSError."""
    for at in range(0, source.size, _AT_ONCE):
        if bytes(source.read(at, min(_AT_ONCE, source.size - at))).strip(b"\0"):
            return False
    return True
