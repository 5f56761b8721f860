"""What was sealed -> a table of checkpoints and what kept the others from it, or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckpt_tools import __version__
from ckpt_tools.model.finding import Finding
from ckpt_tools.output.json import absolute, dump, finding
from ckpt_tools.output.page import PLAIN, Page, View, relative
from ckpt_tools.output.words import plural, size, span

if TYPE_CHECKING:
    from ckpt_tools.model.seal import SealedOne, Sealing


def render(result: Sealing, view: View = PLAIN) -> str:
    """Every checkpoint in a line, what is wrong with some, and the sums."""
    page = Page(view)
    root = result.roots[0]
    listed = page.first(result.checkpoints)
    if listed:
        rows = [
            (one.state, one.label, plural(one.files, "file"), size(one.size), relative(one.path, root))
            for one in listed
        ]
        page.table(("state", "checkpoint", "files", "size", "where"), rows, right=("size",), below=("where",))
    page.findings(_findings(result), root)
    states = dict.fromkeys(one.state for one in result.checkpoints)
    counts = ", ".join(f"{result.count(state):,} {state}" for state in states) or "nothing recognised"
    page.text("")
    page.text(counts)
    page.text(f"{size(result.bytes_read)} read in {span(result.seconds)}", "dim")
    return page.done()


def _findings(result: Sealing) -> list[Finding]:
    of_each = [replace(f, path=f.path or one.path) for one in result.checkpoints for f in one.findings]
    return [*result.findings, *of_each]


def json(result: Sealing) -> str:
    """The schema ckpt-tools/sealing/v1 (docs/json.md)."""
    from ckpt_tools.model.seal import STATES

    return dump(
        {
            "schema": "ckpt-tools/sealing/v1",
            "tool_version": __version__,
            "roots": [absolute(root) for root in result.roots],
            "dry_run": result.dry_run,
            "summary": {
                **{state: result.count(state) for state in STATES},
                "bytes": sum(one.size for one in result.checkpoints),
                "bytes_read": result.bytes_read,
                "seconds": result.seconds,
            },
            "checkpoints": [_one(one) for one in result.checkpoints],
            "findings": [finding(f, across=True) for f in result.findings],
        }
    )


def _one(one: SealedOne) -> dict[str, object]:
    return {
        "path": absolute(one.path),
        "seal": absolute(one.seal),
        "state": one.state,
        "checkpoint": one.label,
        "files": one.files,
        "bytes": one.size,
        "findings": [finding(f, across=True) for f in one.findings],
    }
