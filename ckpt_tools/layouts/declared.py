"""Layouts that ``layouts/data/FILE.toml`` declares; code that only one framework needs is a function in a
module of ``layouts``, which passes it to ``declare``.

``pieces`` is a text with one piece per line, ``NAME ROLE TEMPLATE WORD…``. A line ``DIRECTORY @SET WORD…``
stands for all pieces of a set, below this directory ("." for none); ``@FILE.SET`` is a set of another file. A
word is a format, the value of a field of ``Piece``, or ``KEY=TEXT`` for a field of ``Content``. Behind a set,
``KEY=TEXT`` replaces ``(KEY)`` in its lines, and ``mark=TEXT`` is appended to the names of its pieces.
``deep=1-6`` makes six pieces: ``#`` becomes a number, and ``…`` as many directories. ``[text]`` has more
texts for ``(KEY)``; ``[homes]`` has lists of directories, each with a mark, for a word in the place of
DIRECTORY. ``check`` has options of ``check_steps``, ``borrowed`` the counters for ``find_foreign``, and
``[[LAYOUT.lost]]`` what a save lacks that ``has`` other files (``Lack``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache, partial
from typing import Any

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import check_steps, find_foreign, read_steps
from ckpt_tools.layouts.common.layout import (
    Beside,
    Compared,
    Complete,
    Counting,
    Layout,
    Purpose,
    Ranks,
    Tracker,
    find_all,
    make_resume,
    name_home,
    read_fitting,
    read_last_name,
    read_number,
)
from ckpt_tools.layouts.common.lost_files import Lack, find_lacks
from ckpt_tools.layouts.common.piece import JSON, TORCH, Changes, Claim, Content, Piece, Readers, Stage, Where
from ckpt_tools.layouts.common.templates import DATES
from ckpt_tools.model.part import Kind
from ckpt_tools.model.tables import read_table

_ENUMS: Mapping[type[Enum], str]
_ENUMS = {Claim: "claim", Stage: "stage", Changes: "changes", Where: "where", Kind: "kind"}
_WORDS: Mapping[str, tuple[str, Any]] = {
    **{one.name.lower().replace("_", "-"): (field, one) for of, field in _ENUMS.items() for one in of},
    "optional": ("required", False),
    "required": ("required", True),
    "not-loaded": ("loaded", False),
    "unasked": ("unasked", True),
}
_READERS = ("own", "shared", "sharded", "single", "survivable", "everyone-saves")
_FORMATS = {"torch": TORCH, "json": JSON}
_TRACKERS: Mapping[str, Mapping[str, Any]] = {
    "number": {"read": read_number},
    "name": {"read": read_last_name, "name": name_home},
}
"""Ways to read a tracker file, and what such a tracker says when it names a checkpoint."""
_TABLES = {"complete": Complete, "counting": Counting, "ranks": Ranks, "beside": Beside}


@cache
def read_data(file: str) -> dict[str, Any]:
    """Return the tables of ``layouts/data/FILE.toml``, with each ``(KEY)`` replaced by its text."""
    data = read_table("ckpt_tools.layouts", f"data/{file}.toml")
    text = dict[str, str]()
    for key, value in data.get("text", {}).items():
        text[key] = _fill(value, text)
    for table in data.values():
        if "pieces" in table:
            table["pieces"] = _fill(table["pieces"], text)
    sets = {name: _fill(rows, text) for name, rows in data.get("sets", {}).items()}
    homes = {name: [_fill(home, text) for home in of] for name, of in data.get("homes", {}).items()}
    return {**data, "text": text, "sets": sets, "homes": homes}


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with each ``(KEY)`` replaced by its value, and ``(FILE.KEY)`` by that text of a FILE."""

    def look_up(m: re.Match[str]) -> str:
        return str((read_data(m[1][:-1])["text"] if m[1] else values).get(m[2], m[0]))

    return re.sub(r"\((\w+\.)?(\w+)\)", look_up, text)


