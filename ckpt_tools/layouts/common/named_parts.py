"""Files that are called after ranks or parts of one state, of which none is a checkpoint alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part

_PARTS = re.compile(
    r"(?<![a-z])(rank|shard|part|gpu|worker|tp|pp|mp|dp)(?:_rank)?"
    r"(?:_world_size=(\d{1,6})_(\d{1,6})|(?:_world_size)?[-_=]?(\d{1,6})(?:[-_]?of[-_]?(\d{1,6}))?)(?!\d)",
    re.IGNORECASE,
)
"""What a name says of which part of a state it is, and of how many."""


class _Told(NamedTuple):
    """A word for a part in a name, its number, and how many the name says there are (0: it does not)."""

    word: str
    which: int
    of: int


def are_parts(runs: Iterable[str]) -> bool:
    """Whether names of runs read like those of parts of one state: ``part0_shard0``, ``part0_shard1``."""
    names = list(runs)
    same = {re.sub(r"[0-9]+", "", name) for name in names}
    return len(same) == 1 and all(map(_PARTS.search, names))


def lone_parts(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Files of several ranks, or parts of one state, of which each would load the first: outside the
    arrangement of rank-files.
    """
    mine = {pattern: told for p in c.parts for pattern, told in _told_parts(p)}
    if not mine:
        return
    numbers: dict[str, set[int]] = {pattern: set() for pattern in mine}
    for p in (p for o in (c, *others) if o.layout == c.layout for p in o.parts):
        for pattern, told in _told_parts(p):
            numbers.get(pattern, set()).add(told.which)
    for pattern, found in numbers.items():
        told = mine[pattern]
        if len(found) > 1:
            text = f"files are called after {len(found)} {told.word.lower()}s, and nothing tells which make a"
            text += " checkpoint"
        elif told.of > 1:
            text = f"it is called after {told.word.lower()} {told.which} of {told.of}, and no other is there"
        else:
            continue
        hint = "call their directory after its step (step_N), or describe it: docs/adding-a-layout.md"
        yield finding("missing-part", text, path=c.parts[0].path, hint=hint)


def _told_parts(p: Part) -> Iterator[tuple[str, _Told]]:
    """What a name says of parts, by its directory and the name without any number."""
    for m in _PARTS.finditer(p.name):
        told = _Told(m[1], int(m[2] or m[4]), int(m[3] or m[5] or 0))
        yield f"{p.base}/{re.sub(r'[0-9]+', '', p.name)} {m[1]}", told
