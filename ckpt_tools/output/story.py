"""A plan -> its story in order: what was considered, why each candidate lost, what was substituted and what
proves it, what was not looked at.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.plan import FileLoad, LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.output.json import outcomes
from ckpt_tools.output.words import plural, printable

_LISTED = 8


def render(plan: LoadPlan) -> str:
    """Plain text, one fact a line, for people; the JSON form of the plan has the same facts."""
    return "".join(f"{printable(line)}\n" for line in _lines(plan))


def _lines(plan: LoadPlan) -> Iterator[str]:
    yield from _candidates(plan)
    yield from _rollback(plan)
    yield from _files(plan)
    yield from _topology(plan)
    yield from _unseen(plan)
    warnings = [f for f in plan.warnings if f.severity is not Severity.NOTE]
    if warnings:
        yield "Warnings"
        yield from (f"  {_said(plan, f)}" for f in warnings)


def _name(plan: LoadPlan, c: Checkpoint) -> str:
    return f"{c.kind} checkpoint {c.label}, {_below(plan, c.path)}"


def _below(plan: LoadPlan, path: str) -> str:
    return os.path.relpath(path, plan.root) if path.startswith(plan.root) else path


def _said(plan: LoadPlan, f: Finding) -> str:
    where = f" ({_below(plan, f.path)}{'' if f.offset is None else f' at byte {f.offset}'})" if f.path else ""
    return f"{f.code}: {f.message}{where}"


def _candidates(plan: LoadPlan) -> Iterator[str]:
    rejected = {id(r.checkpoint): r for r in plan.rejected}
    rows = outcomes(plan)
    yield f"Candidates, best first ({len(rows)})"
    silent = Counter[str]()
    for i, (c, outcome) in enumerate(rows, 1):
        if outcome in ("not looked at", "passed over") and i > _LISTED:
            silent[outcome] += 1
            continue
        yield f"  {i}. {_name(plan, c)}: {outcome}"
        if r := rejected.get(id(c)):
            reasons = sorted((f for f in r.findings if not f.follows), key=lambda f: -f.severity)
            yield from (f"       {_said(plan, f)}" for f in reasons[:_LISTED])
            if len(reasons) > _LISTED:
                yield f"       and {plural(len(reasons) - _LISTED, 'more finding')}"
            yield from (f"       so {f.code}: {f.message}" for f in r.findings if f.follows)
    yield from (f"  and {n} more: {outcome}" for outcome, n in silent.items())
    if not rows:
        yield "  none"


def _rollback(plan: LoadPlan) -> Iterator[str]:
    if plan.rollback:
        back = plan.rollback
        yield "Rollback"
        yield (
            f"  from step {back.origin} to step {back.target} (save interval {back.save_interval}):"
            f" {back.why}"
        )


def _files(plan: LoadPlan) -> Iterator[str]:
    if plan.checkpoint is None:
        return
    own = {r.rank: mine for r in plan.ranks if (mine := [f for f in r.files if not f.substituted])}
    yield "What is loaded"
    if plan.shared:
        yield f"  {plural(len(plan.shared), 'file')} by every rank: {_levels(plan.shared)}"
        yield from (f"  {_below(plan, f.path)}: {f.reason}" for f in plan.shared if f.reason)
    if own:
        theirs = list({f.path: f for mine in own.values() for f in mine}.values())
        who = f"{plural(len(own), 'rank')} {'loads' if len(own) == 1 else 'load'}"
        yield (
            f"  {who} {plural(len(theirs), 'file')} of {'its' if len(own) == 1 else 'their'} own:"
            f" {_levels(theirs)}"
        )
    for r in plan.ranks:
        for f in r.files:
            if f.substituted:
                yield (
                    f"  rank {r.rank} loads the {f.role} file of rank {f.source_rank},"
                    f" {_below(plan, f.path)}: {f.reason}"
                )
    told = " ".join(plan.resume.args) or plan.resume.path
    if told:
        yield f"  the framework is told: {told}"


def _levels(files: tuple[FileLoad, ...] | list[FileLoad]) -> str:
    levels = Counter(str(f.level) for f in files)
    return ", ".join(f"{n} looked at to level {level}" for level, n in levels.items())


def _topology(plan: LoadPlan) -> Iterator[str]:
    if plan.topology:
        yield "How many ranks, and who says so"
        yield from (f"  {name} = {known.value}: {known.provenance}" for name, known in plan.topology.items())


def _unseen(plan: LoadPlan) -> Iterator[str]:
    files = {f.path: f for f in (*plan.shared, *(f for r in plan.ranks for f in r.files))}.values()
    size = sum(max(0, f.size) for f in files)
    out = []
    if bare := sum(round(max(0, f.size) * (1 - f.coverage)) for f in files if f.level >= Level.CONTENT):
        out.append(
            f"{bare:,} of {size:,} bytes: no stored checksum covers them, so a flipped bit in them cannot be"
            " seen"
        )
    if shallow := [f for f in files if f.level < Level.CONTENT]:
        out.append(
            f"the content of {plural(len(shallow), 'file')} ({sum(max(0, f.size) for f in shallow):,} bytes):"
            " --level content reads it"
        )
    if files and not any(f.level >= Level.VALUES for f in files):
        out.append("the numbers in the tensors: --level values looks for NaN and absurd ones")
    if rest := sum(outcome == "not looked at" for _, outcome in outcomes(plan)):
        out.append(f"{plural(rest, 'other checkpoint')}: 'ckpt verify' looks at all of them")
    narrowed = plan.ranks and len(plan.ranks) != plan.world_size  # 'ckpt latest': the others load theirs
    if plan.checkpoint and not narrowed and (idle := len(plan.checkpoint.parts) - len(files)) > 0:
        out.append(f"{plural(idle, 'file')} of the chosen checkpoint that nobody loads")
    if out:
        yield "What was not looked at"
        yield from (f"  {line}" for line in out)
