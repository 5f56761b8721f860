"""``save/missing-rank``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ckpt_tools.discovery.completeness import (
    Coordinates,
    Expected,
    is_of_later_ranks,
    is_per_rank,
    name_kind,
    name_place,
    rate_gaps,
    read_world,
    survivable_pieces,
)
from ckpt_tools.layouts import Layout
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.planning.facts import Gap, SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of

_GATHER = "it may be on another node's disk: gather all files in one place, which every node sees"
"""The hint for a set of files that every rank loads: a node's own files are not enough."""


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield the ranks without a file, and places of the parallel grid that only other saves have."""
    run = facts.expected
    for c in facts.saves:
        layout = facts.layouts.of(c)
        if c.unfinished:
            continue
        if first := find_first_ranks(c, layout):
            yield first
            continue
        if not layout.complete.by_name:
            severity = rate_gaps(c, run)
            yield from _find_ranks(c, run, severity)
            yield from _find_roles_of_ranks(c, run, severity)
            yield from _find_absent_coordinates(c, run, severity)
        yield from _find_lost_random_numbers(c, run)


def find_first_ranks(checkpoint: Checkpoint, layout: Layout) -> Hit | None:
    """Return a hit on the ranks below the first one that has a file; None if rank 0 has one."""
    if layout.complete.by_name or checkpoint.unfinished or not is_of_later_ranks(checkpoint.parts, layout):
        return None
    present = ranges.ranges(p.rank for p in checkpoint.parts if p.rank is not None)
    absent = ((0, present[0][0] - 1),) if present else ((0, 0),)
    have = _name_ranks(present) if present else ranges.places({p.coords for p in checkpoint.parts})
    text = f"{name_kind(checkpoint)} has only files of {have}: those of {_name_ranks(absent)} are not here"
    hint = _GATHER if all(layout.piece(p.piece).readers.shared for p in checkpoint.parts) else ""
    return Hit(name_place(checkpoint), text, hint, ranks=absent)


def _name_ranks(ranks: ranges.Ranges) -> str:
    return f"rank{'s' * (ranges.size(ranks) > 1)} {ranges.words(ranks)}"


def _find_ranks(checkpoint: Checkpoint, run: Expected, severity: Severity) -> Iterator[Hit]:
    """Yield ranks without any file, if the save has files of pieces that every rank writes."""
    layout = run.layouts.of(checkpoint)
    of_ranks = {p.piece for p in checkpoint.parts if p.rank is not None}
    pieces = [piece for piece in map(layout.piece, of_ranks) if piece.required and is_per_rank(piece)]
    if all("dp" in piece.readers.replicated_over and not piece.readers.everyone_saves for piece in pieces):
        return
    optional = survivable_pieces(layout)
    present = {p.rank for p in checkpoint.parts if p.rank is not None and p.piece not in optional}
    world = read_world(checkpoint) or run.ranks
    if len(present) < world:
        world = run.sizes_in_files(checkpoint).get("world", world)
    if absent := ranges.gaps(present, world):
        text = f"{name_kind(checkpoint)} has no file of {ranges.ranks(absent, world)}"
        yield Hit(
            name_place(checkpoint), text, severity=_soften(checkpoint, absent, run, severity), ranks=absent
        )


def _find_roles_of_ranks(checkpoint: Checkpoint, run: Expected, severity: Severity) -> Iterator[Hit]:
    """Yield ranks that have files, but none of a role of which every rank has its own."""
    layout = run.layouts.of(checkpoint)
    by_role = defaultdict[str, set[int | None]](set)
    is_own = dict[str, bool]()  # by role: every rank has a file of its own
    for p in checkpoint.parts:
        piece = layout.piece(p.piece)
        by_role[p.role].add(p.rank)
        copied = "dp" in piece.readers.replicated_over
        own = piece.required and piece.loaded and is_per_rank(piece) and not copied
        is_own[p.role] = is_own.get(p.role, True) and own
    present = {rank for ranks in by_role.values() for rank in ranks if rank is not None}
    for role, ranks in by_role.items():
        known = {rank for rank in ranks if rank is not None}
        if is_own[role] and len(known) == len(ranks) and (absent := ranges.ranges(sorted(present - known))):
            text = f"{name_kind(checkpoint)} has no {role} file of {ranges.ranks(absent, max(present) + 1)}"
            yield Hit(name_place(checkpoint), text, severity=severity, ranks=absent)


def _soften(checkpoint: Checkpoint, absent: ranges.Ranges, run: Expected, severity: Severity) -> Severity:
    """Return the severity of ``absent`` ranks: a lower one if restarts or pruning explain them."""
    generation = checkpoint.generation
    if generation and len(run.writers[checkpoint.kind, generation]) == 1:
        return Severity.NOTE  # a single rank ran on alone: the others never took part in that generation
    ranks = (rank for first, last in absent for rank in range(first, last + 1))
    return Severity.WARNING if all(_is_pruned(checkpoint, rank, run) for rank in ranks) else severity


def _is_pruned(checkpoint: Checkpoint, rank: int, run: Expected) -> bool:
    """Return True if a rank has pruned (removed) its own files of this save and of all before it."""
    files = run.rank_files(checkpoint.kind).get(rank, ())
    newer = [f for f in files if f.order > checkpoint.order]
    if not newer:
        return False
    restarts = min(newer).restarts
    return not any(f.order < checkpoint.order and f.restarts == restarts for f in files)


def _find_absent_coordinates(checkpoint: Checkpoint, run: Expected, severity: Severity) -> Iterator[Hit]:
    """Yield coordinates of this save's own parallel grid for which only other saves have files."""
    layout = run.layouts.of(checkpoint)
    present: dict[str, set[Coordinates]] = defaultdict(set)
    for p in checkpoint.parts:
        if not layout.piece(p.piece).readers.shared:
            present[p.piece].add(p.coords)
    for name, own in present.items():
        lost = run.places[checkpoint.kind, name] - own
        if lost and (sizes := run.sizes_in_files(checkpoint)):
            own_axes = {tuple(dict(coords)) for coords in own}
            lost = {coords for coords in lost if tuple(dict(coords)) in own_axes}
            lost = {coords for coords in lost if all(at < sizes.get(axis, at + 1) for axis, at in coords)}
        if lost:
            text = (
                f"{name_kind(checkpoint)} lacks the {layout.piece(name).role} file of {ranges.places(lost)}"
            )
            yield Hit(name_place(checkpoint), text, severity=severity)


