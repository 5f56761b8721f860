"""Small files beside checkpoints: trackers, and keys."""

from __future__ import annotations

from ckpt_tools.codes import finding
from ckpt_tools.errors import UsageError
from ckpt_tools.model import Finding
from ckpt_tools.storage import LocalSource, ShortRead

TRACKER_LIMIT = 4096
"""A tracker holds a number or a word; more than this is garbage and is not read."""
_KEYS = (16, 24, 32)


def read_tracker(path: str, limit: int = TRACKER_LIMIT) -> bytes | Finding:
    """The bytes of a tracker file, or why they cannot be had."""
    try:
        with LocalSource(path) as source:
            if source.size > limit:
                return finding("bad-tracker", f"{source.size} bytes are no tracker", path=path)
            return source.read(0, source.size)
    except (OSError, ShortRead) as e:
        return finding("unreadable", str(e), path=path)


def read_key(path: str) -> bytes:
    """The key in a file: AES takes 16, 24 or 32 bytes; the line end that editors add is not part of it. Raises UsageError, which never shows the key."""
    try:
        with LocalSource(path) as source:
            data = source.read(0, min(source.size, TRACKER_LIMIT))
    except (OSError, ShortRead) as e:
        raise UsageError(
            f"the key file {path!r} cannot be read: {getattr(e, 'strerror', None) or e}", "pass --key-file FILE or set CKPT_KEY_FILE"
        ) from None
    key = data if len(data) in _KEYS else data.rstrip(b"\r\n")
    if len(key) not in _KEYS:
        raise UsageError(
            f"the key file {path!r} holds {len(data)} bytes, a key has 16, 24 or 32", 'write the key alone into it: printf %s "$KEY" > FILE'
        )
    return key
