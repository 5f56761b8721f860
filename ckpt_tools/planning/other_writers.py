"""Whether another process writes below ROOT meanwhile, and whether a store's list was whole."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import FileLoad, Rejected
from ckpt_tools.planning.rules.choice import another_writer
from ckpt_tools.planning.rules.tree import could_not_look
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.listing import THREADS, list_entries
from ckpt_tools.storage.retry import refresh, status
from ckpt_tools.storage.urls import is_url

STATS = 256
"""How many files and directory entries, the newest, are asked a second time at most."""
DIRECTORIES = 64
SKEW_NS = 5_000_000_000
"""How far a file server's clock may be ahead; later times do not show a writer."""
_RELISTED = 8
"""How many checkpoints are listed again at most."""


def require_unchanged(planned: Iterable[FileLoad]) -> None:
    """Raise CannotLook if a planned file is not as it was verified, by a stat of each."""
    files = {f.path: f for f in planned}
    failed = refresh(files)
    for path, seen in stat_all(list(files)):
        now, f = failed.get(path, seen), files[path]
        if isinstance(now, OSError):
            raise could_not_look.stop_changed(path, str(now.strerror)) from now
        if now != (f.size, f.mtime_ns) or get_etag(path) != f.etag:
            raise could_not_look.stop_changed(path, "")


def require_whole(root: str, started_ns: int, rejected: Sequence[Rejected], *, chosen: bool) -> None:
    """Raise CannotLook if a file exists that a store's first list lacked and that nobody has written
    meanwhile: without it an older checkpoint is the choice, or a first launch. Saves rejected for missing
    files are listed again; all of ``root`` if none was ``chosen``.
    """
    from ckpt_tools.storage.stores.mounts import find_late

    missing = {"missing-rank", "missing-part"}
    lost = [r.checkpoint.path for r in rejected if not missing.isdisjoint(f.code for f in r.findings)]
    below, earliest = lost[:_RELISTED] if chosen else [root], started_ns - SKEW_NS
    try:
        found = find_late(root, below, lambda ns: earliest <= ns <= time.time_ns() + SKEW_NS)
    except OSError as e:
        raise could_not_look.stop_late(e.filename or root, str(e.strerror)) from e
    if found is not None:
        raise could_not_look.stop_late(found, "")


def get_etag(path: str) -> str:
    """Return the ETag of an object as it was last asked; "" for a file, and if there is none."""
    return get_versions(path)[0]


def get_versions(path: str) -> tuple[str, str]:
    """Return the ETag and the version that an object had when it was judged; "" and "" for a file."""
    if is_url(path):
        from ckpt_tools.storage.stores.mounts import object_of

        with suppress(OSError):  # it is looked at again before anybody is told of it
            return object_of(path).etag, object_of(path).version
    return "", ""


def find_other_writers(
    checkpoints: Sequence[Checkpoint], s: Session, chosen: Checkpoint | None = None
) -> Iterator[Finding]:
    """Yield paths of the run of ``checkpoints``, unfinished ones too, that were written since the session
    began.

    Asks again about the files of the newest checkpoints, temporary files, and the directories that hold them
    or the chosen one: at most ``2 * STATS + DIRECTORIES`` calls while nothing changes.
    """
    last_ns, newest = time.time_ns() + SKEW_NS, _find_newest_files(checkpoints)
    directories = _find_directories(checkpoints, [*(chosen.parts if chosen else ()), *newest], s.root)
    unlisted: dict[str, OSError] = {}
    if is_url(s.root):
        from ckpt_tools.storage.stores.mounts import refresh_objects

        of_files = list({os.path.dirname(p.path): None for p in newest})[:DIRECTORIES]
        unlisted = refresh_objects([*directories, *of_files], are_directories=True)

    def find_young(files: Iterable[tuple[str, int]]) -> list[str]:
        return [path for path, ns in files if s.started_ns <= ns <= last_ns]

    written, unknown = _find_changed(newest)
    written += find_young((p.path, p.mtime_ns) for c in checkpoints for p in c.parts)
    temporary = stat_all(s.found.unfinished[-STATS:])
    written += find_young((path, now[1]) for path, now in temporary if not isinstance(now, OSError))
    for directory in directories:
        try:
            if directory in unlisted:
                raise unlisted[directory]
            if find_young([(directory, status(directory).st_mtime_ns)]):
                written += find_young(_list_files(directory)) or [directory]
        except FileNotFoundError:
            pass  # the run is a prefix of names, or its files have vanished, which was said
        except OSError as e:
            unknown[directory] = str(e.strerror)
    yield from another_writer.describe(s.root, list(dict.fromkeys(written)), unknown)


def _find_changed(files: Sequence[Part]) -> tuple[list[str], dict[str, str]]:
    """Return files whose size or time is no longer as listed, and by path why others cannot be asked."""
    changed, unknown = list[str](), dict[str, str]()
    for (path, now), p in zip(stat_all([p.path for p in files]), files, strict=True):
        if isinstance(now, OSError) and not isinstance(now, FileNotFoundError):
            unknown[path] = str(now.strerror)
        elif now != (p.size, p.mtime_ns):
            changed.append(path)
    return changed, unknown


def _find_newest_files(checkpoints: Sequence[Checkpoint]) -> list[Part]:
    """Return the files of the newest checkpoint by time and by step, those written last first."""
    by_time = sorted(checkpoints, key=lambda c: (c.mtime_ns, c.order), reverse=True)[:1]
    by_step = sorted(checkpoints, key=lambda c: c.order, reverse=True)[:1]
    found = {p.path: p for c in (*by_time, *by_step) for p in c.parts if p.size >= 0}
    return sorted(found.values(), key=lambda p: -p.mtime_ns)[:STATS]


def _find_directories(checkpoints: Sequence[Checkpoint], parts: Sequence[Part], root: str) -> list[str]:
    """Return directories where the run's next file would appear: the run's, and its files' own."""
    bases = [c.parts[0].base for c in checkpoints if c.parts] or [root]
    homes = [at for p in parts for at in (p.home, os.path.dirname(p.path))]
    return [d for d in dict.fromkeys((*bases, *homes)) if d][:DIRECTORIES]


def _list_files(directory: str) -> Iterator[tuple[str, int]]:
    """Yield the last ``STATS`` files of a directory with their modification times. Raises OSError."""
    for e in [e for e in list_entries(directory) if not e.is_dir(follow_symlinks=False)][-STATS:]:
        with suppress(FileNotFoundError):  # going, while we look
            yield e.path, e.stat(follow_symlinks=False).st_mtime_ns


def stat_all(paths: Sequence[str]) -> Iterator[tuple[str, tuple[int, int] | OSError]]:
    """Yield each path with its size and time, or its error. Many are asked at a time: networks are slow."""
    from concurrent.futures import ThreadPoolExecutor

    def stat(path: str) -> tuple[int, int] | OSError:
        try:
            st = status(path)
        except OSError as e:
            return e
        return st.st_size, st.st_mtime_ns

    with ThreadPoolExecutor(THREADS) as pool:
        yield from zip(paths, pool.map(stat, paths), strict=True)
