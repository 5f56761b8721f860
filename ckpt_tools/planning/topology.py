"""How many ranks there are and how they are arranged, with the source of every number."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from ckpt_tools import launchers
from ckpt_tools.crosscheck.writers import placed, rank_order
from ckpt_tools.discovery import completeness
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import BY_NAME, whole
from ckpt_tools.layouts.common import saved_sizes as in_files
from ckpt_tools.layouts.common.rank_grid import Topology
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Known
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.prefetch import by_crowd
from ckpt_tools.reading.session import Session

_SIZES = {
    axis: key for axis, key in in_files.AXES.items() if axis != "dp"
}  # in files the data parallel size is what the world size leaves over
ALONE = "a single file without a rank"
HIGHEST = "highest rank on disk"
_FILES = 256
"""Files of one checkpoint at most that are asked."""
_NEIGHBOURS = 64
"""Files of other checkpoints at most that are asked for the rank order; the judge compares with as many."""
_ASKED = 4
"""Checkpoints at most whose files are asked how many ranks there are."""


def expert_names(
    session: Session, checkpoints: list[Checkpoint], level: Level = Level.STRUCTURE
) -> list[Checkpoint]:
    """Megatron names mp_rank_00_001 by stage, or by expert when there is one stage: the files' own args tell which."""
    staged = next(
        (p for c in checkpoints for p in c.parts if dict(p.coords).get("pp") and "ep" not in dict(p.coords)),
        None,
    )
    if staged is None:
        return checkpoints
    said = session.report(staged, level).metadata
    stages, experts = (whole(said.get(f"args.{_SIZES[axis]}")) for axis in ("pp", "ep"))
    if stages != 1 or not experts or experts < 2:
        return checkpoints

    def renamed(p: Part) -> Part:
        return p._replace(coords=tuple(("ep" if a == "pp" else a, at) for a, at in p.coords))

    return [replace(c, parts=tuple(renamed(p) for p in c.parts)) for c in checkpoints]


def saved_sizes(session: Session, checkpoint: Checkpoint, level: Level) -> Mapping[str, int]:
    """What the files of one checkpoint say about the job that saved it; some of them are read for it."""
    return in_files.saved_sizes(session.report(p, level) for p in _telling(checkpoint)[:_ASKED])


class _Witnesses(NamedTuple):
    """Files that were asked about the job that saved them, and how many ranks they say it had."""

    parts: list[Part]
    reports: list[Report]
    world: int | None


class _Offer(NamedTuple):
    """A number that may be known, and who says so."""

    value: int | None
    who: str


def find_topology(
    session: Session, ranked: Sequence[Checkpoint], expected: completeness.Expected, selection: Selection
) -> tuple[Topology, int | None, list[Finding]]:
    """The topology with the provenance of every number, the world size that wrote the files as far as they or their names tell, and warnings.

    Order of trust: flag, launcher, file content, names on disk (docs/design.md section 5); but of contents that contradict the names, or each other,
    the names are right.
    """
    first = next((c for c in ranked if c.kind is not Kind.RELEASE), ranked[0])
    layout = BY_NAME[first.layout]
    seen = _witnesses(session, ranked, first, selection)
    known = {
        axis: Known(offer.value, offer.who)
        for axis in _SIZES
        if (offer := _size(axis, first, seen, selection)).value
    }
    if dp := selection.sizes.get(
        "dp"
    ):  # only a flag tells it: in files it is what the world size leaves over
        known["dp"] = Known(dp, "--dp")
    sizes = {axis: k.value for axis, k in known.items()}
    _check_order(selection, sizes)
    grid = prod(sizes.get(axis, 1) for axis in ("tp", "cp", "dp", "pp")) if sizes else None
    told = (
        seen.world if not grid or not seen.world or selection.sizes or seen.world % grid == 0 else grid
    )  # places that are there were saved by ranks
    # what all of them share was written by as many as its own names tell
    shared = all(layout.piece(p.piece).shared for p in first.parts)
    names, named = (
        completeness.expected_ranks([first]) if shared else expected.named,
        completeness.named_world(first),
    )
    who_told = "world_size in the files" if told == seen.world else "parallel sizes"
    world, who = _world(
        selection,
        (
            _Offer(told, who_told),
            _Offer(named, "names on disk"),
            _Offer(names, HIGHEST),
            _Offer(grid, "parallel sizes"),
        ),
    )
    known["world_size"] = Known(world, who)
    warnings: list[Finding] = []
    if who == HIGHEST and not all(
        layout.piece(p.piece).shared or not layout.piece(p.piece).required for p in first.parts
    ):
        warnings.append(
            finding("world-size-inferred", f"{world} ranks, from the highest rank on disk", path=session.root)
        )
    topology = Topology(world, sizes, selection.rank_order)
    if (
        selection.rank_order == Selection().rank_order
        and (order := _order(session, ranked, seen, selection)) != topology.order
    ):
        topology = replace(topology, order=order)
        text = f"the files were written in rank order {order}, which the plan follows"
        warnings.append(finding("rank-mismatch", text, path=first.path, severity=Severity.NOTE))
    if selection.strategy_dir is not None:
        from ckpt_tools.planning.strategy import require_trusted, strategy_groups

        require_trusted(selection.strategy_dir, session.root, selection.trust)
        topology = replace(topology, strategy=strategy_groups(selection.strategy_dir, world))
    # with shards, how many ranks shared them cannot be seen from the grid of their names
    unshared = not any(layout.piece(p.piece).sharded for p in first.parts)
    saved = told or (None if layout.committed else named or names or (grid or 1 if unshared else None))
    return replace(topology, provenance=known), saved, warnings


