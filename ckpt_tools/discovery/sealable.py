"""The files below a directory that its seal names."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.discovery.file_stat import surely_directory
from ckpt_tools.formats.seals.names import FRAGMENTS, NAME, is_apart
from ckpt_tools.layouts.common.under_way import TEMPORARY
from ckpt_tools.storage.listing import Entries, Names, walk
from ckpt_tools.storage.retry import is_file, is_link


class Sealable(Names):
    """The entries of one directory. Raises OSError."""

    def __init__(self, path: str, entries: Entries) -> None:
        """``files`` are the regular ones, without seals, signatures and what is being written."""
        super().__init__(path, entries)
        named = [e for e in entries if not is_apart(e.name) and not TEMPORARY.search(e.name)]
        of_seal = path.rpartition("/")[2] == FRAGMENTS
        self.files = [] if of_seal else [f"{path}/{e.name}" for e in named if is_file(e)]
        self.has_seal = any(e.name == NAME for e in entries)


def directories(home: str) -> Iterator[tuple[str, Sealable | OSError]]:
    """Yield every directory at and below ``home``, parents first. Links to directories are not followed: what
    lies behind them may be anybody's.
    """
    return walk(home, Sealable, keep=_without_links)


def _without_links(entries: Entries) -> Entries:
    return [e for e in entries if e.name != STATE and not (surely_directory(e) and is_link(e))]
