"""Keeps the findings of one file readable: a file with ten thousand damaged records is one damaged file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.model.finding import Finding

MANY = 20
"""Findings of one code that are given in full."""


def limited(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The first MANY findings of each code, then one that counts the rest. Damage passes through, after that
    count.
    """
    seen: Counter[str] = Counter()
    damage: Damage | None = None
    try:
        for f in findings:
            seen[f.code] += 1
            if seen[f.code] <= MANY:
                yield f
    except Damage as e:
        damage = e
    for code, n in seen.items():
        if n > MANY:
            yield finding(code, f"and {n - MANY:,} more of this kind")
    if damage:
        try:
            raise damage
        finally:
            del damage  # else it and this frame keep each other, and all that was read
