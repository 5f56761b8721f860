"""The starts of a root -> a table, or JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ckpt_tools import __version__
from ckpt_tools.output.json import absolute, dump
from ckpt_tools.output.page import PLAIN, Page, View, relative
from ckpt_tools.output.words import plural, span

if TYPE_CHECKING:
    from ckpt_tools.job.starts import History, Start


def render(result: History, view: View = PLAIN) -> str:
    """Every start in a line, the last one first, and whether the same one is made again and again."""
    page = Page(view)
    rows = [
        (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(s.decided_at)), *_words(s, result.root))
        for s in page.first(result.starts)
    ]
    if rows:
        page.table(
            ("when", "resumed from", "step", "lost", "passed over", "job"),
            rows,
            right=("step",),
            below=("passed over", "resumed from"),
        )
    page.text("")
    page.text(f"{plural(len(result.starts), 'start')} of {result.root}")
    if result.repeats > 1:
        page.text(f"the last {result.repeats} in a row resumed from the same checkpoint")
    if result.damaged:
        page.text(f"{plural(result.damaged, 'line')} of the history could not be read")
    return page.done()


def _words(s: Start, root: str) -> tuple[str, str, str, str, str]:
    lost = [f"{s.lost_steps:,} steps"] if s.lost_steps else []
    lost += [span(s.lost_seconds)] if s.lost_seconds else []
    passed = "; ".join(f"{relative(p.path, root)}: {', '.join(p.codes)}" for p in s.passed[:4])
    more = f" and {len(s.passed) - 4} more" if len(s.passed) > 4 else ""
    where = "nothing" if s.path is None else relative(s.path, root)
    return where, "" if s.step is None else f"{s.step:,}", ", ".join(lost), passed + more, s.job or ""


def json(result: History) -> str:
    """The schema ckpt-tools/history/v1 (docs/json.md)."""
    return dump(
        {
            "schema": "ckpt-tools/history/v1",
            "tool_version": __version__,
            "root": absolute(result.root),
            "repeats": result.repeats,
            "damaged": result.damaged,
            "starts": [_start(s) for s in result.starts],
        }
    )


def _start(s: Start) -> dict[str, object]:
    return {
        "decided_at": s.decided_at,
        "path": s.path,
        "step": s.step,
        "kind": s.kind,
        "job": s.job,
        "host": s.host,
        "lost_steps": s.lost_steps,
        "lost_seconds": s.lost_seconds,
        "passed": [{"path": p.path, "step": p.step, "codes": list(p.codes)} for p in s.passed],
    }
