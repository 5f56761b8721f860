"""Texts beside the files of saves of own loops: what is written last may be lacking."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from os.path import basename, dirname

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.reading.session import Session

_LEAST = 2
"""Other saves that have a file: one alone may have it by chance."""


def find_lost_texts(s: Session) -> Iterator[Finding]:
    """Return warnings about directories of saves without a file that each other one of their run has."""
    runs = defaultdict[str, set[str]](set)
    for p in s.parts:
        if p.home and s.layouts.of(p).last_resort:
            runs[p.run].add(p.home)
    beside = defaultdict[str, set[str]](set)
    texts = (*(f.path for f in s.found.bare), *s.found.trackers.values(), *s.found.texts) if runs else ()
    for path in texts:
        beside[dirname(path)].add(basename(path))
    for homes in runs.values():
        for home in sorted(homes) if len(homes) > _LEAST else ():
            others = [beside[o] for o in homes if o != home]
            for name in sorted(set.intersection(*others) - beside[home]):
                text = f"it has no {name}, which the directory of each other save has"
                yield finding("missing-part", text, path=home, severity=Severity.WARNING)
