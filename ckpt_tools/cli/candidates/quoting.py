"""Names of files as words of a shell's line: whatever is in them, nothing runs or steers the terminal."""

from __future__ import annotations

import re

from ckpt_tools.output.words import unsafe

_SPECIAL = re.compile(r"[^\w@%+=:,./-]")


def quoted(word: str, shell: str) -> str:
    r"""``word`` as ``shell`` must be given it: ``a\ b``, ``a$'\x1b'b``. Fish quotes what it inserts, but
    reads names line by line and shows them as they are, so one that would steer the terminal is left out
    ("").
    """
    if shell == "fish":
        return "" if unsafe().search(word) else word
    return unsafe().sub(lambda m: f"$'{_escape(ord(m[0]))}'", _SPECIAL.sub(_marked, word))


def _marked(m: re.Match[str]) -> str:
    return m[0] if unsafe().match(m[0]) else f"\\{m[0]}"


def _escape(point: int) -> str:
    if 0xDC80 <= point <= 0xDCFF:  # a byte that the file system's encoding could not decode
        return f"\\x{point - 0xDC00:02x}"
    return f"\\x{point:02x}" if point < 0x80 else f"\\u{point:04x}"
