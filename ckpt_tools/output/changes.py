"""What a command did to a tree, or would do -> a table, or JSON."""

from __future__ import annotations

from shlex import quote

from ckpt_tools.model.answers import Changes
from ckpt_tools.output.json import document, fields, list_findings
from ckpt_tools.output.page import PLAIN, Page, View, cut_root
from ckpt_tools.output.words import plural, size


def render(result: Changes, view: View = PLAIN) -> str:
    page, root = Page(view), result.root
    rows = []
    for c in page.view.first(result.changes):
        where = cut_root(c.path, root) + (f" -> {cut_root(c.to, root)}" if c.to else "")
        rows.append((c.state.replace("-", " "), c.label, plural(c.files, "file"), where, c.why))
    page.table(("state", "checkpoint", "files", "where", "why"), rows, below=("why", "where"))
    page.findings(result.findings, root)
    n, total = len(result.to_do), sum(c.size for c in result.to_do)
    much = f" of {size(total)}" if total else ""
    if result.command == "ls":
        text = f"{plural(n, 'path')} in quarantine"
    elif not n:
        text = "nothing to do: what is listed stays as it is" if result.changes else "nothing to do"
    elif result.applied:
        undo = f": 'ckpt undo {quote(root)} --apply' takes it back"
        back = undo if result.command in ("repair", "quarantine") else ""
        number = "" if result.operation is None else f", operation {result.operation}{back}"
        text = f"{plural(n, 'change')} done{much}{number}"
    else:
        text = f"{plural(n, 'change')}{much} to do: nothing is done without --apply"
    page.text(text, gap=True)
    return page.done()


def json(result: Changes) -> str:
    names = ("path", "state", "why", "to", "checkpoint=label", "files", "bytes=size")
    changes = [fields(c, *names) for c in result.changes]
    about = fields(result, "command", "root", "applied", "operation")
    return document("changes", {**about, "changes": changes, "findings": list_findings(result.findings)})
