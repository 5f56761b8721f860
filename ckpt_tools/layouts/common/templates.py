"""Path templates, by which a layout says where its files lie, as regular expressions: one for each name in a
path. Also the names of files and directories whose save or download is not done yet: its writer renames them
when it is done, or removes a file beside them.
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
"""Fields that stand for digits. ``of`` is the number of shards, ``world`` the number of ranks, ``node`` the
directory of the process that keeps the file.
"""
RANKS = frozenset((*COORDS, "rank", "world", "node"))
"""Fields whose ranges are gone through number by number: more than six digits are another number (a date, a
process id), and never a rank.
"""
TEXTS = ("prefix", "name", "run")
"""Fields that stand for text without a slash; a ``prefix`` tells runs apart, a ``name`` tells nothing."""
METRIC = "metric"
"""The field that stands for a number with a fraction, such as a loss: its digits tell no step."""
DATE = "date"
"""The field that stands for a day and a time: it tells no step."""
DATES = r"\d{4}[-_.]?\d{2}[-_.]?\d{2}(?:[-_T. ]?\d{2}[-_.]?\d{2}(?:[-_.]?\d{2})?)?"
FIELDS = (*NUMBERS, *TEXTS, METRIC, DATE, "tmp")

TOKENS = re.compile(r"(\{[^}]*\}|\[|\]|<[^>]*>)")
"""The tokens of a template: a field, a bracket, a choice of words."""
_MEANINGLESS = {
    "name": "[^/]+?",
    METRIC: r"\d{1,9}\.\d{1,9}",
    DATE: DATES,
}
"""Fields that may occur several times in a template, and tell nothing."""
_ZEROS = dict.fromkeys(NUMBERS, "0*")
"""What may stand before the second occurrence of a number."""
FIELD = re.compile(r"\{(\w+)(?::0(\d+)d)?\}")
"""A field: its name, and the least number of its digits."""


def compile_template(template: str) -> str:
    """Return a template as a regular expression. Raise ValueError for an unknown field.

    ``{step:07d}`` is at least seven digits (a second ``{step}`` the same number), ``[…]`` is optional,
    ``<a|b>`` one of several words, ``{prefix}`` any text, ``{tmp}`` the literal ``_tmp``.
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
            if name in _MEANINGLESS:
                out.append(_MEANINGLESS[name])
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
    """Return the template of one name as a compiled regular expression, which is kept."""
    return re.compile(compile_template(template))


def read_path(templates: Sequence[str], names: Sequence[str]) -> dict[str, str | None] | None:
    """Return the fields in the names at the end of a path; None if a name does not fit, or two contradict."""
    fields: dict[str, str | None] = {}
    for template, name in zip(templates, names[len(names) - len(templates) :], strict=True):
        if (m := compile_name(template).fullmatch(name)) is None:
            return None
        for field, text in m.groupdict().items():
            if text and (before := fields.get(field)) and before.lstrip("0") != text.lstrip("0"):
                return None
            fields[field] = text or fields.get(field)
    return fields


Outline = tuple[tuple[str, ...], tuple[str, ...], str, bool]
"""A test of a name before its regular expression, which costs a hundred times as much to compile: texts it
may begin and end with, a text that it contains, and whether it has a digit.
"""


@cache
def make_outline(template: str) -> Outline:
    """Return the outline of the template of one name, which compile_template must accept."""
    words = [word for word in TOKENS.split(template) if word] or ["{"]
    deep, numbered, texts = 0, False, [""]
    for word in words:
        deep += (word == "[") - (word == "]")
        if not deep and word[0] == "{":
            numbered = numbered or word[1:-1].partition(":")[0] in NUMBERS
        elif not deep and word[0] not in "<]":
            texts.append(word)
    return _list_texts(words[0]), _list_texts(words[-1]), max(texts, key=len), numbered


class Outlines:
    """Outlines of templates by the first letter of the names that fit, so that few are tried for a name."""

    def __init__(self, templates: Iterable[str]) -> None:
        self._all = [(i, make_outline(template)) for i, template in enumerate(templates)]
        self._tried: dict[str, list[tuple[int, Outline]]] = {}

    def find(self, name: str, after: int = -1) -> Iterator[int]:
        """Yield the indexes, greater than ``after``, of templates that may fit a name."""
        letter, has_digit = name[:1], any(map(str.isdigit, name))
        if letter not in self._tried:
            self._tried[letter] = [(i, o) for i, o in self._all if any(s[:1] in ("", letter) for s in o[0])]
        for i, (starts, ends, contains, numbered) in self._tried[letter]:
            fits = i > after and contains in name and (has_digit or not numbered)  # which most do not
            if fits and name.startswith(starts) and name.endswith(ends):
                yield i


def _list_texts(word: str) -> tuple[str, ...]:
    """Return the texts that a word of a template stands for; ("",) if it may be any text."""
    if word[0] == "<":
        return tuple(word[1:-1].split("|"))
    return ("",) if word[0] in "{[]" else (word,)


DOWNLOADS = (
    *(".crdownload", ".opdownload", ".fdmdownload", ".dtapart", ".downloading"),  # browsers
    *(".incomplete", ".filepart", "_.gstmp"),  # huggingface_hub, WinSCP, gsutil and gcloud storage
    *(".!qB", ".!ut", ".bc!", ".jc!", ".xltd"),  # qBittorrent, uTorrent, BitComet, FlashGet, Xunlei
)
"""Endings of the names of files whose download is not finished; ``.part`` and ``.partial`` may be of a save
as well.
"""
CONTROLS = (".aria2", ".lftp-pget-status")
"""Endings of files that downloaders (aria2, lftp) keep beside the file of that name until it is whole: it may
have its size from the beginning.
"""
AGAIN = "finish the download, or download it again"
TEMPORARY = re.compile(
    r"\.tmp\w*$|^\.tmp|\.tmp$|\.dirty(\.\w+)?$|\.part(ial)?$|\.tempstate\d+$"
    rf"|(?:{'|'.join(map(re.escape, DOWNLOADS))})$"
)
"""Names of files whose save or download is not finished."""
_UNFINISHED_SAVE = re.compile(
    r"(?i:(.+)[.](?:tmp|temp|incomplete|partial|part|inprogress)(?:[._-]\w*)?"
    r"|\.?(?:tmp|incomplete)[._-].*\d.*|(.*\d.*)[_-](?:tmp|incomplete|partial))"
)
"""Names of unfinished directories of any framework: ``step-20.tmp``, ``step_20.incomplete``, ``tmp-step-20``;
without a number or a dot such a word may mean anything. A group has the name without a mark behind it.
"""
_TEMPORARY_DIRECTORY = re.compile(r"(^|[._-])te?mp([._-]|\d|$)|\.(dirty|part|partial)(\.|$)|tmp-\d+")
"""Names of unfinished directories, if no layout knows them."""


def is_marked(home: str) -> bool:
    """Return True if the name of a save's directory, of any framework, says that it was not renamed yet."""
    return bool(_UNFINISHED_SAVE.fullmatch(home.rpartition("/")[2]))


def unmark(name: str) -> str:
    """Return the name that a directory has once the save in it is done (``step_20`` of ``step_20.tmp``)."""
    done = (m := _UNFINISHED_SAVE.fullmatch(name)) and (m[1] or m[2])
    return done.lstrip(".") if done else name


def is_begun(directory: str) -> bool:
    """Return True if a directory that is in no checkpoint has the name of one that was being written."""
    return directory not in ("tmp", "temp") and _TEMPORARY_DIRECTORY.search(directory) is not None
