"""Checkpoints in the quarantine of ``ckpt``: never candidates, but they still count as existing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypedDict

from msgspec import DecodeError, json

from ckpt_tools.findings import finding
from ckpt_tools.model import ranges
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage import ShortRead, opened
from ckpt_tools.storage.listing import Entries, Names, entries_of, walk
from ckpt_tools.storage.retry import ABSENT, lstat

QUARANTINE = "quarantine"
"""The directory in ``.ckpt`` that holds one directory for each time something was put away; in that lies the
file or directory under the path that it had below the root.
"""
REPAIRED = "repaired.json"
"""The file in ``.ckpt`` that lists what was repaired without a witness."""
SCHEMA = "ckpt-tools/repaired/v1"
_SHOWN = 4
_MOST = 16 << 20
"""Bytes of it that are read."""


class Repaired(TypedDict):
    """One file in that list; ``path`` is relative to the root, ``odds`` a probability."""

    path: str
    size: int
    mtime_ns: int
    odds: float


class _Listed(TypedDict):
    files: list[Repaired]


def quarantined(states: Iterable[str], root: str) -> Iterator[Finding]:
    """Yield each time that something was put away and is still there, below these state directories;
    ``unreadable`` where nobody can say whether something is.
    """
    for state in sorted(states):
        quarantine = os.path.join(state, QUARANTINE)
        home = os.path.relpath(os.path.dirname(state), root)
        try:
            for entry in _list_if_there(quarantine):
                if any(origins(entry.path)):  # not where all was taken out again
                    below = [os.path.normpath(os.path.join(home, e.name)) for e in _list_if_there(entry.path)]
                    more = f" and {len(below) - _SHOWN:,} more" if len(below) > _SHOWN else ""
                    names = f"{ranges.names(below[:_SHOWN])}{more}"
                    text = f"what was {names} lies in quarantine: no candidate, not looked at"
                    yield finding("in-quarantine", text, path=entry.path)
        except OSError as e:
            text = f"what lies in quarantine is unknown: {e.strerror}"
            yield finding("unreadable", text, path=e.filename or quarantine, severity=Severity.NOTE)


def repaired(states: Iterable[str]) -> Iterator[Finding]:
    """Yield a warning for each file that was repaired without a witness, and is as it was then. The list may
    be anybody's: the worst that it can do is to warn.
    """
    for state in sorted(states):
        for row in read_repaired(os.path.join(state, REPAIRED)):
            path = os.path.join(os.path.dirname(state), row["path"])
            with suppress(OSError):
                info = lstat(path)
                if (info.st_size, info.st_mtime_ns) == (row["size"], row["mtime_ns"]):
                    text = (
                        f"a flipped bit was repaired by its CRC alone, wrong with odds of {row['odds']:.2g}"
                    )
                    yield finding("repaired-unwitnessed", text, path=path)


def read_repaired(path: str) -> list[Repaired]:
    """Return the rows of such a list; none where it is not there or not what ckpt writes."""
    try:
        with opened(path) as file:
            rows = json.decode(file.read(0, min(file.size, _MOST)), type=_Listed)["files"]
    except (OSError, ShortRead, DecodeError, RecursionError):
        return []
    return [{**row, "path": os.path.normpath(f"/{row['path']}")[1:]} for row in rows]


def origins(put_away: str) -> Iterator[str]:
    """Yield the paths that the files of one quarantine had. Raises OSError."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(put_away)))
    for _, entries in walk(put_away, Names):
        if isinstance(entries, OSError):
            raise entries
        files = (e.path for e in entries if not e.is_dir(follow_symlinks=False))
        yield from (os.path.join(home, os.path.relpath(path, put_away)) for path in files)


def _list_if_there(directory: str) -> Entries:
    """Raises OSError, but not where it is not there."""
    try:
        return entries_of(directory)
    except ABSENT:
        return []
