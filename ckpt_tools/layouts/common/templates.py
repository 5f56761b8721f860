"""Path templates, by which a layout says where its files lie, as regular expressions: one for each name.

How names of files and directories say that a save or a download was not done: who writes it renames it
when it is, or removes what lies beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

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


@cache
def compile_name(template: str) -> re.Pattern[str]:
    return re.compile(compile_template(template))


def read_path(templates: Sequence[str], names: Sequence[str]) -> dict[str, str | None] | None:
    """Return what the names at the end of a path tell; None if one does not fit, or two contradict."""
    told: dict[str, str | None] = {}
    for template, name in zip(templates, names[len(names) - len(templates) :], strict=True):
        if (m := compile_name(template).fullmatch(name)) is None:
            return None
        for field, text in m.groupdict().items():
            if text and (before := told.get(field)) and before.lstrip("0") != text.lstrip("0"):
                return None
            told[field] = text or told.get(field)
    return told


Outline = tuple[tuple[str, ...], tuple[str, ...], str, bool]
"""What is asked of a name before the expression, which costs a hundred times as much to compile: how it
begins and ends, a text that it contains, and whether it has a digit.
"""


@cache
def outline(template: str) -> Outline:
    """Return the outline of a name's template that compile_template accepts."""
    words = [word for word in TOKENS.split(template) if word] or ["{"]
    deep, numbered, texts = 0, False, [""]
    for word in words:
        deep += (word == "[") - (word == "]")
        if not deep and word[0] == "{":
            numbered = numbered or word[1:-1].partition(":")[0] in NUMBERS
        elif not deep and word[0] not in "<]":
            texts.append(word)
    return _spell(words[0]), _spell(words[-1]), max(texts, key=len), numbered


class Outlines:
    """Templates of names by the letters that these may begin with, so that few are asked about a name."""

    def __init__(self, templates: Iterable[str]) -> None:
        self._all = [(i, outline(template)) for i, template in enumerate(templates)]
        self._tried: dict[str, list[tuple[int, Outline]]] = {}

    def find(self, name: str, after: int = -1) -> Iterator[int]:
        """Yield the numbers of those behind ``after`` that may fit a name."""
        letter, has_digit = name[:1], any(map(str.isdigit, name))
        if letter not in self._tried:
            self._tried[letter] = [(i, o) for i, o in self._all if any(s[:1] in ("", letter) for s in o[0])]
        for i, (starts, ends, contains, numbered) in self._tried[letter]:
            fits = i > after and contains in name and (has_digit or not numbered)  # which most do not
            if fits and name.startswith(starts) and name.endswith(ends):
                yield i


def _spell(word: str) -> tuple[str, ...]:
    """Return what a word of a template may be; the empty text where it may be anything."""
    if word[0] == "<":
        return tuple(word[1:-1].split("|"))
    return ("",) if word[0] in "{[]" else (word,)


DOWNLOADS = (
    *(".crdownload", ".opdownload", ".fdmdownload", ".dtapart", ".downloading"),  # browsers
    *(".incomplete", ".filepart", "_.gstmp"),  # huggingface_hub, WinSCP, gsutil and gcloud storage
    *(".!qB", ".!ut", ".bc!", ".jc!", ".xltd"),  # qBittorrent, uTorrent, BitComet, FlashGet, Xunlei
)
"""Endings of the names of files that a download has not finished yet; ``.part`` and ``.partial`` may be of a
save as well.
"""
CONTROLS = (".aria2", ".lftp-pget-status")
"""What downloaders (aria2, lftp) keep beside the file of that name until it is whole: it may have its
size from the beginning.
"""
AGAIN = "finish the download, or download it again"
TEMPORARY = re.compile(
    r"\.tmp\w*$|^\.tmp|\.tmp$|\.dirty(\.\w+)?$|\.part(ial)?$|\.tempstate\d+$"
    rf"|(?:{'|'.join(map(re.escape, DOWNLOADS))})$"
)
"""Names of files that a save or a download has not finished yet."""
_MARKED = re.compile(
    r"(?i:.+[.](tmp|temp|incomplete|partial|part|inprogress)(?:[._-]\w*)?"
    r"|\.?(tmp|incomplete)[._-].*\d.*|.*\d.*[_-](tmp|incomplete|partial))"
)
"""Names of directories of any framework: ``step-20.tmp``, ``step_20.incomplete``, ``tmp-step-20``; without a
number or a dot a word may mean anything.
"""
_BEGUN = re.compile(r"(^|[._-])te?mp([._-]|\d|$)|\.(dirty|part|partial)(\.|$)|tmp-\d+")
"""Names of directories of which no layout knows anything."""


def is_marked(home: str) -> bool:
    """Whether the name of the directory of any framework's save says that it was not renamed yet."""
    return bool(_MARKED.fullmatch(home.rpartition("/")[2]))


def is_begun(directory: str) -> bool:
    """Whether a directory is called so that what lies in it, in no checkpoint, was being written."""
    return directory not in ("tmp", "temp") and _BEGUN.search(directory) is not None
