"""A tree of directories in order, each listed once."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.storage.listing import Entries, EntryFilter, Inspect, T, all_of, below, entries_of, stat
from ckpt_tools.storage.retry import status
from ckpt_tools.storage.threads import Threads
from ckpt_tools.storage.urls import is_url

THREADS = 16
"""Calls under way at a time; what a metadata server sees of one such process."""
_CHUNK = 32
"""Files that one thread asks about in a row."""


def walk(
    root: str, inspect: Inspect[T], threads: int = THREADS, keep: EntryFilter = all_of
) -> Iterator[tuple[str, T | OSError]]:
    """Every directory at and below ``root`` with what ``inspect`` makes of its sorted entries, parents first,
    in the order of names; a directory that cannot be listed comes with its OSError. Of entries that ``keep``
    leaves out nothing is seen.

    Links to directories are followed, each real directory once, so loops end. In a large directory up to
    ``threads`` calls ask for the stats that will be used: on a network each takes a while.
    """
    if is_url(root):
        from ckpt_tools.storage.stores.mounts import list_below

        if (refused := list_below(root)) is not None:
            yield root, refused
            return
        threads = 1  # all of it is in memory now
    seen, stack, pool = set[tuple[int, int]](), [root], Threads(threads)
    try:
        while stack:
            path = stack.pop()
            try:
                st = status(path)
                if (st.st_dev, st.st_ino) in seen:
                    continue
                entries = entries_of(path, keep)
            except OSError as e:
                yield path, e
                continue
            seen.add((st.st_dev, st.st_ino))
            contents = inspect(path, entries)
            asked = list(contents.to_stat()) if threads > 1 and len(entries) > _CHUNK else []
            chunks = [asked[at : at + _CHUNK] for at in range(0, len(asked), _CHUNK)]
            for done in [pool.submit(_stat_all, chunk) for chunk in chunks]:
                done.result()
            yield path, contents
            stack.extend(reversed(below(entries)))
    finally:
        pool.close(wait=False)


def _stat_all(entries: Entries) -> None:
    for entry in entries:
        stat(entry)
