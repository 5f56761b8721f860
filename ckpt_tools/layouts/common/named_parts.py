"""Files that are called after ranks or parts of one state, of which none is a checkpoint alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part

_PARTS = re.compile(
    r"(?<![a-z])(rank|shard|part|gpu|worker|tp|pp|mp|dp)(?:_rank)?(?:_world_size)?[-_=]?(\d{1,6})(?!\d)",
    re.IGNORECASE,
)
"""What a name says of which part of a state it is."""


def are_parts(runs: Iterable[str]) -> bool:
    """Whether names of runs read like those of parts of one state: ``part0_shard0``, ``part0_shard1``."""
    names = list(runs)
    same = {re.sub(r"[0-9]+", "", name) for name in names}
    return len(same) == 1 and all(map(_PARTS.search, names))


def lone_parts(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Files of several ranks, or parts of one state, of which each would load the first: outside the
    arrangement of rank-files.
    """
    mine = {pattern: word for p in c.parts for word, _, pattern in _told_parts(p)}
    if not mine:
        return
    numbers: dict[str, set[int]] = {pattern: set() for pattern in mine}
    for p in (p for o in (c, *others) if o.layout == c.layout for p in o.parts):
        for _, which, pattern in _told_parts(p):
            numbers.get(pattern, set()).add(which)
    for pattern, found in numbers.items():
        if len(found) > 1:
            what = f"{mine[pattern].lower()}s"
            text = f"files are called after {len(found)} {what}, and nothing tells which make a checkpoint"
            hint = "call their directory after its step (step_N), or describe it: ckpt layouts --guess"
            yield finding("missing-part", text, path=c.parts[0].path, hint=hint)


def _told_parts(p: Part) -> Iterator[tuple[str, int, str]]:
    """Each word for a part in a name, its number, and its directory and name without any number."""
    for told in _PARTS.finditer(p.name):
        yield told[1], int(told[2]), f"{p.base}/{re.sub(r'[0-9]+', '', p.name)} {told[1]}"
