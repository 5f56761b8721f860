"""What the nodes of an agreement tell each other, as values that JSON can hold."""

from __future__ import annotations

import os
from ast import literal_eval

from ckpt_tools.job.meeting import Value
from ckpt_tools.model import Checkpoint, FileLoad, Finding, Kind, Part, RankLoad, Severity


def identity(c: Checkpoint, root: str) -> str:
    """What names a checkpoint on every node, wherever each has mounted its disk: paths are below ``root``."""
    first = c.parts[0]
    return repr((c.layout, os.path.relpath(first.base, root), first.prefix, c.step, c.epoch, c.step_in_epoch, c.generation))


def parts_of(identity: str) -> tuple[str, str, str, int | None, int | None, int | None, int | None]:
    """(layout, directory of the run below the root, prefix, step, epoch, step_in_epoch, generation) of an identity."""
    layout, base, prefix, step, epoch, step_in_epoch, generation = literal_eval(identity)
    return layout, base, prefix, step, epoch, step_in_epoch, generation


def row(load: RankLoad, host: str) -> Value:
    """What one rank loads, and on which node."""
    return {
        "rank": load.rank,
        "files": [{**{name: getattr(f, name) for name in FileLoad.__slots__}, "level": int(f.level), "node": host} for f in load.files],
    }


def told(f: Finding) -> Value:
    """A finding for the others."""
    return {**{name: getattr(f, name) for name in Finding.__slots__}, "severity": int(f.severity)}


def untold(row: Value) -> Finding:
    """A finding of another node."""
    return Finding(**{**row, "severity": Severity(row["severity"]), "ranks": tuple((a, b) for a, b in row["ranks"])})


def packed(p: Part) -> Value:
    """A part for the others, without what the listing found wrong with it."""
    return {**p._asdict(), "kind": str(p.kind), "coords": [list(c) for c in p.coords], "findings": []}


def unpacked(row: Value) -> Part:
    """A part of another node; its path is valid there."""
    return Part(**{**row, "kind": Kind(row["kind"]), "coords": tuple((a, n) for a, n in row["coords"]), "findings": ()})
