"""How many ranks there are and how they are arranged, with the source of every number."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ckpt_tools import agreement, completeness, launchers
from ckpt_tools.codes import finding
from ckpt_tools.errors import UsageError
from ckpt_tools.layouts import BY_NAME, whole
from ckpt_tools.model import Checkpoint, Finding, Kind, Known, Level, Part, Report, Severity, Verdict
from ckpt_tools.pipeline.ahead import by_crowd
from ckpt_tools.pipeline.session import Session
from ckpt_tools.question import Selection
from ckpt_tools.topology import Topology, infer_order

_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}


ALONE = "a single file without a rank"
_ASKED = 4
"""Checkpoints at most whose files are asked how many ranks there are."""


def expert_names(session: Session, checkpoints: list[Checkpoint], level: Level = Level.STRUCTURE) -> list[Checkpoint]:
    """Megatron names mp_rank_00_001 by stage, or by expert when there is one stage: the files' own args tell which."""
    staged = next((p for c in checkpoints for p in c.parts if dict(p.coords).get("pp") and "ep" not in dict(p.coords)), None)
    if staged is None:
        return checkpoints
    said = session.report(staged, level).metadata
    stages, experts = (whole(said.get(f"args.{_SIZES[axis]}")) for axis in ("pp", "ep"))
    if stages != 1 or not experts or experts < 2:
        return checkpoints

    def renamed(p: Part) -> Part:
        return p._replace(coords=tuple(("ep" if a == "pp" else a, at) for a, at in p.coords))

    return [replace(c, parts=tuple(renamed(p) for p in c.parts)) for c in checkpoints]


def find_topology(
    session: Session, ranked: Sequence[Checkpoint], expected: completeness.Expected, selection: Selection
) -> tuple[Topology, int | None, list[Finding]]:
    """The topology with the provenance of every number, the world size that wrote the files as far as they or their names tell, and warnings.

    Order of trust: flag, launcher, file content, names on disk (docs/design.md section 5).
    """
    known: dict[str, Known] = {}
    warnings: list[Finding] = []
    first = next((c for c in ranked if c.kind is not Kind.RELEASE), ranked[0])
    layout = BY_NAME[first.layout]
    ranked_parts, reports, told = list[Part](), list[Report](), None
    for c in (c for c in ranked[:_ASKED] if c.kind is not Kind.RELEASE or c is first):  # the newest may be cut off, and say nothing any more
        mine = [p for p in c.parts if p.role == "model" or p.piece == layout.sized_by][:256]
        by_crowd(session, mine, min(Level.STRUCTURE, selection.level))
        said = [session.report(p, min(Level.STRUCTURE, selection.level)) for p in mine]
        if told := agreement.saved_world_size(said):
            ranked_parts, reports = mine, said
            break
        ranked_parts, reports = ranked_parts or mine, reports or said
        if any(r.verdict is not Verdict.BROKEN for r in said):
            break  # it could have told
    names, named = expected.named, completeness.named_world(first)
    sizes: dict[str, int] = {}
    for axis, key in _SIZES.items():
        in_file = next((n for r in reports if (n := whole(r.metadata.get(f"args.{key}"))) and 0 < n <= 1 << 20), None)
        on_disk, named_by = max((at for p in first.parts for a, at in p.coords if a == axis), default=-1) + 1, "directory names"
        if axis == "tp" and (mp := max((n for r in reports if (n := whole(r.metadata.get("mp_world_size"))) and n <= 1 << 20), default=0)) > on_disk:
            on_disk, named_by = mp, "mp_world_size in the files"  # DeepSpeed: names alone miss ranks whose files the newest save has lost
        for value, who in ((selection.sizes.get(axis), f"--{axis}"), (in_file, f"args.{key} in the files"), (on_disk or None, named_by)):
            if value:
                sizes[axis], known[axis] = value, Known(value, who)
                break
    if dp := selection.sizes.get("dp"):  # only a flag tells it: in files it is what the world size leaves over
        sizes["dp"], known["dp"] = dp, Known(dp, "--dp")
    unplaced = [axis for axis in ("tp", "cp", "ep", "dp", "pp") if axis not in selection.rank_order.split("-") and sizes.get(axis, 1) > 1]
    if unplaced:
        raise UsageError(
            f"--rank-order {selection.rank_order} does not say where {unplaced[0]} is, whose size is {sizes[unplaced[0]]}",
            "name every axis whose size is above 1, fastest first",
        )
    started = launchers.detect(os.environ)
    grid = prod(sizes.get(axis, 1) for axis in ("tp", "cp", "dp", "pp")) if sizes else None
    offers = (
        (selection.world_size, selection.world_from),
        (started.world_size.value, started.world_size.provenance) if started and started.world_size else (None, ""),
        (told, "world_size in the files"),
        (named, "names on disk"),
        (names, "highest rank on disk"),
        (grid, "parallel sizes"),
    )
    world, who = next((n, who) for n, who in (*offers, (1, ALONE)) if n)
    known["world_size"] = Known(world, who)
    if who == "highest rank on disk" and not all(layout.piece(p.piece).shared or not layout.piece(p.piece).required for p in first.parts):
        warnings.append(finding("world-size-inferred", f"{world} ranks, from the highest rank on disk", path=session.root))
    topology = Topology(world, sizes, selection.rank_order)
    writers = {
        r: p.coords
        for p, rep in zip(ranked_parts, reports, strict=True)
        if p.coords and p.rank is None and (r := whole(rep.metadata.get("args.rank"))) is not None and r < world
    }
    if selection.rank_order == Selection().rank_order and (order := infer_order(writers, topology)):
        topology = replace(topology, order=order)
        warnings.append(
            finding("rank-mismatch", f"the files were written in rank order {order}, which the plan follows", path=first.path, severity=Severity.NOTE)
        )
    if selection.strategy_dir is not None:
        from ckpt_tools.pipeline.strategy import strategy_groups

        topology = replace(topology, strategy=strategy_groups(selection.strategy_dir, world))
    unshared = not any(
        layout.piece(p.piece).sharded for p in first.parts
    )  # else how many ranks shared them cannot be seen from the grid of their names
    saved = told or (None if layout.committed else named or names or (grid or 1 if unshared else None))
    return replace(topology, provenance=known), saved, warnings
