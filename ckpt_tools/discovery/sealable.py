"""The files below a directory that its seal names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.discovery.file_stat import surely_directory
from ckpt_tools.formats.seals.names import FRAGMENTS, NAME, is_apart
from ckpt_tools.layouts.common.under_way import TEMPORARY
from ckpt_tools.storage.retry import is_file, is_link
from ckpt_tools.storage.walk import walk


class Sealable:
    """The regular files in one directory, without seals, signatures and what is being written; whether it has
    a seal of its own.
    """

    def __init__(self, path: str, entries: Sequence[os.DirEntry[str]]) -> None:
        apart = path.rpartition("/")[2] == FRAGMENTS
        self.files = [f"{path}/{e.name}" for e in entries if not apart and is_sealable(e)]
        self.has_seal = any(e.name == NAME for e in entries)

    def to_stat(self) -> Iterator[os.DirEntry[str]]:
        """Nothing is asked about."""
        return iter(())


def directories(home: str) -> Iterator[tuple[str, Sealable | OSError]]:
    """Every directory at and below ``home``, parents first. Links to directories are not followed: what lies
    behind them may be anybody's.
    """
    return walk(home, Sealable, keep=_without_links)


def _without_links(entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
    return [e for e in entries if e.name != STATE and not (surely_directory(e) and is_link(e))]


def is_sealable(e: os.DirEntry[str]) -> bool:
    """Whether an entry is a file that a seal would name. Raises OSError."""
    return not is_apart(e.name) and not TEMPORARY.search(e.name) and is_file(e)
