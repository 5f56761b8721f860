"""Columns of a table in little text: what neighbours have in common is written once.

The page has 80,000 files in some hundred kilobytes; ``scripts/columns.js`` is the way back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_DIGITS = re.compile(r"([0-9]{1,15})")
_MOST = 8
"""Numbers in one text that are told apart."""


def packed(column: Sequence[Any]) -> Mapping[str, object]:
    """One column: numbers by their differences, texts by the patterns they share, all else as it is."""
    kinds = {type(value) for value in column}
    if kinds <= {int, type(None)}:
        return numbers(column)
    if kinds == {str}:
        return texts(column)
    return words(column)


def numbers(column: Sequence[int | None]) -> Mapping[str, object]:
    """Differences to the one before: [difference, how often] for runs of them, where that is shorter.
    None counts as 0, n as n + 2: a size that is not known is -1.
    """
    raised = [0 if n is None else n + 2 for n in column]
    differences = [b - a for a, b in zip([0, *raised], raised, strict=False)]
    runs = list[int]()
    for d in differences:
        if runs and runs[-2] == d:
            runs[-1] += 1
        else:
            runs += [d, 1]
    return {"runs": runs} if len(runs) < len(differences) else {"differences": differences}


def words(column: Sequence[object]) -> Mapping[str, object]:
    """Each different value once, and for each row which of them."""
    known: dict[str, int] = {}
    values = list[object]()
    index = list[int]()
    for value in column:
        name = json.dumps(value)
        if name not in known:
            known[name] = len(values)
            values.append(value)
        index.append(known[name])
    return {"words": values, "index": numbers(index)}


def texts(column: Sequence[str]) -> Mapping[str, object]:
    """Texts by what is left of them without their numbers, and the numbers, the n-th of all texts together.

    A number with leading zeros is of a width, which its pattern says.
    """
    patterns: dict[tuple[Any, ...], int] = {}
    index = list[int]()
    found: list[list[int | None]] = []
    for row, text in enumerate(column):
        pieces = _DIGITS.split(text, _MOST)
        digits = pieces[1::2]
        widths = [len(n) if n[0] == "0" and len(n) > 1 else 0 for n in digits]
        index.append(patterns.setdefault((tuple(pieces[::2]), tuple(widths)), len(patterns)))
        while len(found) < len(digits):
            found.append([None] * row)
        for at, numbers_at in enumerate(found):
            numbers_at.append(int(digits[at]) if at < len(digits) else None)
    if 2 * len(patterns) > len(column):  # digests as names: they have nothing in common
        return words(column)
    return {
        "patterns": [[list(pieces), list(widths)] for pieces, widths in patterns],
        "index": numbers(index),
        "numbers": [numbers(one) for one in found],
    }
