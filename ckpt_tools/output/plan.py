"""A plan -> a sentence; the file that each rank loads; why better checkpoints were skipped."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.output.json import outcomes
from ckpt_tools.output.page import FEW, PLAIN, Page, View, cut_root, say_checks, say_epoch, say_hidden
from ckpt_tools.output.sentence import sum_up
from ckpt_tools.output.words import size

_WORDS = {"rejected": "skipped, see above", "passed over": "left out by --save-interval"}


def render(plan: LoadPlan, view: View = PLAIN) -> str:
    page = Page(view)
    style = "bold" if plan.checkpoint is None else "bold yellow" if plan.rejected else "bold green"
    page.text(sum_up(plan), style)
    for name, value in list_facts(plan):
        if value:
            page.text(f"  {name}: {value}", whole=name in ("path", "arguments", "environment"))
    if plan.excluded:
        page.text(f"  {say_hidden(plan.excluded)}")
    if back := plan.rollback:
        text = f"from step {back.origin} to {back.target} (save interval {back.save_interval})"
        page.text(f"  rollback: {text}", "yellow")
    _show_loads(page, plan)
    for rejected in plan.rejected:
        c = rejected.checkpoint
        place = cut_root(c.path, plan.root) if c.parts else "gone"
        page.text(f"Skipped: {c.label}{f' ({place})' * (place != c.label)}", "yellow", gap=True)
        page.findings(rejected.findings, plan.root)
    skipped = {rejected.checkpoint.key for rejected in plan.rejected}
    if ahead := ", ".join(dict.fromkeys(c.label for c in plan.ahead if c.key not in skipped)):
        text = f"Written earlier, with higher steps or later dates: {ahead}. The job may save over them."
        page.text(text, "yellow", gap=True)
    page.findings(plan.warnings, plan.root)
    if view.verbose:
        page.gap()
        for line in _explain(plan):
            page.text(line)
    return page.done()


def list_facts(plan: LoadPlan) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of what is known of the chosen checkpoint; a value that does not apply is ""."""
    if (c := plan.checkpoint) is None:
        return
    yield "path", plan.resume.path or c.path
    yield "epoch", say_epoch(c) if c.epoch is not None else ""
    yield "run", c.run if c.run != "." else ""
    yield "layout", f"{c.layout} ({c.kind.adjective}checkpoint)" if c.kind.adjective else c.layout
    yield "state", plan.state.replace("-", " ")
    yield "arguments", " ".join(plan.resume.args)
    yield "environment", " ".join(f"{k}={v}" for k, v in plan.resume.env.items())
    words = [f"{plan.world_size:,}"] if plan.world_size is not None else []
    if plan.saved_world_size not in (None, plan.world_size):
        words.append(f"saved by {plan.saved_world_size:,}")
    numbers = [(name, known) for name, known in plan.topology.items() if name != "world_size"]
    words += (f"{name}={known.value}" for name, known in numbers)
    yield "ranks", ", ".join(words)
    read = [f"{size(plan.bytes_verified)} read"]
    if plan.bytes_read < plan.bytes_verified:
        read.append(f"{size(plan.bytes_read)} of it now, the rest by earlier runs")
    yield "checked", ", ".join([*read, _describe_checks(plan)])


def _describe_checks(plan: LoadPlan) -> str:
    """Return in words how deeply the files to load were checked: the lowest level, the mean coverage."""
    files = {f.path: f for _, f in plan.loads}.values()
    total = sum(max(0, f.size) for f in files)
    covered = sum(max(0, f.size) * f.coverage for f in files) / (total or 1)
    return say_checks(min((f.level for f in files), default=Level.PRESENCE), covered)


def list_loads(plan: LoadPlan, view: View) -> list[tuple[str, ...]]:
    """Return rank, role, check, size, path and note of each file to load; of many only of substitutes."""
    rows = list[tuple[str, ...]]()
    for rank, f in plan.loads:
        if view.verbose or len(plan.loads) <= FEW or f.substituted:
            owner = f"rank {f.source_rank}'s file" if f.substituted and f.source_rank is not None else ""
            who, note = "all" if rank is None else str(rank), ": ".join(filter(None, (owner, f.reason)))
            checked = say_checks(f.level, f.coverage)
            rows.append((who, f.role, checked, size(f.size), cut_root(f.path, plan.root), note))
    return rows


def _show_loads(page: Page, plan: LoadPlan) -> None:
    rows = list_loads(plan, page.view)
    if page.view.verbose:
        headers = ("rank", "role", "checked", "size", "file", "note")
        page.table(headers, rows, right=("rank", "size"), below=("note", "file"))
    else:
        brief = [(who, file, note) for who, *_, file, note in rows]
        page.table(("rank", "file", "note"), brief, right=("rank",), below=("note", "file"))
    if len(rows) < len(plan.loads):
        page.text(f"{len(plan.loads) - len(rows):,} ranks load their own files (-v lists them)", "dim")


# ---- with -v: the candidates, the source of each number of ranks


def _explain(plan: LoadPlan) -> Iterator[str]:
    rows = outcomes(plan)
    yield f"Checkpoints, best first ({len(rows):,})"
    for i, (c, outcome) in enumerate(rows, 1):
        path = (plan.checkpoint or c).path if outcome == "chosen" else c.path  # of copies the loaded one
        yield f"  {i}. {c.label}, {cut_root(path, plan.root)}: {_WORDS.get(outcome, outcome)}"
    if not rows:
        yield "  none"
    if back := plan.rollback:
        yield f"Rollback: {back.why}"
    if plan.topology:
        yield "How many ranks, and who says so"
        yield from (f"  {name} = {known.value}: {known.provenance}" for name, known in plan.topology.items())
