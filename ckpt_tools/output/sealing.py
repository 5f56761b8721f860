"""What was sealed -> a table of checkpoints and what kept the others from it, or JSON."""

from __future__ import annotations

from ckpt_tools.model.seal import STATES, Sealing
from ckpt_tools.output.json import absolute, document, fields, list_findings
from ckpt_tools.output.page import PLAIN, Page, View, cut_root
from ckpt_tools.output.words import plural, size, span

_WORDS = {"already": "sealed before", "would-seal": "would seal"}


def render(result: Sealing, view: View = PLAIN) -> str:
    page, root = Page(view), result.roots[0]
    rows = []
    for c in page.view.first(result.checkpoints):
        cells = (_WORDS.get(c.state, c.state), c.label, plural(c.files, "file"), size(c.size))
        rows.append((*cells, cut_root(c.path, root)))
    page.table(("state", "checkpoint", "files", "size", "where"), rows, right=("size",), below=("where",))
    own = [f.at(c.path) for c in result.checkpoints for f in c.findings]
    page.findings([*result.findings, *own], root)
    states = dict.fromkeys(c.state for c in result.checkpoints)
    counts = (f"{result.count(state):,} {_WORDS.get(state, state)}" for state in states)
    page.text(", ".join(counts) or "nothing recognised", gap=True)
    page.text(f"{size(result.bytes_read)} read in {span(result.seconds)}", "dim")
    return page.done()


def json(result: Sealing) -> str:
    summary = {
        **{state: result.count(state) for state in STATES},
        "bytes": sum(c.size for c in result.checkpoints),
        "bytes_read": result.bytes_read,
        "seconds": result.seconds,
    }
    checkpoints = [
        {
            **fields(c, "path", "seal", "state", "checkpoint=label", "files", "bytes=size"),
            "findings": list_findings(c.findings),
        }
        for c in result.checkpoints
    ]
    body = {
        "roots": [absolute(root) for root in result.roots],
        "dry_run": result.dry_run,
        "summary": summary,
        "checkpoints": checkpoints,
        "findings": list_findings(result.findings),
    }
    return document("sealing", body)
