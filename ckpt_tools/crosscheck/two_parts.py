"""What the names of two parts tell of each other: of which saves they are, and which is the older. Pure."""

from __future__ import annotations

import re

from ckpt_tools.crosscheck.run_files import order, place
from ckpt_tools.model.part import Kind, Part

_DIGITS = re.compile("[0-9]+")


def alike(a: Part, b: Part) -> bool:
    """Whether two files are of the same kind."""
    return a.role == b.role and a.piece == b.piece


def both_placed(a: Part, b: Part) -> bool:
    """Whether something tells when in training each was saved: a copy of the newest (``last``) that has lost
    the file with its step is of no other step.
    """
    return placed(a) and placed(b)


def placed(p: Part) -> bool:
    return (p.step, p.epoch, p.generation) != (None, None, None)


def differ_in_a_number(a: Part, b: Part) -> bool:
    """Whether two files beside each other are called alike but for the numbers in their names."""
    one, other = (_DIGITS.split(o.name) for o in (a, b))
    beside = a.base == b.base and not (a.home or b.home) and a.kind is b.kind is Kind.PERIODIC
    return beside and len(one) > 1 and one == other and a.name != b.name


def apart(a: Part, b: Part) -> bool:
    """Whether something known of both says that one is older than the other."""
    return any(x >= 0 and y >= 0 and x != y for x, y in zip(order(a), order(b), strict=True))


def before(a: Part, b: Part) -> bool:
    return (order(a), a.rank or 0, a.path) < (order(b), b.rank or 0, b.path)


def whose(original: Part, copy: Part) -> str:
    """Whose file the original is, as seen from the copy."""
    a, b = order(original), order(copy)
    several = elsewhere(original, copy) or differ_in_a_number(original, copy)
    same = "another" if several else "the same"
    which = "an older" if a < b else "a newer" if a > b else same
    return f"{which} checkpoint, {where(original, copy)}"


def elsewhere(a: Part, b: Part) -> bool:
    """Whether two files have one place in two saves."""
    return place(a) == place(b) and a.home != b.home


def of_two_saves(a: Part, b: Part) -> bool:
    return order(a) != order(b) or elsewhere(a, b)


def where(older: Part, p: Part) -> str:
    """The path of one file from where it parts from the other's."""
    a, b = older.path.split("/"), p.path.split("/")
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    return "/".join(a[common:])
