"""``tree/several-runs``: below ROOT are several runs that training may go on from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from posixpath import basename, dirname
from shlex import quote

from ckpt_tools.discovery.completeness import list_runs, name_place
from ckpt_tools.errors import CkptError
from ckpt_tools.layouts import Layouts, Purpose
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of

_FEW = 8
"""How many runs a hint names one by one."""
Runs = Mapping[tuple[str, str], Sequence[Checkpoint]]
"""The finished saves of each run, by its layout and its path below ROOT with the prefix of its files."""


def find_runs(runs: Runs, layouts: Layouts) -> list[tuple[str, str]]:
    """Return runs that training can go on from: no exports, and no files kept beside another's state."""

    def holds_state(run: tuple[str, str]) -> bool:
        pieces = (layouts.piece_of(p) for c in runs[run] for p in c.parts)
        of_models = layouts[run[0]].purpose is Purpose.MODELS
        exports = {Kind.RELEASE} if layouts[run[0]].is_last_resort else {Kind.RELEASE, Kind.BEST}
        only_exports = {c.kind for c in runs[run]} <= exports  # a framework may write its best anywhere
        return not only_exports and (not of_models or any(piece.claim.needs_company for piece in pieces))

    def saves_beside_itself(framework: tuple[str, str], run: tuple[str, str]) -> bool:
        if run[0] not in layouts[framework[0]].beside.layouts:
            return False
        above, above_run = ({dirname(name_place(c)) for c in runs[of]} for of in (framework, run))
        is_later = max(c.mtime_ns for c in runs[run]) > max(c.mtime_ns for c in runs[framework])
        return not is_later and above <= {*above_run, *map(dirname, above_run)}  # beside the run, or above

    # a replica has a directory of its own for files that only it needs
    patterns = {run: layouts[run[0]].beside.shares for run in runs}
    own = [run for run, share in patterns.items() if not (share and share.fullmatch(basename(run[1])))]
    states = list(filter(holds_state, own))
    frameworks = [run for run in states if layouts[run[0]].beside.layouts]
    return [run for run in states if not any(saves_beside_itself(o, run) for o in frameworks)] or own


def ask_which(own: Sequence[tuple[str, str]], runs: Runs, layouts: Layouts, root: str) -> CkptError | None:
    """Return the question which run is meant; None for one run, or one and a run of dying gasps."""
    gasps = [run for run in own if {c.kind for c in runs[run]} == {Kind.DYING_GASP}]
    if len(own) < 2 or (len(own) == 2 and len(gasps) == 1):
        return None
    return error_of(RULE, Hit(root, f"{root} holds {list_runs(own)}", _list_flags(own, layouts)))


def ask_for_run(root: str, asked: Selection, saves: Sequence[Checkpoint]) -> CkptError:
    """Return the question about a run that does not exist: a misspelt name looks like that of a new run."""
    runs = dict.fromkeys((c.layout, c.run) for c in saves)
    content = f"it holds {list_runs(runs)}" if runs else "it holds other files of checkpoints ('ckpt ls')"
    hint = "correct it; for the first launch of a new run beside others add --allow none,missing"
    return error_of(RULE, Hit(root, f"nothing in {root} belongs to {_name_flags(asked)}: {content}", hint))


def describe_new_run(root: str, asked: Selection) -> Finding:
    text = f"nothing belongs to {_name_flags(asked)}: this is taken for a first launch (--allow missing)"
    return finding_of(RULE, Hit(root, text))


def _name_flags(asked: Selection) -> str:
    """Return the flags that select a run, as they were given."""
    flags = {"--run": asked.run, "--prefix": asked.prefix, "--layout": asked.layout}
    return " ".join(f"{flag} {value}" for flag, value in flags.items() if value is not None)


def _list_flags(runs: Sequence[tuple[str, str]], layouts: Layouts) -> str:
    """Return a hint with the flags that name each run; without names if runs may be parts of one save."""
    names, of_runs = {name or "." for _, name in runs}, {layout for layout, _ in runs}
    may_be_parts = len({re.sub("[0-9]+", "", name) for name in names}) < len(names)
    unnamed = may_be_parts or len(runs) > _FEW or any(layouts[layout].is_last_resort for layout in of_runs)
    rows = [("LAYOUT", "RUN")] if unnamed else sorted(runs, key=lambda run: run[::-1])
    by_run, by_layout = len(names) > 1, len(of_runs) > 1
    flags = ([f"--run {quote(run or '.')}"] * by_run + [f"--layout {of}"] * by_layout for of, run in rows)
    return f"choose one{' with' if unnamed else ':'} {', '.join(map(' '.join, flags))}"


RULE = Rule(
    id="tree/several-runs",
    codes=("missing-run",),
    effect=Effect.ASK,
    answer="--run NAME",
    why="""\
Saves of one layout in one directory are one run; the path of that directory below ROOT is its name. More
than one has saves that training can go on from, or the run that was named is not there. Which one
continues is known to its owner only. Exports, the best so far and what a framework keeps beside its
states are no runs beside one, nor is a lone run of dying gasps beside the lone periodic one.
For: sweeps and repeated experiments that save below one directory.
""",
)
