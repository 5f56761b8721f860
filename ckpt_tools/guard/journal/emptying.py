"""Everything below a directory removed, by several threads: what has been put into the trash."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial

from ckpt_tools.guard.journal.steps import Tree

_THREADS = 8
"""A file system works on so many removals at once; more wait for its locks."""
_CHUNK = 512
"""Files that a thread removes in one go."""


def emptied(tree: Tree, path: str) -> list[OSError]:
    """Remove all that lies below a directory of a tree, following no link: why what is left could not be
    removed. Nothing is there where ``path`` is not.
    """
    problems = list[OSError]()
    with ExitStack() as files:
        try:
            at, name = files.enter_context(tree.above(path))
            os.stat(name, dir_fd=at, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        pool = files.enter_context(ThreadPoolExecutor(_THREADS))
        listed = os.fwalk(name, topdown=False, onerror=problems.append, dir_fd=at)
        for _, directories, names, fd in listed:
            with suppress(OSError):  # a directory that its writer has closed for writing
                if not os.access(".", os.W_OK | os.X_OK, dir_fd=fd):
                    os.fchmod(fd, 0o700)
            # a thread takes longer to be told than a few files to be removed
            each = pool.map if len(names) > _CHUNK else map
            for failed in each(partial(_unlinked, fd), _chunks(names)):
                problems += failed
            problems += [e for d in directories if (e := _removed(fd, d))]
    return problems


def _chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[at : at + _CHUNK] for at in range(0, len(names), _CHUNK))


def _unlinked(fd: int, names: Sequence[str]) -> list[OSError]:
    out = []
    for name in names:
        try:
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            pass
        except OSError as e:
            out.append(e)
    return out


def _removed(fd: int, name: str) -> OSError | None:
    """An empty directory, or a link to one."""
    try:
        os.rmdir(name, dir_fd=fd)
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        return next(iter(_unlinked(fd, [name])), None)
    except OSError as e:
        return e
    return None
