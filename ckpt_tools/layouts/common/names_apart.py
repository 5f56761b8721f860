"""Whether names that count nothing are those of one run's saves, or each of a run of its own."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import combinations

Words = tuple[str, ...]
"""What a name says beside what is known (bare_names.py)."""
_OF_RUNS = re.compile(r"(?:fold|seed|run|exp|trial)\d+")
_IN_TURN = re.compile(r"\b[a-z]\d+\b|\d+|\b[a-z]\b")
"""What differs in the names of saves of one run that are written in turn: a number, a letter, or ``v1``."""
APART_NS = 600 * 1_000_000_000
"""Nanoseconds between two files, or directories, from which on they are hardly parts of one save."""


def are_of_several(names: Collection[Words]) -> bool:
    """Whether two have words of their own each: one run may have a word more in some names
    (``resnet_interrupted.pt``), or another number in its words (``model_e1.pt``).
    """
    called = {frozenset(_IN_TURN.sub("", " ".join(words)).split()) for words in names}
    return any(not (a <= b or b <= a) for a, b in combinations(called, 2))


def of_folds(names: Collection[Words]) -> set[Words]:
    """Those that are called after more than one fold, seed or run."""
    counted = {words for words in names if any(map(_OF_RUNS.fullmatch, words))}
    return counted if len(counted) > 1 else set()
