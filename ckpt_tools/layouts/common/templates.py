"""Path templates, by which a layout says where its files lie: as regular expressions, and as the beginnings
and endings of names, which are asked first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

COORDS = ("tp", "pp", "ep", "dp", "cp")
"""Parallel axes that a template may name besides the rank."""

NUMBERS = (
    *(*COORDS, "rank", "step", "epoch", "step_in_epoch", "generation"),
    *("shard", "of", "world", "layer", "expert", "node"),
)
"""Fields that stand for digits. ``of`` is how many shards there are, ``world`` how many ranks, ``node`` the
directory of the process that keeps the file.
"""
RANKS = frozenset((*COORDS, "rank", "world", "node"))
"""Fields of which whole ranges are gone through: more than six digits are some other number (a date, a
process id), and never that of a rank.
"""
TEXTS = ("prefix", "name", "run")
"""Fields that stand for text without a slash; a ``prefix`` keeps runs apart, a ``name`` says nothing."""
METRIC = "metric"
"""The field that stands for a number with a fraction, such as a loss: its digits tell no step."""
DATE = "date"
"""The field that stands for a day and a time: it tells no step."""
FIELDS = (*NUMBERS, *TEXTS, METRIC, DATE, "tmp")

TOKENS = re.compile(r"(\{[^}]*\}|\[|\]|<[^>]*>)")
"""What a template is split at: a field, a bracket, a choice of words."""
_UNTOLD = {
    "name": "[^/]+?",
    METRIC: r"\d{1,9}\.\d{1,9}",
    DATE: r"\d{4}[-_.]?\d{2}[-_.]?\d{2}(?:[-_T. ]?\d{2}[-_.]?\d{2}(?:[-_.]?\d{2})?)?",
}
"""Fields that may stand there several times, and say nothing."""
_ZEROS = dict.fromkeys(NUMBERS, "0*")
"""What may stand before a number that stands there a second time."""
FIELD = re.compile(r"\{(\w+)(?::0(\d+)d)?\}")
"""A field: its name, and how many digits it has at least."""


def compile_template(template: str) -> str:
    """A template as a regular expression. Raises ValueError for a field that is not known.

    ``{step:07d}`` is at least seven digits (and twice the same number), ``[…]`` is optional, ``<a|b>`` one of
    several words, ``{prefix}`` any text, ``{tmp}`` the literal ``_tmp``.
    """
    out, seen = [], set[str]()
    for i, piece in enumerate(TOKENS.split(template)):
        if not i % 2:
            out.append(re.escape(piece))
        elif piece == "[":
            out.append("(?:")
        elif piece == "]":
            out.append(")?")
        elif piece[0] == "<":
            out.append(f"(?:{'|'.join(re.escape(word) for word in piece[1:-1].split('|'))})")
        else:
            m = FIELD.fullmatch(piece)
            if m is None or m[1] not in FIELDS:
                raise ValueError(f"{piece} in {template}: a field is one of {', '.join(FIELDS)}")
            name, width = m.groups()
            if name in _UNTOLD:
                out.append(_UNTOLD[name])
            elif name in seen:
                out.append(_ZEROS.get(name, "") + f"(?P={name})")
            else:
                seen.add(name)
                digits = rf"\d{{{width},18}}" if width else r"\d{1,18}"
                if name in RANKS:
                    digits = rf"(?={digits}(?!\d))0*\d{{1,6}}"
                pattern = "_tmp" if name == "tmp" else "[^/]+?" if name in TEXTS else digits
                out.append(f"(?P<{name}>{pattern})")
    return "".join(out)


DIGITS = tuple("0123456789")


class Edges(NamedTuple):
    """How names that a template fits begin and end, and the longest text that all of them contain: tests
    before the regular expression, which costs a hundred times as much to compile.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    contained: str


def may_begin_with(template: str, letter: str) -> bool:
    """Whether a template may fit a name that begins so: nearly all say it by their own first letter."""
    if not letter.isascii():
        return True
    if template[:1] not in "{[<":
        return template[:1] == letter
    return any(start[:1] in ("", letter) for start in edges(template).starts)


@cache
def edges(template: str) -> Edges:
    """The edges of a template that compile_template accepts; of several directories those of the path."""
    words = [word for word in TOKENS.split(template) if word]
    turned = [{"[": "]", "]": "["}.get(word, word) for word in reversed(words)]
    return Edges(tuple(_openings(words)), tuple(_openings(turned)), max(_always(words), key=len, default=""))


def _always(words: Sequence[str]) -> Iterator[str]:
    """The texts outside of brackets."""
    deep = 0
    for word in words:
        deep += (word == "[") - (word == "]")
        if not deep and word[0] not in "{<]":
            yield word


def _openings(words: Sequence[str]) -> set[str]:
    """The texts of which each name begins with one; the empty one where it may begin with anything."""
    if not words:
        return {""}
    first, rest = words[0], words[1:]
    if first == "[":
        end = _closing(words)
        return _openings([*words[1:end], *words[end + 1 :]]) | _openings(words[end + 1 :])
    if first[0] == "<":
        said = set(first[1:-1].split("|"))
        return said - {""} | _openings(rest) if "" in said else said
    field = FIELD.fullmatch(first)
    if field is None:
        return {first}
    return {"_tmp"} if field[1] == "tmp" else {""} if field[1] in TEXTS else set(DIGITS)


def _closing(words: Sequence[str]) -> int:
    """Where the bracket that ``words`` begin with is closed."""
    deep = 0
    for i, word in enumerate(words):
        deep += (word == "[") - (word == "]")
        if not deep:
            return i
    return len(words)
