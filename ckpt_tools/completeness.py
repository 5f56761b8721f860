"""What a checkpoint lacks, compared with the others of its run. Pure: names, sizes and times are all it sees."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ckpt_tools.codes import finding
from ckpt_tools.layouts import BY_NAME, COORDS
from ckpt_tools.model import Checkpoint, Finding, Kind, Severity


def expected_ranks(checkpoints: Iterable[Checkpoint]) -> int | None:
    """The number of ranks in the names, else one more than the highest rank over all checkpoints of a run; None when no name carries a rank."""
    ranks = worlds = -1
    for c in checkpoints:
        ranks = max([ranks, *[p.rank for p in c.parts if p.rank is not None]])
        worlds = max([worlds, *[at for p in c.parts if p.coords for axis, at in p.coords if axis == "world"]])
    return max(ranks + 1, worlds) if ranks >= 0 else None


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
        if p.coords and not layout.piece(p.piece).shared and (grid := tuple(at for at in p.coords if at[0] in COORDS)):
            places[p.piece].add(grid)
    return max(map(len, places.values()), default=None)


@dataclass
class Expected:
    """What the checkpoints of one run have between them: the measure for what one of them lacks. ``named``: as many ranks as their names tell."""

    ranks: int = 0
    named: int | None = None
    grids: dict[tuple[Kind, str], set[tuple[tuple[str, int], ...]]] = field(default_factory=lambda: defaultdict(set))
    usual: dict[Kind, Counter[tuple[str, str]]] = field(default_factory=lambda: defaultdict(Counter))
    oldest: dict[Kind, int] = field(default_factory=dict)
    count: Counter[Kind] = field(default_factory=Counter)
    checkpoints: Sequence[Checkpoint] = ()
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


def expected(checkpoints: Sequence[Checkpoint], world_size: int | None = None) -> Expected:
    """What the finished checkpoints of one run lead to expect; ``world_size`` when the caller knows it."""
    named = expected_ranks(checkpoints)
    out = Expected(max(world_size or 0, named or 0), named, checkpoints=checkpoints)
    for c in sorted(checkpoints, key=lambda c: (c.order, c.mtime_ns)):
        layout = BY_NAME[c.layout]
        out.count[c.kind] += 1
        out.oldest.setdefault(c.kind, id(c))
        out.writers[c.kind, c.generation].update([p.rank for p in c.parts])
        for p in [p for p in c.parts if p.coords and p.rank is None]:
            if not layout.piece(p.piece).shared:
                out.grids[c.kind, p.piece].add(p.coords)
        for name in {p.piece for p in c.parts}:
            piece = layout.piece(name)
            if piece.required and piece.step_from == "name":
                out.usual[c.kind][c.layout, name] += 1
    return out


def missing(checkpoint: Checkpoint, run: Expected) -> list[Finding]:
    """What a checkpoint lacks compared with its run. Not for committed layouts, whose commit says that it is all there.

    A generation that a single rank wrote (it ran alone) is a note: the others never took part in it.
    """
    layout, kind = BY_NAME[checkpoint.layout], checkpoint.kind
    if layout.committed or checkpoint.unfinished:
        return []
    where = checkpoint.parts[0].home or checkpoint.parts[0].path  # not the run's directory, which its other checkpoints share
    pruned = run.count[kind] > 1 and run.oldest.get(kind) == id(checkpoint)
    severity = Severity.WARNING if kind is Kind.DYING_GASP or pruned else Severity.ERROR
    out: list[Finding] = []
    pieces = [
        piece for name in {p.piece for p in checkpoint.parts if p.rank is not None} if not (piece := layout.piece(name)).shared or piece.sharded
    ]
    if any(piece.required and ("dp" not in piece.replicated_over or piece.everyone_saves) for piece in pieces):
        present = {p.rank for p in checkpoint.parts if p.rank is not None}
        world = named_world(checkpoint) or run.ranks
        absent = world - sum(rank < world for rank in present)
        if absent:

            def gone() -> Iterator[int]:  # of names that tell of a million ranks nobody needs the whole list
                return (rank for rank in range(world) if rank not in present)

            if all(_pruned(checkpoint, rank, run) for rank in gone()):
                severity = Severity.WARNING
            alone = bool(checkpoint.generation) and len(run.writers[kind, checkpoint.generation]) == 1
            text = f"{label(checkpoint)} has no file of {_ranks(list(islice(gone(), _TOLD)), absent)}"
            out.append(finding("missing-rank", text, severity=Severity.NOTE if alone else severity, path=where))
    have: dict[str, set[tuple[tuple[str, int], ...]]] = defaultdict(set)
    for p in checkpoint.parts:
        have[p.piece].add(p.coords)
    for name, coordinates in have.items():
        if layout.piece(name).shared:
            continue
        if lost := sorted(run.grids[kind, name] - coordinates):
            names = ", ".join(" ".join(f"{k}={v}" for k, v in coords) for coords in lost[:4])
            text = f"{label(checkpoint)} lacks the {name} of {names}{' …' if len(lost) > 4 else ''}"
            out.append(finding("missing-rank", text, severity=severity, path=where))
    roles = {layout.piece(name).role for name in have}
    lacking = [role for role in layout.needs if role not in roles]
    out += (finding("missing-part", f"{label(checkpoint)} has no {role} file", severity=severity, path=where) for role in lacking)
    for (of, name), n in run.usual[kind].items():
        if of != checkpoint.layout:  # a dying gasp of another layout may be part of the run
            continue
        role = layout.piece(name).role
        if role not in roles and role not in layout.needs and 2 * n >= run.count[kind]:
            text = f"{label(checkpoint)} has no {name} file, which the run's other checkpoints have"
            out.append(finding("missing-part", text, severity=severity, path=where))
    return out


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
        first = seen.setdefault((p.piece, p.rank, tuple(c for c in p.coords if c[0] != "world")), p.path)  # of -of-2 and -of-4 one set is a leftover
        if p.home and first != p.path:
            yield finding("extra-file", f"{first.rpartition('/')[2]} is there as well for the same rank", path=p.path)


_TOLD = 8
"""Ranks that a message names."""


def _ranks(first: Sequence[int], count: int) -> str:
    text = ", ".join(str(r) for r in first)
    return f"rank {text}" if count == 1 else f"ranks {text}{' …' if count > len(first) else ''} ({count} in all)"


def why_unfinished(c: Checkpoint) -> str:
    """What shows that a save never finished: the second half of a sentence about it."""
    layout = BY_NAME[c.layout]
    if any(p.unfinished for p in c.parts) or not layout.commit:
        return "never reached its commit rename"
    return f"has no {layout.commit} file, which is written last"


def label(c: Checkpoint) -> str:
    """A checkpoint as findings call it."""
    return f"the {c.kind} checkpoint of {c.label}"
