"""``tree/several-runs``: below ROOT are several runs that training may go on from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from posixpath import dirname
from shlex import quote

from ckpt_tools.discovery.completeness import listed
from ckpt_tools.errors import UsageError
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.facts import RunFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule

_FEW = 8
"""Runs of which the flags that name them are printed."""


def find_runs(runs: Sequence[RunFacts]) -> list[RunFacts]:
    """Return the runs that training can go on from. What holds no state of training is none beside one that
    does, and a lone run of dying gasps belongs to the lone periodic one.
    """
    own = [r for r in runs if not r.of_replica]
    states = [r for r in own if r.states and not r.kinds <= {Kind.RELEASE, Kind.BEST}]
    keepers = [r for r in states if r.keeps]
    return [r for r in states if not any(_keeps(o, r) for o in keepers)] or own


def _keeps(framework: RunFacts, r: RunFacts) -> bool:
    """Return whether a run is what a framework keeps beside the state that it goes on from, and no later."""
    beside = {*r.places, *map(dirname, r.places)}
    return r.layout in framework.keeps and framework.places <= beside and r.newest_ns <= framework.newest_ns


def check(runs: Sequence[RunFacts]) -> Iterator[Hit]:
    """Yield the question which of several runs is meant."""
    own = find_runs(runs)
    gasps = [r for r in own if r.kinds == {Kind.DYING_GASP}]
    if len(own) < 2 or (len(own) == 2 and len(gasps) == 1):
        return
    yield Hit("", listed((r.layout, r.name) for r in own), hint=name_one(own))


def find_no_run(root: str, asked: Selection, saves: Sequence[Checkpoint]) -> Iterator[Hit]:
    """Yield that a run is not there that was named: a misspelt one looks like one that is new."""
    flags = {"--run": asked.run, "--prefix": asked.prefix, "--layout": asked.layout}
    requested = " ".join(f"{flag} {value}" for flag, value in flags.items() if value is not None)
    if asked.allow_none and asked.allow_missing:
        text = f"nothing belongs to {requested}: this is taken for a first launch (--allow missing)"
        yield Hit(root, text)
        return
    runs = dict.fromkeys((c.layout, c.run) for c in saves)
    there = f"it holds {listed(runs)}" if runs else "it holds other files of checkpoints ('ckpt ls')"
    text = f"nothing in {root} belongs to {requested}: {there}"
    hint = "correct it; for the first launch of a new run beside others say --allow none,missing"
    yield Hit(root, text, hint, error=UsageError)


def name_one(runs: Sequence[RunFacts]) -> str:
    """Return the flags that name each run; none is offered that may be the part of one rank: names that are
    alike but for a number may be those of ranks that no layout declares.
    """
    names, layouts = sorted({r.name or "." for r in runs}), {r.layout for r in runs}
    alike = len({re.sub("[0-9]+", "", name) for name in names}) < len(names)
    flags = ["--run RUN"] * (len(names) > 1) + ["--layout LAYOUT"] * (len(layouts) > 1)
    if alike or len(runs) > _FEW or not all(r.named for r in runs):
        return f"say which one with {' and '.join(flags)}"
    each = []
    for r in sorted(runs, key=lambda r: (r.name, r.layout)):
        said = [f"--run {quote(r.name or '.')}"] * (len(names) > 1)
        each.append(" ".join([*said, *([f"--layout {r.layout}"] * (len(layouts) > 1))]))
    return f"say which one: {', '.join(each)}"


RULE = Rule(
    id="tree/several-runs",
    code="missing-run",
    effect=Effect.ASK,
    answer="--run NAME",
    why="""\
Saves of one layout in one directory are one run; the path of that directory below ROOT is its name. More
than one has saves that training can go on from, or the run that was named is not there. Which one
continues is known to its owner only. Exports, the best so far and what a framework keeps beside its
states are no runs beside one, nor is a lone run of dying gasps beside the lone periodic one.
For: sweeps and repeated experiments that save below one directory.
""",
    check=check,
)
