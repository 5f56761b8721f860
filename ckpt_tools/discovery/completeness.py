"""Which files a checkpoint lacks that others of its run have, by names, sizes and times alone. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools.layouts import COORDS, Changes, Layout, Layouts, Piece
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Kind, Part

Coordinates = tuple[tuple[str, int], ...]
"""Coordinates in the parallel grid, such as (("tp", 1), ("pp", 0))."""


def expect_ranks(checkpoints: Iterable[Checkpoint], layouts: Layouts) -> int | None:
    """Return the number of ranks that file names tell over all checkpoints of a run; None if no name does."""
    ranks = worlds = -1
    for c in checkpoints:
        layout = layouts.of(c)
        rank_files: Sequence[Part] = c.parts
        if survivable_pieces(layout):  # files that ranks share may have been written by any of them
            rank_files = [p for p in c.parts if not layout.piece(p.piece).readers.shared]
        ranks = max([ranks, *[p.rank for p in rank_files if p.rank is not None]])
        worlds = max(worlds, read_world(c) or -1)
    return max(ranks + 1, worlds) if ranks >= 0 else None


def survivable_pieces(layout: Layout) -> frozenset[str]:
    """Return the names of pieces without which the framework resumes, such as random numbers."""
    return frozenset(piece.name for piece in layout.pieces if piece.readers.survivable)


def read_world(checkpoint: Checkpoint) -> int | None:
    """Return how many ranks saved a checkpoint, as its files' names tell (jobs grow and shrink); or None."""
    worlds = (at for p in checkpoint.parts if p.coords for axis, at in p.coords if axis == "world")
    return max(worlds, default=0) or None


def count_ranks(checkpoint: Checkpoint, layout: Layout) -> int | None:
    """Return how many ranks have a file; without ranks in names, how many coordinates of the parallel grid
    have a file of the most frequent piece. None for a set that every rank shares.
    """
    if ranks := {p.rank for p in checkpoint.parts if p.rank is not None}:
        return len(ranks)
    by_piece = defaultdict[str, set[Coordinates]](set)
    for p in checkpoint.parts:
        coords = tuple((axis, n) for axis, n in p.coords if axis in COORDS)
        if coords and not layout.piece(p.piece).readers.shared:
            by_piece[p.piece].add(coords)
    return max(map(len, by_piece.values()), default=None)


def list_own_ranks(checkpoint: Checkpoint, layout: Layout) -> set[int]:
    """Return the ranks with a file that every rank needs; none if a commit says that all is there."""
    if layout.complete.by_name:
        return set()
    return {p.rank for p in checkpoint.parts if p.rank is not None and is_per_rank(layout.piece(p.piece))}


def find_highest(checkpoint: Checkpoint, layout: Layout) -> int:
    """Return the highest rank with a file that every rank needs, even if a commit says enough; or -1."""
    own = (p.rank for p in checkpoint.parts if is_per_rank(layout.piece(p.piece)))
    return max((rank for rank in own if rank is not None), default=-1)


class RankFile(NamedTuple):
    """When a rank saved one of its files: the progress of training, and how often the run had restarted."""

    order: tuple[int, int, int]
    restarts: int


