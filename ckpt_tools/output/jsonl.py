"""A verification -> JSON lines: one per file, one per finding across files, and the summary last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpt_tools.model.answers import Verification
from ckpt_tools.output import json

if TYPE_CHECKING:
    from ckpt_tools.output.failure import Failure
    from ckpt_tools.output.page import View


def render(result: Verification, view: View | None = None) -> str:  # noqa: ARG001 - as every output
    """Every line is an object with a ``type``: file, finding or summary. A text without its summary line was
    cut short.
    """
    return "".join(f"{line}\n" for line in _lines(result))


def failed(failure: Failure, view: View | None = None) -> str:  # noqa: ARG001 - as every output
    """The error on one line."""
    return f"{json.line(json.failed(failure))}\n"


def _lines(result: Verification) -> Iterator[str]:
    for entry in result.files:
        yield json.line({"type": "file", **json.file(entry)})
    for finding in result.findings:
        yield json.line({"type": "finding", **json.finding(finding, across=True)})
    yield json.line({"type": "summary", **json.head(result)})