def _find_lost_random_numbers(checkpoint: Checkpoint, run: Expected) -> Iterator[Hit]:
    """Yield ranks without a random state; as a note if the job may have had fewer ranks then."""
    layout, ranks = run.layouts.of(checkpoint), defaultdict[str, set[int]](set)
    for p in checkpoint.parts:
        if p.rank is not None and layout.piece(p.piece).readers.survivable:
            ranks[p.piece].add(p.rank)
    for name, present in sorted(ranks.items()):
        highest = max(rank for rank in (*run.rank_files(checkpoint.kind), *present) if rank is not None)
        if absent := ranges.gaps(present, 1 + highest):
            is_sure = absent[0][0] < max(present)
            lost = f"the {layout.piece(name).role} file of {ranges.ranks(absent, 1 + highest)}"
            text = f"{name_kind(checkpoint)} starts with other random numbers, without {lost}"
            text += "" if is_sure else ": the job had fewer ranks then, or it is lost"
            severity = Severity.WARNING if is_sure else Severity.NOTE
            yield Hit(name_place(checkpoint), text, severity=severity, effect=Effect.WARN, ranks=absent)


def find_unusable(gaps: Iterable[Gap]) -> Iterator[Hit]:
    """Yield ranks without a file that they can load; ranks whose own files are damaged come last."""
    for gap in sorted((gap for gap in gaps if not gap.asked), key=lambda gap: gap.damaged):
        count, names = ranges.size(gap.ranks), ranges.words(gap.ranks)
        who = f"rank {names} has" if count == 1 else f"ranks {names} ({count:,} of {gap.world:,}) have"
        in_group = f", and no rank with the same state has one ({gap.group})" if gap.group else ""
        yield Hit(gap.path, f"{who} no good {gap.role} file{in_group}", ranks=gap.ranks, follows=gap.damaged)


def describe_new_ranks(gap: Gap) -> Finding:
    """Return the warning that ranks which the saving job did not have start with new random numbers."""
    without = ranges.ranks(gap.ranks, gap.world)
    text = f"there is no {gap.role} file of {without}: their random numbers start over"
    hint = "nothing has to be done if the job has more ranks than the one that saved it"
    return finding_of(RULE, Hit(gap.path, text, hint, Severity.WARNING, ranks=gap.ranks))


RULE = Rule(
    id="save/missing-rank",
    codes=("missing-rank",),
    effect=Effect.REJECT,
    answer="restore the file of the rank, or add --world-size N if the job was smaller",
    check=check,
    why="""\
A rank of the save has no file, and nothing shows that another holds the same state. Frameworks
hang, or load what is there, when ranks are missing.
For: verl-project/verl#1535, huggingface/accelerate#3010: the parts of one node only.
""",
)
