"""A guess at layouts -> the tables of ckpt.toml that describe them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from ckpt_tools.layouts.guess import ONCE, WHEN, WHOSE, Guess, GuessedPiece

_ARGUMENTS = '# resume_args = ["--resume", "{path}"]   # what the plan tells your trainer'
_ROLES = 'role: "model", "optimizer", "rng", or a word of your own; a save has a file of each piece'


def render(
    guessed: Guess, names: Iterator[str], trackers: Sequence[Mapping[str, str]] = (), table: str = "layout"
) -> str:
    """Return the tables ``[[layout]]`` and ``[[layout.piece]]`` of a guess."""
    lines: list[str] = []
    for pieces, told in zip(guessed.layouts, trackers or [{}] * len(guessed.layouts), strict=True):
        lines += ["", f"[[{table}]]", f'name = "{next(names)}"']
        lines += [f"{key} = {json.dumps(said, ensure_ascii=False)}" for key, said in told.items()]
        lines.append(f"# {_ROLES}" if len(pieces) > 1 else _ARGUMENTS)
        for p in pieces:
            lines += ["", f"[[{table}.piece]]", *_table(p, here=not any(q.fields & WHEN for q in pieces))]
    if guessed.left_out:
        lines += ["", f"# in no piece: {_listed(guessed.left_out)}"]
    return "\n".join(lines[1:]) + "\n"


def _table(p: GuessedPiece, *, here: bool) -> Iterator[str]:
    yield f"# {_listed(p.paths)}"
    yield from (f"# {note}" for note in p.notes)
    yield f"template = {json.dumps(p.template, ensure_ascii=False)}"
    yield f"role = {json.dumps(p.role)}"
    own = "sharded = true   # no rank loads another's file"
    yield own if p.fields & WHOSE else "shared = true   # every rank loads it"
    if not p.fields & (WHEN | ONCE) and here:
        yield "here = true   # the files of its directory are one save"


def _listed(paths: Sequence[str]) -> str:
    return f"{len(paths):,} file{'s' if len(paths) > 1 else ''}, such as {json.dumps(paths[0])[1:-1]}"
