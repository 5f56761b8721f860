"""What to say of files that a seal names and that are not there: gone, respelled, or something else in their
place.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

from ckpt_tools.findings import finding
from ckpt_tools.model import ranges
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage.listing import names_of
from ckpt_tools.storage.retry import there

LISTED = 16
"""Files that are said by name."""
_HINT = (
    "a copy or a file system has spelled its name anew (macOS, unzip, rsync --iconv): rename it as it was"
    " sealed, or copy it again with its name as it is"
)


def gone(base: str, names: Sequence[str], stateless: str = "") -> Iterator[Finding]:
    """What to say of files that were sealed below ``base`` and are not there; ``stateless`` is the seal of
    one that holds no state, which sealing anew leaves.
    """
    listed, missing = cache(_listed), partial(finding, "seal-missing")
    if stateless:
        hint = f"bring it back; if it was removed on purpose, remove its seal, {stateless}, as well"
        missing = partial(missing, severity=Severity.WARNING, hint=hint)
    for name in names[:LISTED]:
        why = f"{name[:200]!r} was sealed and is not there"
        if how := _respelled(base, name, listed):
            yield missing(f"{why}; {how}", hint=_HINT)
        else:
            yield missing(why)
    if more := names[LISTED:]:
        others = ranges.names(name[:200] for name in more)
        yield missing(f"{len(more):,} more files were sealed and are not there: {others}")


def in_its_place(base: str, names: Sequence[str]) -> Iterator[Finding]:
    """What to say of sealed files in whose place something else lies: who prunes leaves nothing there."""
    for name in names[:LISTED]:
        try:
            taken = there(f"{base.rstrip('/')}/{name}")
        except OSError:  # who listed the directory says so
            taken = False
        if taken:
            why = f"{name[:200]!r} was sealed, and what lies in its place is no file"
            yield finding("seal-missing", why, severity=Severity.WARNING)


def _listed(directory: str) -> dict[str, str]:
    """The names in a directory by how they sound."""
    try:
        return {_sound(name): name for name in names_of(directory)}
    except OSError:  # who listed the tree has said so
        return {}


def _sound(name: str) -> str:
    """What two spellings of a name have in common: on a disk of macOS or Windows they are one."""
    return unicodedata.normalize("NFC", name).casefold()


def _respelled(base: str, name: str, listed: Callable[[str], dict[str, str]]) -> str:
    """How a name is spelled now, where it differs in nothing else; "" where nothing is called so."""
    found = list[str]()
    for part in name.split("/"):
        now = listed("/".join([base.rstrip("/"), *found])).get(_sound(part))
        if now is None:
            return ""
        found.append(now)
    if "/".join(found) == name:  # something else lies in its place
        return ""
    if unicodedata.normalize("NFC", "/".join(found)) == unicodedata.normalize("NFC", name):
        return "a file is whose name reads the same and is spelled in other bytes (Unicode NFC or NFD)"
    return f"{'/'.join(found)[:200]!r} is, which differs in small and capital letters"
