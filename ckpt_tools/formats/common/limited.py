"""Keeps the findings of one file readable: a file with ten thousand damaged records is one damaged file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import ParamSpec

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.model.finding import Finding

MANY = 20
"""Findings of one code that are given in full."""
_Arguments = ParamSpec("_Arguments")


def limited(check: Callable[_Arguments, Iterable[Finding]]) -> Callable[_Arguments, Iterator[Finding]]:
    """A check that gives MANY findings of each code and counts the rest; Damage comes after that."""

    @wraps(check)
    def first_of_each(*args: _Arguments.args, **options: _Arguments.kwargs) -> Iterator[Finding]:
        seen: Counter[str] = Counter()
        damage: Damage | None = None
        try:
            for f in check(*args, **options):
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

    return first_of_each
