"""A document -> its page: one file with its data, its scripts and its styles, and nothing from elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from ckpt_tools.errors import UsageError
from ckpt_tools.output.report.columns import packed
from ckpt_tools.output.words import printable

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
