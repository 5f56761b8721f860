"""A document -> its page: one file with its data, its scripts and its styles, and nothing from elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from base64 import b64encode
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from ckpt_tools.errors import UsageError
from ckpt_tools.output.page import DEPTHS
from ckpt_tools.output.words import printable

LIBRARY = "vendor/echarts.min.js"
SCRIPTS = (*("names", "elements", "charts", "timeline", "heatmap", "damage", "tables", "sections"), "start")
"""Files of ``scripts/``, in the order in which they need each other."""
_STEERS_HTML = re.compile("[<>&\u2028\u2029]")


def require() -> None:
    """Raise UsageError if no page can be made, before what is on it is known."""
    if find_spec("jinja2") is None:
        hint = "pip install 'ckpt-tools[report]'"
        raise UsageError("a page is made by Jinja2, which is not installed", hint)


def render(document: Mapping[str, Any]) -> str:
    """Return the page of a document of ``data.document``. Raises UsageError where Jinja is not installed."""
    require()
    import jinja2

    env = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    words = f"const DEPTHS = {json.dumps({str(level): text for level, text in DEPTHS.items()})};"
    own = "\n".join([words, *(_read(f"scripts/{name}.js") for name in SCRIPTS)])
    scripts = [_read(LIBRARY), f'"use strict";\n(() => {{\n{own}\n}})();\n']
    style = _read("report.css")
    others = "img-src data: blob:; base-uri 'none'; form-action 'none'"
    allowed = " ".join(map(_digest, scripts))
    # JSON that nothing in it can end: not the script element, nor a comment.
    data = _STEERS_HTML.sub(lambda m: f"\\u{ord(m[0]):04x}", _dump(embed(document)))
    return env.from_string(_read("template.html")).render(
        title=printable(f"ckpt report: {', '.join(document['roots'])}"),
        sentence=printable(document["next"]["sentence"]),
        data=data,
        scripts=scripts,
        style=style,
        # Only what is in this page is run or shown, and nothing is fetched or sent.
        policy=f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; {others}",
    )


def embed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with its columns compressed: 80,000 files take some hundred kilobytes."""
    columns = zlib.compress(_dump(document["files"]).encode(), 9)
    return {**document, "files": b64encode(columns).decode()}


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return a script or style as a Content-Security-Policy names it: by its SHA-256."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
