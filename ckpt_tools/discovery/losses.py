"""What a checkpoint lacks that resuming can do without: random numbers, marks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ckpt_tools.discovery import completeness
from ckpt_tools.discovery.completeness import Expected, label, marks_of, saved_with, usual_pieces, where
from ckpt_tools.findings import finding
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity


def losses(checkpoint: Checkpoint, run: Expected) -> Iterator[Finding]:
    """What a checkpoint lacks that resuming can do without: never a reason to fall back, but said."""
    if not checkpoint.unfinished and not completeness.first_ranks_gone(
        checkpoint, run.layouts.of(checkpoint)
    ):
        yield from _survivable_roles_gone(checkpoint, run)
        yield from _survivable_ranks_gone(checkpoint, run)
        yield from _marks_gone(checkpoint, run)


def _marks_gone(checkpoint: Checkpoint, run: Expected) -> Iterator[Finding]:
    """Marks of a finished save that each other one of its run has."""
    layout, kind = run.layouts.of(checkpoint), checkpoint.kind
    mine, others = marks_of(checkpoint, layout), run.count[kind] - 1
    gone = [m for m, n in run.marks[kind, layout.name].items() if n >= others > 0 and m not in mine]
    if gone:
        text = (
            f"{label(checkpoint)} has no {ranges.names(sorted(gone))}, which each other save of the run has"
        )
        text += ": it may not have ended"
        hint = "see in the log of the job that saved it whether this save ended"
        yield finding("unfinished-save", text, path=where(checkpoint), hint=hint)


def _survivable_roles_gone(checkpoint: Checkpoint, run: Expected) -> Iterator[Finding]:
    layout = run.layouts.of(checkpoint)
    present = {layout.piece(p.piece).role for p in checkpoint.parts}
    usual = {piece.role for piece in usual_pieces(checkpoint, run) if piece.survivable}
    lost = saved_with(checkpoint, layout, survivable=True) | {
        role: f"no {role} file, which the run's other checkpoints have" for role in usual - present
    }
    for what in lost.values():
        text = f"{label(checkpoint)} has {what}: training goes on with other random numbers"
        yield finding("missing-part", text, severity=Severity.WARNING, path=where(checkpoint))


def _survivable_ranks_gone(checkpoint: Checkpoint, run: Expected) -> Iterator[Finding]:
    layout, ranks = run.layouts.of(checkpoint), defaultdict[str, set[int]](set)
    for p in checkpoint.parts:
        if p.rank is not None and layout.piece(p.piece).survivable:
            ranks[p.piece].add(p.rank)
    for name in sorted(ranks):
        own = 1 + max(ranks[name])
        if gone := ranges.gaps(ranks[name], own):
            text = (
                f"{label(checkpoint)} starts with other random numbers, "
                f"without the {layout.piece(name).role} file of {ranges.ranks(gone, own)}"
            )
            yield finding("missing-rank", text, severity=Severity.WARNING, path=where(checkpoint), ranks=gone)
