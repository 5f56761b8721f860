"""Saves that no layout describes, each a directory with a directory for each part of its state."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from os.path import basename, dirname

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.reading.session import Session

_LEAST = 2
"""Other saves that have a file: one alone may have it by chance."""


def lost_beside_halves(s: Session) -> Iterator[Finding]:
    """Return warnings about saves without a file that each other one has whose name differs in numbers alone:
    what is written last may be lacking.
    """
    halves = defaultdict[str, set[str]](set)
    for p in s.parts:
        if s.layouts.of(p).last_resort:
            halves[dirname(dirname(p.path))].add(dirname(p.path))
    alike = defaultdict[tuple[str, str], list[str]](list)
    for home, inside in halves.items():
        if len(inside) > 1 and home.startswith(f"{s.root}/") and re.search(r"\d", basename(home)):
            alike[dirname(home), re.sub(r"\d+", "#", basename(home))].append(home)
    beside = defaultdict[str, set[str]](set)
    for path in (
        (*(f.path for f in s.found.bare), *s.found.trackers.values(), *s.found.texts) if alike else ()
    ):
        beside[dirname(path)].add(basename(path))
    for homes in alike.values():
        for home in homes if len(homes) > _LEAST else ():
            others = [beside[o] for o in homes if o != home]
            for name in sorted(set.intersection(*others) - beside[home]):
                text = f"it has no {name}, which each other directory that is called as it is has"
                yield finding("missing-part", text, path=home, severity=Severity.WARNING)
