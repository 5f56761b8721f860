"""The starts of a root -> a table, or JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ckpt_tools.output.json import document, fields
from ckpt_tools.output.page import PLAIN, Page, View, cut_root
from ckpt_tools.output.words import plural, span

if TYPE_CHECKING:
    from ckpt_tools.job.starts import History


def render(result: History, view: View = PLAIN) -> str:
    page, root, rows = Page(view), result.root, []
    for s in page.view.first(result.starts):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(s.decided_at))
        where = "nothing" if s.path is None else cut_root(s.path, root)
        lost = [f"{s.lost_steps:,} steps"] if s.lost_steps else []
        lost += [span(s.lost_seconds)] if s.lost_seconds else []
        skipped = "; ".join(f"{cut_root(p.path, root)}: {', '.join(p.codes)}" for p in s.passed[:4])
        skipped += f" and {len(s.passed) - 4} more" if len(s.passed) > 4 else ""
        step = "" if s.step is None else f"{s.step:,}"
        rows.append((when, where, step, ", ".join(lost), skipped, s.job or ""))
    headers = ("when", "resumed from", "step", "lost", "skipped", "job")
    page.table(headers, rows, right=("step",), below=("skipped", "resumed from"))
    page.text(f"{plural(len(result.starts), 'start')} of {root}", gap=True)
    if result.repeats > 1:
        page.text(f"the last {result.repeats} in a row resumed from the same checkpoint")
    if result.damaged:
        page.text(f"{plural(result.damaged, 'line')} of the history could not be read")
    return page.done()


def json(result: History) -> str:
    starts = [
        {
            **fields(s, "decided_at", "path", "step", "kind", "job", "host", "lost_steps", "lost_seconds"),
            "passed": [{"path": p.path, "step": p.step, "codes": list(p.codes)} for p in s.passed],
        }
        for s in result.starts
    ]
    return document("history", {**fields(result, "root", "repeats", "damaged"), "starts": starts})
