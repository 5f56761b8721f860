"""A plan -> its story in order: what was considered, why each candidate lost, what was substituted and what
proves it, what was not looked at.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

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
        yield from (f"  {_fact(plan, f)}" for f in warnings)


def _name(plan: LoadPlan, c: Checkpoint) -> str:
    return f"{c.kind} checkpoint {c.label}, {_below(plan, c.path)}"


def _below(plan: LoadPlan, path: str) -> str:
    return os.path.relpath(path, plan.root) if path.startswith(plan.root) else path


def _fact(plan: LoadPlan, f: Finding) -> str:
    where = f" ({_below(plan, f.path)}{'' if f.offset is None else f' at byte {f.offset}'})" if f.path else ""
    return f"{f.code}: {f.message}{where}"


def _candidates(plan: LoadPlan) -> Iterator[str]:
    rejected = {r.checkpoint.key: r for r in plan.rejected}
    rows = outcomes(plan)
    yield f"Candidates, best first ({len(rows)})"
    silent = Counter[str]()
    for i, (c, outcome) in enumerate(rows, 1):
        if outcome in ("not looked at", "passed over") and i > _LISTED:
            silent[outcome] += 1
            continue
        yield f"  {i}. {_name(plan, c)}: {outcome}"
        if outcome == "rejected":
            yield from _reasons(plan, rejected[c.key].findings)
    yield from (f"  and {n} more: {outcome}" for outcome, n in silent.items())
    if not rows:
        yield "  none"


def _reasons(plan: LoadPlan, findings: Sequence[Finding]) -> Iterator[str]:
    causes = sorted((f for f in findings if not f.follows), key=lambda f: -f.severity)
    yield from (f"       {_fact(plan, f)}" for f in causes[:_LISTED])
    if len(causes) > _LISTED:
        yield f"       and {plural(len(causes) - _LISTED, 'more finding')}"
    yield from (f"       so {f.code}: {f.message}" for f in findings if f.follows)


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
    yield "What is loaded"
    if plan.shared:
        yield f"  {plural(len(plan.shared), 'file')} by every rank: {_levels(plan.shared)}"
        yield from (f"  {_below(plan, f.path)}: {f.reason}" for f in plan.shared if f.reason)
    yield from _own_files(plan)
    for r in plan.by_rank:
        for f in r.files:
            if f.substituted:
                yield (
                    f"  rank {r.rank} loads the {f.role} file of rank {f.source_rank},"
                    f" {_below(plan, f.path)}: {f.reason}"
                )
    arguments = " ".join(plan.resume.args) or plan.resume.path
    if arguments:
        yield f"  the framework is told: {arguments}"


def _own_files(plan: LoadPlan) -> Iterator[str]:
    own = {r.rank: files for r in plan.by_rank if (files := [f for f in r.files if not f.substituted])}
    if own:
        different = {f.path: f for files in own.values() for f in files}.values()
        who = f"{plural(len(own), 'rank')} {'loads' if len(own) == 1 else 'load'}"
        whose = "its" if len(own) == 1 else "their"
        yield f"  {who} {plural(len(different), 'file')} of {whose} own: {_levels(different)}"


def _levels(files: Iterable[FileLoad]) -> str:
    levels = Counter(str(f.level) for f in files)
    return ", ".join(f"{n} looked at to level {level}" for level, n in levels.items())


def _topology(plan: LoadPlan) -> Iterator[str]:
    if plan.topology:
        yield "How many ranks, and who says so"
        yield from (f"  {name} = {known.value}: {known.provenance}" for name, known in plan.topology.items())


def _unseen(plan: LoadPlan) -> Iterator[str]:
    loaded = [*plan.shared, *(f for r in plan.by_rank for f in r.files)]
    files = list({f.path: f for f in loaded}.values())
    unseen = [*_unseen_bytes(files), *_unseen_files(plan, len(files))]
    if unseen:
        yield "What was not looked at"
        yield from (f"  {line}" for line in unseen)


def _unseen_bytes(files: Sequence[FileLoad]) -> Iterator[str]:
    deep = [f for f in files if f.level >= Level.CONTENT]
    shallow = [f for f in files if f.level < Level.CONTENT]
    if bare := sum(round(max(0, f.size) * (1 - f.coverage)) for f in deep):
        yield (
            f"{bare:,} of {_total(files):,} bytes: no stored checksum covers them, so a flipped bit in them"
            " cannot be seen"
        )
    if shallow:
        unread = f"{plural(len(shallow), 'file')} ({_total(shallow):,} bytes)"
        yield f"the content of {unread}: --level content reads it"
    if files and not any(f.level >= Level.VALUES for f in files):
        yield "the numbers in the tensors: --level values looks for NaN and absurd ones"


def _total(files: Iterable[FileLoad]) -> int:
    return sum(max(0, f.size) for f in files)


def _unseen_files(plan: LoadPlan, loaded: int) -> Iterator[str]:
    if rest := sum(outcome == "not looked at" for _, outcome in outcomes(plan)):
        yield f"{plural(rest, 'other checkpoint')}: 'ckpt verify' looks at all of them"
    narrowed = plan.by_rank and len(plan.by_rank) != plan.world_size  # 'ckpt latest': the others load theirs
    if plan.checkpoint and not narrowed and (idle := len(plan.checkpoint.parts) - loaded) > 0:
        yield f"{plural(idle, 'file')} of the chosen checkpoint that nobody loads"
