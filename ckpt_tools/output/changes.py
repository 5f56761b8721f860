"""What a command did to a tree, or would do -> a table, or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools import __version__
from ckpt_tools.output.json import absolute, dump, finding
from ckpt_tools.output.page import PLAIN, Page, View, relative
from ckpt_tools.output.words import plural, size

if TYPE_CHECKING:
    from ckpt_tools.model.change import Change, Changes


def render(result: Changes, view: View = PLAIN) -> str:
    """Every change in a line, what else is to be known, and what to say to have it done."""
    page = Page(view)
    listed = page.first(result.changes)
    if listed:
        rows = [(c.state, c.label, plural(c.files, "file"), _where(c, result.root), c.why) for c in listed]
        page.table(("state", "checkpoint", "files", "where", "why"), rows, below=("why", "where"))
    page.findings(result.findings, result.root)
    page.text("")
    page.text(_sum(result))
    return page.done()


def _where(c: Change, root: str) -> str:
    where = relative(c.path, root)
    return f"{where} -> {relative(c.to, root)}" if c.to else where


def _sum(result: Changes) -> str:
    n, total = len(result.to_do), sum(c.size for c in result.to_do)
    if result.command == "ls":
        return f"{plural(n, 'path')} in quarantine"
    if not n:
        return "nothing to do: what is listed stays as it is" if result.changes else "nothing to do"
    much = f" of {size(total)}" if total else ""
    if result.applied:
        back = ": 'ckpt undo' takes it back" if result.command in ("repair", "quarantine") else ""
        number = "" if result.operation is None else f", operation {result.operation}{back}"
        return f"{plural(n, 'change')} done{much}{number}"
    return f"{plural(n, 'change')}{much} to do: nothing is done without --apply"


def json(result: Changes) -> str:
    """The schema ckpt-tools/changes/v1 (docs/json.md)."""
    return dump(
        {
            "schema": "ckpt-tools/changes/v1",
            "tool_version": __version__,
            "command": result.command,
            "root": absolute(result.root),
            "applied": result.applied,
            "operation": result.operation,
            "changes": [_change(c) for c in result.changes],
            "findings": [finding(f, across=True) for f in result.findings],
        }
    )


def _change(c: Change) -> dict[str, object]:
    return {
        "path": absolute(c.path),
        "state": c.state,
        "why": c.why,
        "to": absolute(c.to) if c.to else None,
        "checkpoint": c.label,
        "files": c.files,
        "bytes": c.size,
    }
