"""A document -> its page: one file with its data, its scripts and its styles, and nothing from elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from ckpt_tools.errors import UsageError
from ckpt_tools.output.words import printable

# ---- Columns of a table in little text: what neighbours have in common is written once.
#
# The page has 80,000 files in some hundred kilobytes; ``scripts/columns.js`` is the way back.


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


LIBRARY = "vendor/echarts.min.js"
SCRIPTS = (
    "names",
    "columns",
    "elements",
    "charts",
    "timeline",
    "heatmap",
    "damage",
    "tables",
    "sections",
    "start",
)
"""Files of ``scripts/``, in the order in which they need each other."""
_STEERS_HTML = re.compile("[<>&\u2028\u2029]")


def possible() -> bool:
    """Whether what a page is made with is installed."""
    return find_spec("jinja2") is not None


def require() -> None:
    """Raise UsageError where no page can be made, before what is on it is known."""
    _jinja()


def render(document: Mapping[str, Any]) -> str:
    """The page of a document of ``data.document``. Raises UsageError where Jinja is not installed."""
    jinja = _jinja()
    env = jinja.Environment(autoescape=True, undefined=jinja.StrictUndefined)
    scripts = [_read(LIBRARY), _own_scripts()]
    style = _read("report.css")
    made: str = env.from_string(_read("template.html")).render(
        title=printable(f"ckpt report: {', '.join(document['roots'])}"),
        sentence=printable(document["next"]["sentence"]),
        data=_in_html(embedded(document)),
        scripts=scripts,
        style=style,
        policy=_policy(scripts, style),
    )
    return made


def _jinja() -> Any:
    try:
        import jinja2
    except ImportError as e:
        hint = "pip install 'ckpt-tools[report]'"
        raise UsageError("a page is made by Jinja2, which is not installed", hint) from e
    return jinja2


def embedded(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document as the page holds it: its columns packed."""
    files_of = {name: packed(column) for name, column in document["files"].items()}
    return {**document, "files": files_of}


def _own_scripts() -> str:
    body = "\n".join(_read(f"scripts/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}\n}})();\n'


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _in_html(value: object) -> str:
    """JSON that nothing in it can end: not the script element, nor a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return _STEERS_HTML.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def _policy(scripts: list[str], style: str) -> str:
    """Only what is in this page is run or shown, and nothing is fetched or sent."""
    allowed = " ".join(map(_digest, scripts))
    rest = "img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; {rest}"


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
