"""Files that every other save of a run has beside what its layout loads, and the choice has not: what a
training loop of one's own saves with a framework's checkpoint. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ckpt_tools import formats
from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity

_LEAST = 2
"""Other saves that have such a file: one alone may have it by chance."""
_NAMED = 3
"""Lost files that have a line of their own."""
_NUMBER = re.compile(r"\d+")


def lost_beside(c: Checkpoint, saves: Sequence[Checkpoint], beside: Iterable[str]) -> Iterator[Finding]:
    """Warnings about them. ``beside`` are the paths that no layout places."""
    siblings = [o for o in saves if o.key != c.key and _alike(o, c)]
    if len(siblings) < _LEAST or not _alike(c, c):
        return
    names: dict[str, dict[str, str]] = {o.path: {} for o in (c, *siblings)}
    for path in beside:
        home = next((above for above in _above(path) if above in names), None)
        if home is not None and formats.names.beside(path.rpartition("/")[2]):
            names[home][_NUMBER.sub("", path[len(home) + 1 :])] = path
    in_all = set.intersection(*(set(names[o.path]) for o in siblings)) - set(names[c.path])
    for pattern in sorted(in_all)[:_NAMED]:
        example = names[siblings[0].path][pattern]
        text = f"it has no file like {example.rpartition('/')[2]}, which each other save of the run has"
        yield finding("missing-part", text, path=c.path, severity=Severity.WARNING)


def _alike(o: Checkpoint, c: Checkpoint) -> bool:
    """Whether it is a save of the same run in a directory of its own."""
    same = (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind)
    return same and not o.unfinished and all(p.home == o.path for p in o.parts)


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path
