"""What ckpt knows (finding codes, formats, layouts) or guesses -> tables, pages, lines of ckpt.toml."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from ckpt_tools.findings import CODES
from ckpt_tools.layouts.guess import ONCE, WHEN, WHOSE, Guess
from ckpt_tools.output.page import PLAIN, Page, View, to_cell
from ckpt_tools.planning.rules.catalogue import BY_CODE
from ckpt_tools.planning.rules.rule import Effect, Rule

MEANING = {
    "error": "the file or checkpoint is broken and is never chosen; 'ckpt verify' exits 1",
    "warning": "it is suspect and may be chosen; 'ckpt verify' exits 0, with --strict 1",
    "note": "it stays ok",
}
"""What a finding of each severity does to the verdict and to the exit code of ``ckpt verify``."""
EFFECT = {
    Effect.NOTE: "the choice stays",
    Effect.WARN: "the choice stays, with a warning",
    Effect.REJECT: "the next candidate is tried",
    Effect.ASK: "exit 2",
    Effect.STOP: "exit 3, 4, 5 or 6",
}
"""The strongest effect that a rule has on the choice of ``ckpt plan``."""


def table(entries: Sequence[Mapping[str, object]], columns: Sequence[str], view: View = PLAIN) -> str:
    """Return a table with the fields ``columns`` of each entry; a list in a field has a row per element."""
    page = Page(view)
    rows = [row for e in entries for row in zip_longest(*(_list_texts(e[c]) for c in columns), fillvalue="")]
    dull = dict.fromkeys((c.replace("_", " ") for c in columns), to_cell(None))
    page.table([c.replace("_", " ") for c in columns], rows, dull=dull)
    return page.done()


def list_blocks(entries: Sequence[Mapping[str, object]], fields: Sequence[str], view: View = PLAIN) -> str:
    """Return a block per entry, for entries too long for a table row: its name, then a line per field."""
    page = Page(view)
    for entry in entries:
        page.text(str(entry["name"]), "bold")
        for field in fields:
            texts = _list_texts(entry[field]) if entry[field] else []
            if field == "suffixes" and texts:
                texts = [", ".join(texts)]
            for i, text in enumerate(filter(None, texts)):
                page.text(f"  {field if not i else '':<10} {text}")
        page.text("")
    return page.done()


def _list_texts(value: object) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else [to_cell(value)]


def code(name: str, view: View) -> str:
    c = CODES[name]
    severity = f"{c.severity}, unless the finding itself says otherwise ({MEANING[str(c.severity)]})"
    entry = {"severity": severity, "what to do": c.hint, "since": c.since, "rules": BY_CODE[name]}
    return list_blocks([{"name": f"{c.id}: {c.title}", **entry}], tuple(entry), view)


def rule(r: Rule, view: View) -> str:
    effect, codes = f"{r.effect} ({EFFECT[r.effect]})", ", ".join(r.codes)
    entry = {"why": r.why.splitlines(), "effect": effect, "settled by": r.answer, "codes": codes}
    return list_blocks([{"name": r.id, **entry}], tuple(entry), view)


_ARGUMENTS = '# resume_args = ["--resume", "{path}"]   # what the plan tells your trainer'
_ROLES = 'role: "model", "optimizer", "rng", or a word of your own; a save has a file of each piece'


def render(guessed: Guess, name: str, tracker: Mapping[str, str], table: str = "layout") -> str:
    """Return the TOML of a guess: a table ``[[layout]]``, with a ``[[layout.piece]]`` per piece."""
    lines = [f"[[{table}]]", f'name = "{name}"']
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in tracker.items()]
    lines.append(f"# {_ROLES}" if len(guessed.pieces) > 1 else _ARGUMENTS)
    names_say_when = any(p.fields & WHEN for p in guessed.pieces)
    for p in guessed.pieces:
        lines += ["", f"[[{table}.piece]]", f"# {_count_paths(p.paths)}"]
        lines += (f"# {note}" for note in p.notes)
        lines.append(f"template = {json.dumps(p.template, ensure_ascii=False)}")
        lines.append(f"role = {json.dumps(p.role)}")
        own = "sharded = true   # no rank loads another's file"
        lines.append(own if p.fields & WHOSE else "shared = true   # every rank loads it")
        if not p.fields & ONCE and not names_say_when:
            lines.append("here = true   # the files of its directory are one save")
    if guessed.left_out:
        lines += ["", f"# in no piece: {_count_paths(guessed.left_out)}"]
    return "\n".join(lines) + "\n"


def _count_paths(paths: Sequence[str]) -> str:
    return f"{len(paths):,} file{'s' if len(paths) > 1 else ''}, such as {json.dumps(paths[0])[1:-1]}"
