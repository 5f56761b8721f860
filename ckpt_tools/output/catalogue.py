"""What ckpt knows (finding codes, formats, layouts) -> tables and pages for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from ckpt_tools.findings import CODES
from ckpt_tools.output.page import PLAIN, STYLE, Page, View, known
from ckpt_tools.planning.rules.catalogue import find_rules
from ckpt_tools.planning.rules.rule import Effect, Rule

MEANING = {
    "error": "the file or checkpoint is broken and is never chosen; 'ckpt verify' exits 1",
    "warning": "it is suspect and may be chosen; 'ckpt verify' exits 0, with --strict 1",
    "note": "it stays ok",
}
"""What a severity does."""
EFFECT = {
    Effect.NOTE: "the choice stays",
    Effect.WARN: "the choice stays, with a warning",
    Effect.REJECT: "the next candidate is tried",
    Effect.ASK: "exit 2",
    Effect.STOP: "exit 3, 4, 5 or 6",
}
"""What a rule does, at most."""


def table(entries: Sequence[Mapping[str, object]], columns: Sequence[str], view: View = PLAIN) -> str:
    page = Page(view)
    rows = [row for e in entries for row in zip_longest(*(_texts(e[c]) for c in columns), fillvalue="")]
    dull = dict.fromkeys((c.replace("_", " ") for c in columns), known(None))
    page.table([c.replace("_", " ") for c in columns], rows, dull=dull)
    return page.done()


def pages(entries: Sequence[Mapping[str, object]], fields: Sequence[str], view: View = PLAIN) -> str:
    """Where one row per entry would be too long: the name of each, then its fields below each other."""
    page = Page(view)
    for entry in entries:
        page.text(str(entry["name"]), "bold")
        for field in fields:
            texts = _texts(entry[field]) if entry[field] else []
            if field == "suffixes" and texts:
                texts = [", ".join(texts)]
            for i, text in enumerate(filter(None, texts)):
                page.text(f"  {field if not i else '':<10} {text}")
        page.text("")
    return page.done()


def _texts(value: object) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else [known(value)]


def code(name: str, view: View = PLAIN) -> str:
    c = CODES[name]
    page = Page(view)
    page.text(f"{c.id}: {c.title}", "bold")
    severity = f"{c.severity}, unless the finding itself says otherwise ({MEANING[str(c.severity)]})"
    page.text(f"  severity: {severity}", STYLE[str(c.severity)])
    page.text(f"  what to do: {c.hint}")
    page.text(f"  since: {c.since}")
    page.text(f"  rules: {', '.join(r.id for r in find_rules(name))}")
    return page.done()


def rule(r: Rule, view: View = PLAIN) -> str:
    page = Page(view)
    page.text(r.id, "bold")
    for line in r.why.splitlines():
        page.text(f"  {line}")
    page.text(f"  effect: {r.effect} ({EFFECT[r.effect]})")
    page.text(f"  what settles it: {r.answer}")
    if codes := r.codes:
        page.text(f"  codes: {', '.join(codes)}")
    return page.done()