def read_pieces(file: str, text: str) -> list[Piece]:
    """Return the pieces that the lines of a text declare. Raise KeyError for an unknown set."""
    found = list[Piece]()
    for first, second, *words in filter(None, map(str.split, text.splitlines())):
        if first == "#":
            continue
        if second[0] != "@":
            found += _read_row(first, second, *words)
            continue
        other, _, name = second[1:].rpartition(".")
        given = dict(word.split("=", 1) for word in words if "=" in word)
        changed = _read_words([word for word in words if "=" not in word])
        pieces = read_pieces(other or file, _fill(read_data(other or file)["sets"][name], given))
        for home in read_data(file)["homes"].get(first, [first]):
            directory, _, end = home.partition(" ")
            above, mark = "" if directory == "." else f"{directory}/", given.get("mark", "") + end
            found += [replace(p, name=p.name + mark, template=above + p.template, **changed) for p in pieces]
    return found


def _read_row(name: str, role: str, template: str, *words: str) -> list[Piece]:
    """Return the piece of one line, or its several pieces if the last word is ``deep=LEAST-MOST``."""
    if not words or not words[-1].startswith("deep="):
        return [Piece(name, role, template, **_read_words(words))]
    least, most = map(int, words[-1].removeprefix("deep=").split("-"))
    fields = _read_words(words[:-1])
    paths = {n: template.replace("…", "{name}/" * n).removesuffix("/") for n in range(least, most + 1)}
    return [Piece(name.replace("#", str(n)), role, path, **fields) for n, path in paths.items()]


def _read_words(words: Sequence[str]) -> dict[str, Any]:
    """Return the fields of ``Piece`` that the words of a line set."""
    fields, readers, content = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for word in words:
        key, _, value = word.partition("=")
        if word in _WORDS:
            fields |= dict([_WORDS[word]])
        elif word in _READERS:
            readers[word.replace("-", "_")] = True
        elif key == "over":
            readers["replicated_over"] = tuple(value.split(","))
        elif word == "tells-step":
            content["step"] = True
        elif key in ("state-told", "tensors-in"):
            content[key.replace("-", "_")] = tuple(value.split(","))
        elif value:
            content[key.replace("-", "_")] = value.encode() if key == "state-word" else value
        else:
            fields["formats"] = (*fields.get("formats", ()), *_FORMATS.get(word, (word,)))
    if readers:
        readers.pop("own", None)
        fields["readers"] = Readers(**readers)
    return {**fields, "content": Content(**content)} if content else fields


def declare(file: str, name: str, **given: Any) -> Layout:
    """Return the layout ``name`` of ``data/FILE.toml``; ``given`` are its other fields, and more checks."""
    table = _freeze(read_data(file)[name])
    made = {
        "pieces": tuple(read_pieces(file, table.pop("pieces", ""))),
        "resume": make_resume(*table.pop("resume", ()), file=table.pop("resume_file", False)),
    }
    checks = [partial(check_steps, **options) for options in table.pop("check", ())]
    if keys := table.pop("borrowed", None):
        checks.append(partial(find_foreign, keys=keys))
    lacks = tuple(Lack(**options) for options in table.pop("lost", ()))
    finders: dict[str, list[Any]] = {"check": checks, "lost": [partial(find_lacks, lacks)] if lacks else []}
    for field, own in finders.items():
        if found := [*own, given.pop(field)] if field in given else own:
            made[field] = find_all(*found)
    if steps := table.pop("steps", None):
        made["steps"] = partial(read_steps, **steps)
    if tracker := table.pop("tracker", None):
        functions = _TRACKERS[tracker["read"]]
        if pattern := tracker.pop("fits", None):
            functions = {**functions, "read": partial(read_fitting, pattern)}
        made["tracker"] = Tracker(**{**tracker, **functions})
    made |= {field: kind(**table.pop(field)) for field, kind in _TABLES.items() if field in table}
    for field, enum in (("compared", Compared), ("purpose", Purpose)):
        if field in table:
            made[field] = enum[table.pop(field).upper()]
    return Layout(**{"name": name, **made, **table, **given})


def _freeze(value: Any) -> Any:
    """Return a value of a TOML file with tuples in place of lists, and its regular expressions compiled."""
    if isinstance(value, list):
        return tuple(map(_freeze, value))
    if not isinstance(value, dict):
        return value
    fields = {key: _freeze(item) for key, item in value.items()}
    for key in fields.keys() & {"dated", "written", "shares"}:
        fields[key] = re.compile(fields[key].replace("{date}", DATES))
    if "listed" in fields:
        fields["listed"] = fields["listed"][0], re.compile(fields["listed"][1])
    return fields
