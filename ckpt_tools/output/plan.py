"""A plan -> what it chose, a table of the files that each rank loads, and why better candidates lost."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.page import FEW, PLAIN, Page, View, epoch, excluded, relative
from ckpt_tools.output.words import percent, plural, size


def render(plan: LoadPlan, view: View = PLAIN) -> str:
    page = Page(view)
    if plan.checkpoint:
        page.text(f"resume from {_name(plan.checkpoint)}", "bold green")
        for name, value in _list_facts(plan, plan.checkpoint):
            if value:
                page.text(f"  {name}: {value}", whole=name in ("path", "arguments", "environment"))
    else:
        none = "no usable checkpoint" if plan.rejected else "no checkpoint: training would start from scratch"
        page.text(none, "bold")
    if plan.excluded:
        page.text(f"  {excluded(plan.excluded)}")
    if back := plan.rollback:
        lost = plural(back.origin - back.target, "step")
        text = f"from step {back.origin} to {back.target} (save interval {back.save_interval}): {lost} back"
        page.text(f"  rollback: {text}", "yellow")
    _list_loads(page, plan)
    for rejected in plan.rejected:
        c = rejected.checkpoint
        page.text("")
        place = f": {relative(c.path, plan.root)}" if c.parts else ", which is gone"
        page.text(f"not {_name(c)}{place}", "yellow")
        page.findings(rejected.findings, plan.root)
    passed = {rejected.checkpoint.key for rejected in plan.rejected}
    if ahead := [c for c in plan.ahead if c.key not in passed]:
        names = ", ".join(map(_name, ahead))
        page.text("")
        page.text(f"newer than the choice: {names}; the resumed job will come to these steps again", "yellow")
    page.findings(plan.warnings, plan.root)
    return page.done()


def _name(c: Checkpoint) -> str:
    return f"{c.label} ({c.kind}, {c.layout})"


def _list_facts(plan: LoadPlan, c: Checkpoint) -> Iterator[tuple[str, str]]:
    yield "path", plan.resume.path or c.path
    yield "epoch", epoch(c) if c.epoch is not None else ""
    yield "run", c.run if c.run != "." else ""
    yield "arguments", " ".join(plan.resume.args)
    yield "environment", " ".join(f"{k}={v}" for k, v in plan.resume.env.items())
    sizes = [f"{plan.world_size} ranks"] if plan.world_size is not None else []
    if plan.saved_world_size is not None:
        sizes.append(f"saved by {plan.saved_world_size}")
    yield "world", ", ".join(sizes)
    numbers = plan.topology.items()
    yield "topology", ", ".join(f"{name}={known.value} ({known.provenance})" for name, known in numbers)
    read = [f"{size(plan.bytes_verified)} read"]
    if plan.bytes_read < plan.bytes_verified:
        read.append(f"{size(plan.bytes_read)} of it now, the rest by earlier runs")
    yield "checked", ", ".join([*read, f"{plural(plan.attempts, 'checkpoint')} tried"])


def _list_loads(page: Page, plan: LoadPlan) -> None:
    whole = page.view.verbose or len(plan.loads) <= FEW
    rows = []
    for rank, f in plan.loads:
        if whole or f.substituted:
            owner = f"file of rank {f.source_rank}" if f.substituted and f.source_rank is not None else ""
            about = (f.role, str(f.level), percent(f.coverage), size(f.size), relative(f.path, plan.root))
            why = ": ".join(filter(None, (owner, f.reason)))
            rows.append(("all" if rank is None else str(rank), *about, why))
    if rows:
        headers = ("rank", "role", "level", "coverage", "size", "file", "why")
        page.text("")
        page.table(headers, rows, right=("rank", "coverage", "size"), below=("why", "file"))
    if len(rows) < len(plan.loads):
        page.text(
            f"{len(plan.loads) - len(rows):,} ranks' own files not listed (--verbose lists them)", "dim"
        )
