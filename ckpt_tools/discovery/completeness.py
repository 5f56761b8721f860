"""What a checkpoint lacks, compared with the others of its run. Pure: names, sizes and times are all it sees."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ckpt_tools.findings import finding
from ckpt_tools.layouts import BY_NAME, COORDS, Layout, Piece
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind

Told = Callable[[Checkpoint], Mapping[str, int]]
"""What the files of a checkpoint themselves say about the job that saved it: "world" and sizes of parallel axes, as far as they do."""


def expected_ranks(checkpoints: Iterable[Checkpoint]) -> int | None:
    """The number of ranks in the names, else one more than the highest rank over all checkpoints of a run; None when no name carries a rank.

    Files that a job can do without (random numbers) define no rank: there are as many as the job had ranks when it saved them.
    """
    ranks = worlds = -1
    for c in checkpoints:
        layout = BY_NAME[c.layout]
        free = _survivable(layout)
        counted = (
            [p for p in c.parts if not layout.piece(p.piece).shared] if free else c.parts
        )  # what else they share, any of them may have written
        ranks = max([ranks, *[p.rank for p in counted if p.rank is not None]])
        worlds = max([worlds, *[at for p in c.parts if p.coords for axis, at in p.coords if axis == "world"]])
    return max(ranks + 1, worlds) if ranks >= 0 else None


def _survivable(layout: Layout) -> frozenset[str]:
    """Names of the pieces that resuming can do without."""
    return frozenset(piece.name for piece in layout.pieces if piece.survivable)


def named_world(checkpoint: Checkpoint) -> int | None:
    """The number of ranks that saved a checkpoint, where its files' names tell (``{world}``): jobs grow and shrink between two saves."""
    return max((at for p in checkpoint.parts for axis, at in p.coords if axis == "world"), default=0) or None


def ranks_present(checkpoint: Checkpoint) -> int | None:
    """How many ranks have a file, or how many places of the parallel grid where names hold no rank; None for a set that every rank shares.

    Of one kind of file there is one for each place that holds something of its own, so the kind with the most tells: DeepSpeed's model states are one for all
    data parallel ranks, its optimizer states one for each. Shards, layers and the processes that wrote a shared set are no ranks.
    """
    if ranks := {p.rank for p in checkpoint.parts if p.rank is not None}:
        return len(ranks)
    layout, places = BY_NAME[checkpoint.layout], defaultdict[str, set[tuple[tuple[str, int], ...]]](set)
    for p in checkpoint.parts:
        if (
            p.coords
            and not layout.piece(p.piece).shared
            and (grid := tuple(at for at in p.coords if at[0] in COORDS))
        ):
            places[p.piece].add(grid)
    return max(map(len, places.values()), default=None)


def ranks_of_its_own(checkpoint: Checkpoint) -> set[int]:
    """The ranks that have a file of a kind of which every rank of a save needs one; none where a commit says that all is there."""
    layout = BY_NAME[checkpoint.layout]
    return (
        set()
        if layout.committed
        else {p.rank for p in checkpoint.parts if p.rank is not None and _per_rank(layout.piece(p.piece))}
    )


def _silent(checkpoint: Checkpoint) -> Mapping[str, int]:
    """What is told where no file is asked."""
    return {}


