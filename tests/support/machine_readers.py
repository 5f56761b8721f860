"""What reads the formats for machines, each by its own schema or tool: a text that one of these takes is one that
a CI server, a code scanner or a spreadsheet takes.
"""

from __future__ import annotations

import csv
import io
import json
import re
from functools import cache
from typing import Any
from urllib.parse import unquote_to_bytes

from jsonschema import Draft4Validator
from lxml import etree
from markdown_it import MarkdownIt
from places import SUPPORT

SCHEMAS = SUPPORT / "schemas"
COMMAND = re.compile(r"::(error|warning|notice) ?([^\n:]*)::(.*)")


def junit(text: str) -> Any:
    """The suite; valid by the XSD of Jenkins' xunit plug-in, with counts that are those of its cases."""
    suite = etree.fromstring(text.encode())
    _xsd().assertValid(suite)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(name)) == len(suite.findall(f"testcase/{tag}"))
    assert int(suite.get("tests")) == len(suite.findall("testcase")) > 0
    return suite


@cache
def _xsd() -> Any:
    return etree.XMLSchema(etree.parse(SCHEMAS / "junit-10.xsd"))


@cache
def _sarif_schema() -> Draft4Validator:
    return Draft4Validator(json.loads((SCHEMAS / "sarif-2.1.0-rtm.4.json").read_text()))


def sarif(text: str) -> Any:
    """The one run; valid by the schema of SARIF 2.1.0."""
    assert text.isascii()
    log = json.loads(text)
    text.encode().decode("utf-8")
    for value in strings(log):
        value.encode()  # no lone surrogates, which other readers of JSON refuse
    _sarif_schema().validate(log)
    [run] = log["runs"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    return run


def strings(value: Any) -> Any:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def file_of(result: Any, home: bytes) -> bytes:
    """The file that a result of SARIF is about."""
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    if "uriBaseId" in artifact:
        return home + b"/" + unquote_to_bytes(artifact["uri"])
    assert artifact["uri"].startswith("file:///")
    return unquote_to_bytes(artifact["uri"].removeprefix("file://"))


def github(text: str) -> list[tuple[str, dict[str, str], str]]:
    """What the runner of GitHub Actions makes of a log (actions/runner, ActionCommand.cs): level, properties and
    message of each command; the last line may be plain.
    """
    lines = text.split("\n")
    assert lines.pop() == ""
    found = []
    for number, line in enumerate(lines):
        match = COMMAND.fullmatch(line)
        plain = not line.lstrip().startswith("::") and "##[" not in line
        assert match or (number == len(lines) - 1 and plain), line
        if match:
            pairs = (pair.partition("=") for pair in match[2].split(",") if pair)
            properties = {key: _unescaped(value, ("%2C", ","), ("%3A", ":")) for key, _, value in pairs}
            found.append((match[1], properties, _unescaped(match[3])))
    return found


def _unescaped(text: str, *more: tuple[str, str]) -> str:
    for code, meant in (("%0D", "\r"), ("%0A", "\n"), *more, ("%25", "%")):
        text = text.replace(code, meant)
    return text


def rows(text: str) -> list[dict[str, str]]:
    """The rows of a table; each on one line, none of its cells a formula."""
    read = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    assert len(text.splitlines()) == len(read) + 1
    for row in read:
        assert None not in row
        assert not [cell for cell in row.values() if cell[:1] in ("=", "+", "-", "@", "\t", "\r")]
    return read


def markdown(text: str) -> list[list[list[str]]]:
    """The tables, as rows of cells in plain text; nothing in the page is HTML, a link, a picture or emphasis
    that is not ours.
    """
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    tables: list[list[list[str]]] = []
    for token in tokens:
        assert token.type not in ("html_block", "fence", "code_block", "blockquote_open"), token
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type == "inline":
            inside = token.children or []
            kinds = {child.type for child in inside}
            assert kinds <= {"text", "code_inline", "strong_open", "strong_close", "text_special"}, token
            if token.level >= 4 and tables:
                tables[-1][-1].append("".join(child.content for child in inside))
    for table in tables:
        assert len({len(row) for row in table}) == 1
    return tables
