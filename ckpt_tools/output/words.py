"""Numbers and names -> short texts that are safe on a terminal."""

from __future__ import annotations

import re
from textwrap import wrap

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Control characters, line separators, marks that reorder text and undecodable bytes."""


def printable(text: str) -> str:
    r"""Escape characters that could steer a terminal, as ``\x1b``, and undecodable bytes by their value."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_escape, text)


def _escape(m: re.Match[str]) -> str:
    point = ord(m[0])
    if 0xDC80 <= point <= 0xDCFF:  # a byte that the file system's encoding could not decode
        return f"\\x{point - 0xDC00:02x}"
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"


_COMMANDS = r"'ckpt [^']*'|(?:mkdir(?: -p)?|git lfs pull --include|git annex get) \S+"
_PASTED = rf"{_COMMANDS}|--[a-z][a-z-]* (?:[a-z]+=)?'[^']*'"
"""Commands and flags that a user copies from a message: no line break may stand within."""


def wrap_line(line: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Return lines that fit in ``width``, indented by ``first`` and ``rest``; no word or command is cut."""
    joined = re.sub(_PASTED, lambda m: m[0].replace(" ", "\0"), line)  # printable() leaves no \0
    lines = wrap(
        joined,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [row.replace("\0", " ") for row in lines]


def size(nbytes: float) -> str:
    """Return a size such as ``1.4 GiB``; "?" if negative."""
    if nbytes < 0:
        return "?"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 100 else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} PiB"


def span(seconds: float) -> str:
    """Return ``42 s``, ``3 min``, ``5 h`` or ``9 d``; with the sign, because an age may lie in the future."""
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    for limit, unit, name in ((100, 1, "s"), (100 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{sign}{seconds / unit:.0f} {name}"
    return f"{sign}{seconds / 86400:.0f} d"


def plural(n: int, noun: str) -> str:
    """Return ``1 file``, ``2 files``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def percent(fraction: float) -> str:
    """Return ``98 %``; never rounded up to 100 or down to 0, because users take both literally."""
    if 0 < fraction < 0.01:
        return "<1 %"
    if 0.99 < fraction < 1:
        return ">99 %"
    return f"{fraction * 100:.0f} %"


def speed(nbytes: int, seconds: float) -> str:
    """Return ``4.0 GiB read in 2.0 s (2.0 GiB/s)``; no rate if the time is too short to measure one."""
    rate = f" ({size(nbytes / seconds)}/s)" if nbytes and seconds > 0.05 else ""
    return f"{size(nbytes)} read in {seconds:.1f} s{rate}"
