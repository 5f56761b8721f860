"""A plan -> what the page with -v adds: what was considered, what was substituted, what was not looked at."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ckpt_tools.model.plan import FileLoad, LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.output.json import outcomes
from ckpt_tools.output.words import plural, printable

_LISTED = 8
_WORDS = {"rejected": "skipped, for the reason above", "passed over": "left out by --save-interval"}


def render(plan: LoadPlan) -> str:
    return "".join(f"{printable(line)}\n" for line in _list_lines(plan))


def _list_lines(plan: LoadPlan) -> Iterator[str]:
    yield from _list_candidates(plan)
    if back := plan.rollback:
        yield "Rollback"
        steps = f"from step {back.origin} to step {back.target}"
        yield f"  {steps} (save interval {back.save_interval}): {back.why}"
    if plan.checkpoint:
        yield "What is loaded"
        yield from _list_loads(plan)
    if plan.topology:
        yield "How many ranks, and who says so"
        yield from (f"  {name} = {known.value}: {known.provenance}" for name, known in plan.topology.items())
    files = list({f.path: f for _, f in plan.loads}.values())
    if unseen := [*_list_unseen_bytes(files), *_list_unseen_files(plan, len(files))]:
        yield "What was not looked at"
        yield from (f"  {line}" for line in unseen)


def _shorten(plan: LoadPlan, path: str) -> str:
    return os.path.relpath(path, plan.root) if path.startswith(plan.root) else path


def _list_candidates(plan: LoadPlan) -> Iterator[str]:
    rows = outcomes(plan)
    yield f"Checkpoints, best first ({len(rows):,})"
    silent = Counter[str]()
    for i, (c, outcome) in enumerate(rows, 1):
        if outcome in ("not looked at", "passed over") and i > _LISTED:
            silent[outcome] += 1
        else:
            yield f"  {i}. {c.label}, {_shorten(plan, c.path)}: {_WORDS.get(outcome, outcome)}"
    yield from (f"  and {n:,} more: {_WORDS.get(outcome, outcome)}" for outcome, n in silent.items())
    if not rows:
        yield "  none"


def _list_loads(plan: LoadPlan) -> Iterator[str]:
    if plan.shared:
        yield f"  {plural(len(plan.shared), 'file')} by every rank: {_count_levels(plan.shared)}"
        yield from (f"  {_shorten(plan, f.path)}: {f.reason}" for f in plan.shared if f.reason)
    yield from _list_own_loads(plan)
    if arguments := " ".join(plan.resume.args) or plan.resume.path:
        yield f"  the framework is told: {arguments}"


def _list_own_loads(plan: LoadPlan) -> Iterator[str]:
    of_ranks = [(rank, f) for rank, f in plan.loads if rank is not None]
    if own := [(rank, f) for rank, f in of_ranks if not f.substituted]:
        ranks, different = {rank for rank, _ in own}, {f.path: f for _, f in own}.values()
        verb, whose = ("loads", "its") if len(ranks) == 1 else ("load", "their")
        files = f"{plural(len(different), 'file')} of {whose} own: {_count_levels(different)}"
        yield f"  {plural(len(ranks), 'rank')} {verb} {files}"
    for rank, f in of_ranks:
        if f.substituted:
            what = f"the {f.role} file of rank {f.source_rank}, {_shorten(plan, f.path)}"
            yield f"  rank {rank} loads {what}: {f.reason}"


def _count_levels(files: Iterable[FileLoad]) -> str:
    levels = Counter(str(f.level) for f in files)
    return ", ".join(f"{n} looked at to level {level}" for level, n in levels.items())


def _list_unseen_bytes(files: Sequence[FileLoad]) -> Iterator[str]:
    shallow = [f for f in files if f.level < Level.CONTENT]
    deep = [f for f in files if f.level >= Level.CONTENT]
    if bare := sum(round(max(0, f.size) * (1 - f.coverage)) for f in deep):
        why = "no stored checksum covers them, so a flipped bit in them cannot be seen"
        yield f"{bare:,} of {_add_sizes(files):,} bytes: {why}"
    if shallow:
        unread = f"{plural(len(shallow), 'file')} ({_add_sizes(shallow):,} bytes)"
        yield f"the content of {unread}: --level content reads it"
    if files and not any(f.level >= Level.VALUES for f in files):
        yield "the numbers in the tensors: --level values looks for NaN and absurd ones"


def _list_unseen_files(plan: LoadPlan, loaded: int) -> Iterator[str]:
    if rest := sum(outcome == "not looked at" for _, outcome in outcomes(plan)):
        yield f"{plural(rest, 'other checkpoint')}: 'ckpt verify' looks at all of them"
    narrowed = plan.by_rank and len(plan.by_rank) != plan.world_size  # 'ckpt latest': the others load theirs
    if plan.checkpoint and not narrowed and (idle := len(plan.checkpoint.parts) - loaded) > 0:
        yield f"{plural(idle, 'file')} of the chosen checkpoint that nobody loads"


def _add_sizes(files: Sequence[FileLoad]) -> int:
    return sum(max(0, f.size) for f in files)