def _witnesses(
    session: Session, ranked: Sequence[Checkpoint], first: Checkpoint, selection: Selection
) -> _Witnesses:
    """The newest files that can tell: the newest may be cut off, and say nothing any more."""
    level, out = min(Level.STRUCTURE, selection.level), _Witnesses([], [], None)
    for c in (c for c in ranked[:_ASKED] if c.kind is not Kind.RELEASE or c is first):
        mine = _telling(c)[:_FILES]
        by_crowd(session, mine, level)
        said = [session.report(p, level) for p in mine]
        if told := in_files.saved_world_size(said):
            return _Witnesses(mine, said, told)
        out = out if out.parts else _Witnesses(mine, said, None)
        if any(r.verdict is not Verdict.BROKEN for r in said):
            break  # it could have told
    return out


def _telling(c: Checkpoint) -> list[Part]:
    """The files that may say how many ranks saved them."""
    return [p for p in c.parts if p.role == "model" or p.piece == BY_NAME[c.layout].sized_by]


def _size(axis: str, first: Checkpoint, seen: _Witnesses, selection: Selection) -> _Offer:
    """The size of one parallel axis, and who tells it."""
    told = (whole(r.metadata.get(f"args.{_SIZES[axis]}")) for r in seen.reports)
    in_file = next((n for n in told if n and 0 < n <= 1 << 20), 0)
    on_disk, named_by = (
        max((at for p in first.parts for a, at in p.coords if a == axis), default=-1) + 1,
        "directory names",
    )
    spread = (
        [n for r in seen.reports if (n := whole(r.metadata.get("mp_world_size"))) and n <= 1 << 20]
        if axis == "tp"
        else []
    )
    if spread and max(spread) > on_disk:
        on_disk, named_by = (
            max(spread),
            "mp_world_size in the files",
        )  # DeepSpeed: names alone miss ranks whose files the newest save has lost
    if flag := selection.sizes.get(axis):
        return _Offer(flag, f"--{axis}")
    if in_file and in_file >= on_disk:
        return _Offer(in_file, f"args.{_SIZES[axis]} in the files")
    return _Offer(on_disk or None, named_by)


def _check_order(selection: Selection, sizes: Mapping[str, int]) -> None:
    """Raises UsageError when --rank-order leaves out an axis."""
    unplaced = [
        axis
        for axis in ("tp", "cp", "ep", "dp", "pp")
        if axis not in selection.rank_order.split("-") and sizes.get(axis, 1) > 1
    ]
    if unplaced:
        raise UsageError(
            f"--rank-order {selection.rank_order} does not say where {unplaced[0]} is, whose size is {sizes[unplaced[0]]}",
            "name every axis whose size is above 1, fastest first",
        )


def _world(selection: Selection, offers: Sequence[_Offer]) -> tuple[int, str]:
    """How many ranks there are: a flag, the launcher, or the first of the offers; a rank that --replica-groups names is one of them."""
    if selection.world_size:
        return selection.world_size, selection.world_from
    started = launchers.detect(os.environ)
    if started and started.world_size:
        return started.world_size.value, started.world_size.provenance
    world, who = next(((o.value, o.who) for o in offers if o.value), (1, ALONE))
    grouped = max(
        (rank + 1 for groups in selection.replica_groups.values() for group in groups for rank in group),
        default=0,
    )
    return (grouped, "--replica-groups") if grouped > world else (world, who)


def _order(session: Session, ranked: Sequence[Checkpoint], seen: _Witnesses, selection: Selection) -> str:
    """The rank order that most files show, also those of other checkpoints: in the newest they may have been swapped."""
    rows = list(placed(list(zip(seen.parts, seen.reports, strict=True))))
    if len({row.rank for row in rows}) > 1:
        level, asked = min(Level.STRUCTURE, selection.level), {p.path for p in seen.parts}
        others = [p for c in ranked[:_ASKED] for p in _telling(c) if p.path not in asked][:_NEIGHBOURS]
        by_crowd(session, others, level)
        rows += placed([(p, session.report(p, level)) for p in others])
    return rank_order(rows)
