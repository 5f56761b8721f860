"""Ranks with the same state, as the framework's own files in a directory say (``--strategy-dir``)."""

from __future__ import annotations

from ckpt_tools.cache.locks import inside
from ckpt_tools.formats.common.format import RankGroups
from ckpt_tools.model.selection import Selection
from ckpt_tools.storage import trust
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.trust import Trust, Untrusted
from ckpt_tools.storage.urls import is_url


def read_groups(selection: Selection, root: str, world_size: int) -> RankGroups:
    """Return groups of ranks that hold the same state, every rank in exactly one, or none if nobody asks.

    Raises UsageError when the files are wrong or do not fit the number of ranks, CannotLook when they
    cannot be read.
    """
    directory = selection.strategy_dir
    if directory is None:
        return ()
    require_trusted(directory, root, selection.trust)
    from ckpt_tools.formats import FORMATS  # imports all of them

    read = next(f.rank_groups for f in FORMATS if f.rank_groups is not None)
    return read(directory, world_size)


def require_trusted(directory: str, root: str, trusted: Trust) -> None:
    """Raises Untrusted where such files lie outside ROOT and others could have written them.

    They say whose files a rank loads. Those in ROOT were written as the checkpoints were.
    """
    if inside(directory, root):
        return
    if is_url(directory):
        raise Untrusted(
            f"--strategy-dir {directory} lies outside {root}, and nothing tells who may write there",
            "copy its files to a directory of your own, and name that",
        )
    try:
        with trust.named("--strategy-dir"):
            trust.check(directory, trusted)
            for entry in entries_of(directory):
                trust.check(entry.path, trusted)
    except OSError:
        return  # read_groups says what cannot be read
