"""Replace a lost or damaged file by another rank's: what proves the substitute, and what contradicts it.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.layouts import layouts_of
from ckpt_tools.layouts.common.saved_by import PLACES
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import frozen, replace
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Load
from ckpt_tools.planning.replicas import Group, Groups

_NAMED = 5
"""Tensors that a message names."""


class Tensors(NamedTuple):
    """What a file says about its tensors. ``signature`` is "" when it has none or cannot be read.

    ``partial`` says why the file holds less than its rank had, so that it is no replica; "" when it holds
    all. ``sizes`` are the parallel sizes of the job that saved it.
    """

    signature: str
    partial: str = ""
    sizes: Mapping[str, int] = MappingProxyType({})


class OwnFile(NamedTuple):
    """A file that a rank itself wrote, in words, and the signature of its tensors."""

    name: str
    signature: str


@frozen
class Evidence:
    """What files tell about replicas; each of these may read them.

    ``tensors`` of a part; ``own_files`` that a rank itself wrote in the place of a part, nearest first;
    ``differences`` are the names of tensors whose bytes differ between two parts, None where nobody asks.
    """

    tensors: Callable[[Part], Tensors]
    own_files: Callable[[int, Part], Iterable[OwnFile]]
    differences: Callable[[Part, Part], Sequence[str]] | None = None


class Substitution(NamedTuple):
    """What a rank loads instead of its own file, None where nothing may be used, and what was found."""

    load: Load | None
    findings: tuple[Finding, ...] = ()


class _Weighed(NamedTuple):
    """What the files say about one substitute: why it must not be used, or what proves it, or neither."""

    objection: str = ""
    proof: str = ""


class Substitutes:
    """Parts in place of those that ranks lack, by what the replica groups and the files say."""

    def __init__(self, groups: Groups, evidence: Evidence) -> None:
        self.topology, self.selection, self.evidence = groups.topology, groups.selection, evidence

    def first(self, rank: int, group: Group, parts: Sequence[Part]) -> Substitution:
        """The first part that nothing contradicts, with its proof; contradicted ones become findings."""
        found = list[Finding]()
        for part in parts:
            weighed = self._weigh(rank, part)
            if weighed.objection:
                found.append(_warning("replica-mismatch", weighed.objection, part))
                continue
            if weighed.proof:
                return Substitution(Load(part, True, f"{group.source}; {weighed.proof}"), tuple(found))
            if self._layout_alone_says_so(part):
                return Substitution(Load(part, True, group.source), tuple(found))
            text = f"{_whose(part)} stands in for rank {rank}; only {group.source} says that they are equal"
            if self.selection.strict:
                found.append(_warning("replica-unproven", text, part))
                continue
            found.append(finding("replica-unproven", text, path=part.path))
            reason = f"{group.source}; nothing in the files proves or contradicts it"
            return Substitution(Load(part, True, reason), tuple(found))
        return Substitution(None, tuple(found))

    def _weigh(self, rank: int, part: Part) -> _Weighed:
        """What the places and the tensors of files say about a part in place of a rank's own."""
        name = part.path.rpartition("/")[2]
        at = self.topology.coordinates(rank) if part.coords else {}
        elsewhere = [f"{axis}={n}" for axis, n in part.coords if at.get(axis, n) != n]
        if elsewhere:
            return _Weighed(
                objection=f"{name} cannot stand in for rank {rank}: it holds {' '.join(elsewhere)}"
            )
        theirs = self.evidence.tensors(part)
        if why := theirs.partial or self._is_of_another_place(rank, part, theirs.sizes):
            return _Weighed(objection=f"{name} cannot stand in for rank {rank}: {why}")
        mine = next((own for own in self.evidence.own_files(rank, part) if own.signature), None)
        if mine is None or not theirs.signature:
            return _Weighed()
        if mine.signature == theirs.signature:
            return _Weighed(proof=f"its tensors have the names, types and shapes of {mine.name}")
        differ = f"its tensors differ from those of {mine.name}"
        return _Weighed(objection=f"{_whose(part)} cannot stand in for rank {rank}: {differ}")

    def _is_of_another_place(self, rank: int, part: Part, sizes: Mapping[str, int]) -> str:
        """Why a file whose job had these parallel sizes is not of the place of a rank; "" where it may be."""
        alike = layouts_of(self.selection).piece_of(part).replicated_over
        at, own = self.topology.coordinates(rank), self.topology.coordinates(part.rank or 0)
        for axis, n in sizes.items():
            known = self.topology.sizes.get(axis, 1) == n
            if axis in PLACES and n > 1 and axis not in alike and not (known and at[axis] == own[axis]):
                return f"it says {axis}={n}, so ranks of another {axis} hold another part of the model"
        return ""

    def _layout_alone_says_so(self, part: Part) -> bool:
        """Whether a part is a replica by its layout's own rules, with no flag or strategy file beside."""
        by_layout = bool(layouts_of(self.selection).piece_of(part).replicated_over)
        return by_layout and not self.selection.replica_groups and not self.topology.strategy

    def compared(self, load: Load, others: Sequence[Part]) -> Substitution:
        """The load with the proof that another good member of its group holds the same, where that is asked.

        Without a load where that one holds others, because then nobody knows which is right.
        """
        if self.evidence.differences is None:
            return Substitution(load)
        part = load.part
        if not others:
            name = part.path.rpartition("/")[2]
            text = f"{name} is the only good member of its group: there is nothing to compare it with"
            if self.selection.strict:
                return Substitution(None, (_warning("replica-unproven", text, part),))
            return Substitution(load, (finding("replica-unproven", text, path=part.path),))
        other = others[0]
        differ = self.evidence.differences(part, other)
        if not differ:
            reason = f"{load.reason}; its tensors are bit for bit those of {_whose_or_name(other)}"
            return Substitution(replace(load, reason=reason))
        names = ", ".join(differ[:_NAMED])
        if len(differ) > _NAMED:
            names += f" and {len(differ) - _NAMED} more"
        both = f"{_whose_or_name(part)} and {_whose_or_name(other)}"
        text = f"{both} should hold the same state, but differ in {names}"
        return Substitution(None, (finding("replica-mismatch", text, path=part.path),))


def _warning(code: str, text: str, part: Part) -> Finding:
    return finding(code, text, path=part.path, severity=Severity.WARNING)


def _whose(part: Part) -> str:
    return f"rank {part.rank}'s file" if part.rank is not None else "the file"


def _whose_or_name(part: Part) -> str:
    return _whose(part) if part.rank is not None else "/".join(part.path.split("/")[-2:])
