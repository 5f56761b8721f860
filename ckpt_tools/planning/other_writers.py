"""Whether somebody else writes below ROOT while a decision is made: it may be a process that a killed
launcher left running, or a second job.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from time import perf_counter
from typing import NamedTuple

from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import FileLoad
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import status
from ckpt_tools.storage.urls import is_url
from ckpt_tools.storage.walk import SLOW, THREADS

STATS = 256
"""Files of the newest checkpoints, and entries of a directory, that are asked about a second time, at most:
those written last.
"""
DIRECTORIES = 64
SKEW_NS = 5_000_000_000
"""How far the clock of a file server may be ahead; what lies beyond says that a clock is wrong, and nothing
of a writer.
"""
_NAMED = 8
_TRIED = 7
_CHANGED = "it has changed while ckpt looked"

Seen = tuple[int, int]
"""(size, mtime_ns)"""


def require_unchanged(planned: Iterable[FileLoad]) -> None:
    """Whether what is to be loaded is still what was verified, by a stat of each file.

    Raises CannotLook when it is not.
    """
    files = {f.path: f for f in planned}
    failed = _refresh_objects([path for path in files if is_url(path)])
    for path, seen in stats(list(files)):
        now = failed.get(path, seen)
        if isinstance(now, OSError):
            raise CannotLook(
                f"{path}, which was chosen, cannot be looked at any more: {now.strerror}", _hint(path)
            ) from now
        if now != (files[path].size, files[path].mtime_ns) or etag_of(path) != files[path].etag:
            raise CannotLook(
                f"{path} is in use: it has changed since it was chosen and verified", _hint(path)
            )


def etag_of(path: str) -> str:
    """The ETag of an object as it was asked for last; "" of a file, and where there is none."""
    if not is_url(path):
        return ""
    from ckpt_tools.storage.stores.refresh import object_of

    try:
        return object_of(path).etag
    except OSError:
        return ""


class Inspection(NamedTuple):
    """From when to when ROOT was looked at, in nanoseconds since the epoch; ``temporary`` are files of saves
    that never finished.
    """

    root: str
    started_ns: int
    now_ns: int
    temporary: Sequence[str] = ()

    def young(self, mtime_ns: int) -> bool:
        """Whether something with that time was written meanwhile."""
        return self.started_ns <= mtime_ns <= self.now_ns + SKEW_NS


def other_writers(
    checkpoints: Sequence[Checkpoint], look: Inspection, chosen: Checkpoint | None = None
) -> Iterator[Finding]:
    """What was written during the inspection in the run of ``checkpoints``, unfinished saves among them.

    Asks again about the files of the newest checkpoints, temporary files, and the directories that hold them
    or the chosen one: at most ``2 * STATS + DIRECTORIES`` calls while nothing changes.
    """
    written, unknown = _written(checkpoints, look, chosen)
    yield from (finding("another-writer", why, path=path) for path, why in list(written.items())[:_NAMED])
    if len(written) > _NAMED:
        more = f"{len(written) - _NAMED} more files and directories were written while ckpt looked"
        yield finding("another-writer", more, path=look.root)
    for path, error in list(unknown.items())[:_NAMED]:
        text = f"whether something else writes there is unknown: {error.strerror}"
        yield finding("unreadable", text, path=path)


def _written(
    checkpoints: Sequence[Checkpoint], look: Inspection, chosen: Checkpoint | None
) -> tuple[dict[str, str], dict[str, OSError]]:
    """(what was written: path -> how that shows; what could not be asked about: path -> why)."""
    directories = _directories(checkpoints, chosen, look.root)
    unlisted = _refresh_directories([*directories, *_homes(checkpoints)]) if is_url(look.root) else {}
    young = (p for c in checkpoints for p in c.parts if look.young(p.mtime_ns))
    written = dict(_young(((p.path, p.mtime_ns) for p in young), look))
    temporary = list(stats(look.temporary[-STATS:]))
    written.update(_young(((path, now[1]) for path, now in temporary if not isinstance(now, OSError)), look))
    changed, unknown = _changed(_newest(checkpoints))
    written.update(changed)
    for directory in directories:
        try:
            if directory in unlisted:
                raise unlisted[directory]
            written = {**_entered(directory, look), **written}
        except FileNotFoundError:
            pass  # the run is a prefix of names, or its files have vanished, which was said
        except OSError as e:
            unknown[directory] = e
    return written, unknown


def _changed(front: Sequence[Part]) -> tuple[dict[str, str], dict[str, OSError]]:
    """(files that are not as they were listed: path -> how; those that nobody can ask about: path -> why)."""
    before = {p.path: (p.size, p.mtime_ns) for p in front}
    changed, unknown = dict[str, str](), dict[str, OSError]()
    for path, now in stats(list(before)):
        if isinstance(now, FileNotFoundError):
            changed[path] = "it has vanished while ckpt looked"
        elif isinstance(now, OSError):
            unknown[path] = now
        elif now != before[path]:
            changed[path] = _change(before[path], now)
    return changed, unknown


def _change(before: Seen, now: Seen) -> str:
    if before[0] == now[0]:
        return _CHANGED
    return f"it has changed from {before[0]:,} to {now[0]:,} bytes while ckpt looked"


def _hint(path: str) -> str:
    if is_url(path):
        return "another process writes there: end it, then start again"
    return (
        f"another process writes there ('fuser -v {path}' names one of this machine): "
        "end it, then start again"
    )


def _newest(checkpoints: Sequence[Checkpoint]) -> list[Part]:
    """The files of the newest checkpoint by time and of the one with the highest step, those written last
    first. It is one where the times tell no other: those of stores are whole seconds.
    """
    if not checkpoints:
        return []
    newest = max(checkpoints, key=lambda c: (c.mtime_ns, c.order))
    fronts = [newest, max(checkpoints, key=lambda c: c.order)]
    found = {p.path: p for c in fronts for p in c.parts if p.size >= 0}
    return sorted(found.values(), key=lambda p: -p.mtime_ns)[:STATS]


def _directories(checkpoints: Sequence[Checkpoint], chosen: Checkpoint | None, root: str) -> list[str]:
    """The directories in which the next file of the run would appear: its own, and those of its newest
    checkpoints and of the chosen one.
    """
    bases = [c.parts[0].base for c in checkpoints if c.parts]
    parts = [*(chosen.parts if chosen else ()), *_newest(checkpoints)]
    homes = [directory for p in parts for directory in (p.home, os.path.dirname(p.path))]
    return [d for d in dict.fromkeys(chain(bases or [root], homes)) if d][:DIRECTORIES]


def _homes(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """The directories of the files that are asked about again."""
    return list({os.path.dirname(p.path): None for p in _newest(checkpoints)})[:DIRECTORIES]


def _refresh_objects(urls: Sequence[str]) -> dict[str, OSError]:
    """Ask about objects of a store anew; what could not be asked about, and why."""
    if not urls:
        return {}
    from ckpt_tools.storage.stores.refresh import refresh_objects

    return refresh_objects(urls)


def _refresh_directories(urls: Sequence[str]) -> dict[str, OSError]:
    """List directories of a store anew; those that could not be listed, and why."""
    from ckpt_tools.storage.stores.refresh import refresh_directories

    return refresh_directories(urls)


def _young(files: Iterable[tuple[str, int]], look: Inspection) -> Iterator[tuple[str, str]]:
    for path, mtime_ns in files:
        if look.young(mtime_ns):
            yield path, f"it was written {(mtime_ns - look.started_ns) / 1e9:.1f} s after ckpt began to look"


def _entered(directory: str, look: Inspection) -> dict[str, str]:
    """Entries that appeared in a directory since then; the directory itself where only its own time tells
    that. Raises OSError.
    """
    if not look.young(status(directory).st_mtime_ns):
        return {}
    times = list[tuple[str, int]]()
    for e in [e for e in entries_of(directory) if not e.is_dir(follow_symlinks=False)][-STATS:]:
        with suppress(FileNotFoundError):  # going, while we look
            times.append((e.path, e.stat(follow_symlinks=False).st_mtime_ns))
    return dict(_young(times, look)) or {
        directory: "an entry was added, renamed or removed while ckpt looked"
    }


def stats(paths: Sequence[str]) -> Iterator[tuple[str, Seen | OSError]]:
    """Each path with its size and time, or why it has none: one after the other where the file system answers
    at once, else many at a time.
    """
    started = perf_counter()
    yield from zip(paths, map(_stat, paths[:_TRIED]), strict=False)
    rest = paths[_TRIED:]
    if (perf_counter() - started) / _TRIED < SLOW:
        yield from zip(rest, map(_stat, rest), strict=True)
    elif rest:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(THREADS) as pool:
            yield from zip(rest, pool.map(_stat, rest), strict=True)


def _stat(path: str) -> Seen | OSError:
    try:
        st = status(path)
    except OSError as e:
        return e
    return st.st_size, st.st_mtime_ns