class Expected(Struct):
    """The checkpoints of one run taken together: the measure for the files that one of them lacks."""

    layouts: Layouts
    ranks: int  # how many the run has
    named: int | None  # how many names tell
    checkpoints: Sequence[Checkpoint]
    # the job's sizes as a checkpoint's files tell them; read only if names make it look incomplete
    sizes_in_files: Callable[[Checkpoint], Mapping[str, int]]
    # by kind: coordinates of a piece; how many checkpoints have a (layout, piece), and a mark of this name
    places: dict[tuple[Kind, str], set[Coordinates]] = field(default_factory=lambda: defaultdict(set))
    usual: dict[Kind, Counter[tuple[str, str]]] = field(default_factory=lambda: defaultdict(Counter))
    marks: dict[tuple[Kind, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    oldest: dict[Kind, Checkpoint] = field(default_factory=dict)
    count: Counter[Kind] = field(default_factory=Counter)
    # by kind and generation: the ranks that saved it
    writers: dict[tuple[Kind, int | None], set[int | None]] = field(default_factory=lambda: defaultdict(set))
    saved: Counter[object] = field(default_factory=Counter)  # how many saves a step has
    _rank_files: dict[Kind, dict[int | None, list[RankFile]]] = field(default_factory=dict)

    def rank_files(self, kind: Kind) -> Mapping[int | None, Sequence[RankFile]]:
        """Return rank -> its files in all checkpoints of a kind; computed at the first call."""
        if kind not in self._rank_files:
            files = self._rank_files[kind] = defaultdict(list)
            for c in [c for c in self.checkpoints if c.kind is kind]:
                for p in c.parts:
                    files[p.rank].append(RankFile(c.order, p.generation or 0))
        return self._rank_files[kind]


def expect_sizes(
    checkpoints: Sequence[Checkpoint],
    layouts: Layouts,
    world_size: int | None = None,
    sizes_in_files: Callable[[Checkpoint], Mapping[str, int]] = lambda _: {},
) -> Expected:
    """Return what the finished checkpoints of one run lead to expect, of ``world_size`` ranks if given."""
    known_ranks = expect_ranks(checkpoints, layouts)
    run = Expected(layouts, max(world_size or 0, known_ranks or 0), known_ranks, checkpoints, sizes_in_files)
    for c in sorted(checkpoints, key=lambda c: (c.order, c.mtime_ns)):
        layout = layouts.of(c)
        run.count[c.kind] += 1
        run.oldest.setdefault(c.kind, c)
        run.writers[c.kind, c.generation].update([p.rank for p in c.parts])
        run.saved[c.epoch, c.step, c.step_in_epoch] += 1
        for p in [p for p in c.parts if p.rank is None and p.coords]:
            if not layout.piece(p.piece).readers.shared:
                run.places[c.kind, p.piece].add(p.coords)
        run.marks[c.kind, c.layout].update(list_marks(c, layout))
        for name, home in dict.fromkeys((p.piece, p.home) for p in c.parts):
            piece = layout.piece(name)
            if piece.required and (home or not piece.content.step):
                run.usual[c.kind][c.layout, piece.name] += 1
    return run


def list_marks(c: Checkpoint, layout: Layout) -> set[str]:
    """Return the names of files whose presence says that a save, or a rank's part of it, ended."""
    marks = {p.name for p in layout.pieces if p.changes is Changes.MARK and not p.is_unfinished}
    return {p.name for p in c.parts if p.piece in marks}


def is_of_later_ranks(parts: Collection[Part], layout: Layout) -> bool:
    """Return True if files of some ranks are there, none that rank 0 writes, and not any replica will do."""

    def is_of_later_rank(p: Part) -> bool:
        return p.rank > 0 if p.rank is not None else any(at for axis, at in p.coords if axis in COORDS)

    pieces = [(p, layout.piece(p.piece)) for p in parts]
    # each rank saves random numbers at once, so these files count only if no others are there
    saved = [(p, piece) for p, piece in pieces if not piece.readers.survivable]
    if not saved:
        return bool(parts) and all(map(is_of_later_rank, parts))
    readers = [piece.readers for _, piece in saved]
    return all(is_of_later_rank(p) for p, _ in saved) and all(r.sharded or r.shared for r in readers)


def name_place(checkpoint: Checkpoint) -> str:
    """Return a checkpoint's own directory, else its first file; the run's directory would be shared."""
    return checkpoint.parts[0].home or checkpoint.parts[0].path


def is_per_rank(piece: Piece) -> bool:
    """Return True if every rank of a save needs a file of this piece."""
    return (not piece.readers.shared or piece.readers.sharded) and not piece.readers.survivable


def rate_gaps(checkpoint: Checkpoint, run: Expected) -> Severity:
    """Return how bad gaps are: a warning for a dying gasp, and for the oldest save, which is pruned first."""
    kind = checkpoint.kind
    # "is": the judge asks for all of a checkpoint to which it has added what an index names
    pruned = run.count[kind] > 1 and run.oldest.get(kind) is checkpoint
    return Severity.WARNING if kind is Kind.DYING_GASP or pruned else Severity.ERROR


def find_lacking(checkpoint: Checkpoint, layout: Layout, *, survivable: bool) -> dict[str, str]:
    """Return role -> text for each role that has no file, although one is there that is saved with it."""
    present = {p.piece for p in checkpoint.parts}
    roles = {layout.piece(name).role for name in present}
    spared = {piece.role for piece in layout.pieces if piece.readers.survivable}
    return {
        role: f"no {role} file, which is always saved with its {name} file"
        for name, role in layout.complete.saved_with
        if name in present and role not in roles and (role in spared) is survivable
    }


def find_usual(checkpoint: Checkpoint, run: Expected) -> Iterator[Piece]:
    """Yield the pieces that at least half of the checkpoints of its run have."""
    layout, kind = run.layouts.of(checkpoint), checkpoint.kind
    for (of_layout, name), count in run.usual[kind].items():
        # a dying gasp of another layout may be part of the run
        if of_layout == layout.name and 2 * count >= run.count[kind]:
            yield layout.piece(name)


def find_left_over(checkpoint: Checkpoint, layout: Layout, sizes: Mapping[str, int]) -> list[Part]:
    """Return files of data parallel ranks beyond ``sizes["dp"]``, which a larger job wrote before."""
    world = sizes.get("dp", 0)
    higher = (p for p in checkpoint.parts if world and dict(p.coords).get("dp", 0) >= world)
    return [p for p in higher if not layout.piece(p.piece).readers.shared]


_FEW = 16
"""How many runs are named one by one; of more runs, names that differ by a number are joined."""


def list_runs(runs: Iterable[tuple[str, str]]) -> str:
    """Return (layout, run) pairs as text, all of them: whoever has to choose one needs the whole list."""
    names = [
        f"{run} (layout {layout})" if run not in ("", ".") else f". (ROOT itself, layout {layout})"
        for layout, run in runs
    ]
    text = ", ".join(sorted(names)) if len(names) <= _FEW else ranges.names(names)
    return f"{'several runs' if len(names) > 1 else 'one run'}: {text}"


def say_unfinished(c: Checkpoint, layout: Layout) -> str:
    """Return how a save shows that it never finished: the second half of a sentence about it."""
    if any(p.unfinished for p in c.parts) or not layout.complete.commit:
        return "never reached its commit rename"
    return f"has no {layout.complete.commit} file, which is written last"


def name_kind(c: Checkpoint) -> str:
    return f"the {c.kind.adjective}checkpoint of {c.label}"
