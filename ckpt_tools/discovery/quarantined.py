"""What ``ckpt`` has put into quarantine: it is no candidate, and exists all the same."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage.listing import Entries, entries_of
from ckpt_tools.storage.retry import ABSENT

QUARANTINE = "quarantine"
"""The directory in ``.ckpt`` that holds one directory for each time something was put away; in that lies the
file or directory under the path that it had below the root.
"""
_SHOWN = 4


def quarantined(states: Iterable[str], root: str) -> Iterator[Finding]:
    """A finding for each time that something was put away and is still there, below these state directories;
    ``unreadable`` where nobody can say whether something is.
    """
    for state in sorted(states):
        quarantine = os.path.join(state, QUARANTINE)
        try:
            for entry in _listed(quarantine):
                if any(origins(entry.path)):  # not where all was taken out again
                    names = [e.name for e in _listed(entry.path)]
                    home = os.path.relpath(os.path.dirname(state), root)
                    yield finding("in-quarantine", _what(home, names), path=entry.path)
        except OSError as e:
            text = f"what lies in quarantine is unknown: {e.strerror}"
            yield finding("unreadable", text, path=e.filename or quarantine, severity=Severity.NOTE)


def origins(put_away: str) -> Iterator[str]:
    """The paths that the files of one quarantine had. Raises OSError."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(put_away)))
    for directory, _, names in os.walk(put_away, onerror=_raised):
        yield from (os.path.join(home, os.path.relpath(os.path.join(directory, n), put_away)) for n in names)


def _raised(error: OSError) -> None:
    raise error


def _what(home: str, names: Sequence[str]) -> str:
    shown = [name if home == "." else os.path.join(home, name) for name in names[:_SHOWN]]
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"what was {', '.join(shown)}{more} lies in quarantine: no candidate, and not looked at"


def _listed(directory: str) -> Entries:
    """Raises OSError, but not where it is not there."""
    try:
        return entries_of(directory)
    except ABSENT:
        return []
