"""Which rank's files hold whose state after a fault. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct

from ckpt_tools.errors import UsageError
from ckpt_tools.settings import fault_file

Groups = tuple[tuple[int, ...], ...]


def in_world(what: str, ranks: Iterable[int], world_size: int | None) -> None:
    """Raises UsageError for ranks that do not exist."""
    beyond = [r for r in ranks if world_size is not None and r >= world_size]
    if beyond:
        raise UsageError(
            f"{what}: rank {min(beyond)} does not exist among {world_size} ranks",
            "ranks count from 0: correct it, or world_size",
        )


def checked(group_info: Iterable[Iterable[int]], world_size: int | None) -> Groups:
    """Groups of ranks with the same state. Raises UsageError when they are none."""
    try:
        groups = tuple(tuple(fault_file.rank(r) for r in group) for group in group_info)
    except (TypeError, ValueError) as e:
        raise UsageError(f"group_info: {e}", "say lists of ranks such as [[0, 2], [1, 3]]") from e
    ranks = [r for group in groups for r in group]
    if not all(groups) or len(set(ranks)) != len(ranks):
        raise UsageError(
            "group_info has an empty group, or a rank twice",
            "each rank belongs to one group: [[0, 2], [1, 3]]",
        )
    in_world("group_info", ranks, world_size)
    return groups


class Replicas(Struct, frozen=True, dict=True):
    """``groups`` of ranks with the same state, of which the first ``writers`` save when training dies (None:
    all).

    ``sharded``: every rank also holds state that no other has, so that each is a group of its own.
    """

    fault_ranks: frozenset[int]
    groups: Groups = ()
    writers: int | None = None
    sharded: bool = False

    @cached_property
    def _group_of(self) -> dict[int, tuple[int, ...]]:
        return {rank: group for group in self.groups for rank in group}

    def group(self, rank: int) -> tuple[int, ...]:
        """The ranks with the state of ``rank``. A rank in no group is alone: nothing says that another holds
        its state.
        """
        return (rank,) if self.sharded else self._group_of.get(rank, (rank,))

    def saving(self, rank: int) -> tuple[int, ...]:
        """Those of them that save when training dies.

        Fixed beforehand: ranks that are dying cannot agree on it, and each may know of other faults.
        """
        return self.group(rank)[: self.writers]

    def place(self, rank: int) -> int | None:
        """The data parallel rank: Megatron-LM counts the ranks of a group upwards. None when the group is not
        known.
        """
        group = self._group_of.get(rank)
        return None if group is None else sorted(group).index(rank)

    def source(self, rank: int, *, periodic: bool = False) -> int | None:
        """The rank whose file ``rank`` loads: itself, else the first live one of its group that saved; None
        when there is none.

        A ``periodic`` checkpoint was saved by every rank before the fault, so that the own file is left when
        all others failed too.
        """
        live = [r for r in (self.group(rank) if periodic else self.saving(rank)) if r not in self.fault_ranks]
        if rank in live or (periodic and not live):
            return rank
        return live[0] if live else None

    @property
    def resumable(self) -> bool:
        """Whether the state of every rank was saved by a live one. A group that lost nobody has saved all of
        its state.
        """
        return all(self.source(rank) is not None for rank in self.fault_ranks)