@dataclass
class Expected:
    """What the checkpoints of one run have between them: the measure for what one of them lacks. ``named``: as many ranks as their names tell.

    ``told`` is asked what a checkpoint's own files say only where its names make it look incomplete: the job may have shrunk.
    """

    ranks: int = 0
    named: int | None = None
    grids: dict[tuple[Kind, str], set[tuple[tuple[str, int], ...]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    usual: dict[Kind, Counter[tuple[str, str]]] = field(default_factory=lambda: defaultdict(Counter))
    oldest: dict[Kind, Checkpoint] = field(default_factory=dict)
    count: Counter[Kind] = field(default_factory=Counter)
    checkpoints: Sequence[Checkpoint] = ()
    told: Told = _silent
    survivable: dict[tuple[Kind, str], int] = field(default_factory=dict)
    writers: dict[tuple[Kind, int | None], set[int | None]] = field(default_factory=lambda: defaultdict(set))
    _saves: dict[Kind, dict[int | None, list[tuple[tuple[int, int, int], int]]]] = field(default_factory=dict)

    def saves(self, kind: Kind) -> dict[int | None, list[tuple[tuple[int, int, int], int]]]:
        """Rank -> (order, restart counter) of each of its files; worked out when it is first asked for."""
        if kind not in self._saves:
            out = self._saves[kind] = defaultdict(list)
            for c in self.checkpoints:
                if c.kind is kind:
                    for p in c.parts:
                        out[p.rank].append((c.order, p.generation or 0))
        return self._saves[kind]


def expected(
    checkpoints: Sequence[Checkpoint], world_size: int | None = None, told: Told = _silent
) -> Expected:
    """What the finished checkpoints of one run lead to expect; ``world_size`` when the caller knows it."""
    named = expected_ranks(checkpoints)
    out = Expected(max(world_size or 0, named or 0), named, checkpoints=checkpoints, told=told)
    for c in sorted(checkpoints, key=lambda c: (c.order, c.mtime_ns)):
        layout = BY_NAME[c.layout]
        out.count[c.kind] += 1
        out.oldest.setdefault(c.kind, c)
        out.writers[c.kind, c.generation].update([p.rank for p in c.parts])
        for p in [p for p in c.parts if p.coords and p.rank is None]:
            if not layout.piece(p.piece).shared:
                out.grids[c.kind, p.piece].add(p.coords)
        free = _survivable(layout)
        for p in [p for p in c.parts if p.rank is not None and p.piece in free] if free else ():
            out.survivable[c.kind, p.piece] = max(out.survivable.get((c.kind, p.piece), 0), 1 + (p.rank or 0))
        for name in {p.piece for p in c.parts}:
            piece = layout.piece(name)
            if piece.required and piece.step_from == "name":
                out.usual[c.kind][c.layout, name] += 1
    return out


def missing(checkpoint: Checkpoint, run: Expected) -> list[Finding]:
    """What a checkpoint lacks of what resuming needs, compared with its run. Not for committed layouts, whose commit says that it is all there."""
    layout, kind = BY_NAME[checkpoint.layout], checkpoint.kind
    if layout.committed or checkpoint.unfinished:
        return []
    # "is": the judge asks for all of a checkpoint to which it has added what an index names
    pruned = run.count[kind] > 1 and run.oldest.get(kind) is checkpoint
    severity = Severity.WARNING if kind is Kind.DYING_GASP or pruned else Severity.ERROR
    return [
        *_ranks_gone(checkpoint, run, severity),
        *_places_gone(checkpoint, run, severity),
        *_roles_gone(checkpoint, run, severity),
    ]


def _where(checkpoint: Checkpoint) -> str:
    """Its own directory, and not the run's, which its other checkpoints share."""
    return checkpoint.parts[0].home or checkpoint.parts[0].path


def _ranks_gone(checkpoint: Checkpoint, run: Expected, severity: Severity) -> Iterator[Finding]:
    """Ranks of its own save without a file. A generation that a single rank wrote (it ran alone) is a note: the others never took part in it."""
    layout, kind = BY_NAME[checkpoint.layout], checkpoint.kind
    pieces = [
        piece
        for name in {p.piece for p in checkpoint.parts if p.rank is not None}
        if _per_rank(piece := layout.piece(name))
    ]
    if not any(
        piece.required and ("dp" not in piece.replicated_over or piece.everyone_saves) for piece in pieces
    ):
        return
    free = _survivable(layout)
    present = {p.rank for p in checkpoint.parts if p.rank is not None and p.piece not in free}
    world = named_world(checkpoint) or run.ranks
    if len(present) < world:
        world = run.told(checkpoint).get("world", world)
    gone = ranges.gaps(present, world)
    if not gone:
        return
    if all(_pruned(checkpoint, rank, run) for first, last in gone for rank in range(first, last + 1)):
        severity = Severity.WARNING
    alone = bool(checkpoint.generation) and len(run.writers[kind, checkpoint.generation]) == 1
    text = f"{label(checkpoint)} has no file of {ranges.ranks(gone, world)}"
    yield finding(
        "missing-rank",
        text,
        severity=Severity.NOTE if alone else severity,
        path=_where(checkpoint),
        ranks=gone,
    )


def _per_rank(piece: Piece) -> bool:
    """Whether every rank of a save needs a file of this piece."""
    return (not piece.shared or piece.sharded) and not piece.survivable


def _places_gone(checkpoint: Checkpoint, run: Expected, severity: Severity) -> Iterator[Finding]:
    """Places of the parallel grid that other checkpoints have files for, and this one's own grid has as well."""
    layout, kind = BY_NAME[checkpoint.layout], checkpoint.kind
    have: dict[str, set[tuple[tuple[str, int], ...]]] = defaultdict(set)
    for p in checkpoint.parts:
        have[p.piece].add(p.coords)
    for name, coordinates in have.items():
        if layout.piece(name).shared or not (lost := run.grids[kind, name] - coordinates):
            continue
        sizes, axes = run.told(checkpoint), {tuple(axis for axis, _ in coords) for coords in coordinates}
        if sizes:  # a grid of another shape was another job's
            lost = {
                at
                for at in lost
                if tuple(a for a, _ in at) in axes and all(n < sizes.get(a, n + 1) for a, n in at)
            }
        if lost:
            text = f"{label(checkpoint)} lacks the {name} of {ranges.places(lost)}"
            yield finding("missing-rank", text, severity=severity, path=_where(checkpoint))


def _roles_gone(checkpoint: Checkpoint, run: Expected, severity: Severity) -> Iterator[Finding]:
    """Roles without any file."""
    layout = BY_NAME[checkpoint.layout]
    roles = {layout.piece(p.piece).role for p in checkpoint.parts}
    for role in layout.needs:
        if role not in roles:
            yield finding(
                "missing-part",
                f"{label(checkpoint)} has no {role} file",
                severity=severity,
                path=_where(checkpoint),
            )
    for piece in _usual(checkpoint, run):
        if piece.role not in roles and piece.role not in layout.needs and not piece.survivable:
            text = f"{label(checkpoint)} has no {piece.name} file, which the run's other checkpoints have"
            yield finding("missing-part", text, severity=severity, path=_where(checkpoint))


def _usual(checkpoint: Checkpoint, run: Expected) -> Iterator[Piece]:
    """The pieces that at least half of the checkpoints of its run have."""
    layout, kind = BY_NAME[checkpoint.layout], checkpoint.kind
    for (of, name), n in run.usual[kind].items():
        if (
            of == checkpoint.layout and 2 * n >= run.count[kind]
        ):  # a dying gasp of another layout may be part of the run
            yield layout.piece(name)


def losses(checkpoint: Checkpoint, run: Expected) -> Iterator[Finding]:
    """What a checkpoint lacks that resuming can do without: never a reason to fall back, but said."""
    layout, kind = BY_NAME[checkpoint.layout], checkpoint.kind
    if checkpoint.unfinished:
        return
    roles = {layout.piece(p.piece).role for p in checkpoint.parts}
    for role in {
        piece.role for piece in _usual(checkpoint, run) if piece.survivable and piece.role not in roles
    }:
        text = f"{label(checkpoint)} has no {role} file, which the run's other checkpoints have: training goes on with other random numbers"
        yield finding("missing-part", text, severity=Severity.WARNING, path=_where(checkpoint))
    for name in sorted(
        {p.piece for p in checkpoint.parts if p.rank is not None and layout.piece(p.piece).survivable}
    ):
        present, most = (
            {p.rank for p in checkpoint.parts if p.piece == name},
            run.survivable.get((kind, name), 0),
        )
        own = 1 + max(rank for rank in present if rank is not None)
        gone = ranges.gaps([rank for rank in present if rank is not None], own)
        if gone:
            text = f"{label(checkpoint)} starts with other random numbers, without the {layout.piece(name).role} file of {ranges.ranks(gone, own)}"
            yield finding(
                "missing-rank", text, severity=Severity.WARNING, path=_where(checkpoint), ranks=gone
            )
        elif own < most:
            text = f"{label(checkpoint)} has {layout.piece(name).role} files of {own} ranks, another of the run of {most}: the job had fewer, or they are lost"
            yield finding("missing-rank", text, severity=Severity.NOTE, path=_where(checkpoint))


def _pruned(checkpoint: Checkpoint, rank: int, run: Expected) -> bool:
    """Whether a rank has removed all it had up to this checkpoint: each removes its own files, MindSpore's per restart."""
    mine = run.saves(checkpoint.kind).get(rank, ())
    newer = [row for row in mine if row[0] > checkpoint.order]
    return bool(newer) and not any(at < checkpoint.order and k == min(newer)[1] for at, k in mine)


def doubled(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Files that share rank and coordinates with another of the same piece in a checkpoint that has a directory of its own."""
    seen: dict[object, str] = {}
    layout = BY_NAME[checkpoint.layout]
    for p in checkpoint.parts:
        if layout.piece(p.piece).shared:
            continue  # a set: its names need not tell its files apart
        first = seen.setdefault(
            (p.piece, p.rank, tuple(c for c in p.coords if c[0] != "world")), p.path
        )  # of -of-2 and -of-4 one set is a leftover
        if p.home and first != p.path:
            yield finding(
                "extra-file", f"{first.rpartition('/')[2]} is there as well for the same rank", path=p.path
            )


_FEW = 16
"""Runs that are named one by one; of more, those whose names differ by a number are named together."""


def listed(runs: Iterable[tuple[str, str]]) -> str:
    """Runs by name, all of them: whoever has to say which one needs the whole list."""
    names = [f"{run or '.'} ({layout})" for layout, run in runs]
    return f"{'several runs' if len(names) > 1 else 'one run'}: {', '.join(sorted(names)) if len(names) <= _FEW else ranges.names(names)}"


def why_unfinished(c: Checkpoint) -> str:
    """What shows that a save never finished: the second half of a sentence about it."""
    layout = BY_NAME[c.layout]
    if any(p.unfinished for p in c.parts) or not layout.commit:
        return "never reached its commit rename"
    return f"has no {layout.commit} file, which is written last"


def label(c: Checkpoint) -> str:
    """A checkpoint as findings call it."""
    return f"the {c.kind} checkpoint of {c.label}"
