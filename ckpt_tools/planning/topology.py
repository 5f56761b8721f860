"""How many ranks there are and how they are arranged, with the source of each number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain, islice, pairwise
from math import prod
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools import launchers
from ckpt_tools.cache import is_inside
from ckpt_tools.discovery import completeness
from ckpt_tools.discovery.group import list_essential
from ckpt_tools.formats.common.format import RankGroups
from ckpt_tools.layouts import Layout, Layouts
from ckpt_tools.layouts.common import saved_by as in_files
from ckpt_tools.layouts.common.saved_by import ALONE, Topology
from ckpt_tools.layouts.common.templates import COORDS
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Known
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.rules.save import mixed_counters, parallel_sizes, rank_mismatch
from ckpt_tools.planning.rules.save.parallel_sizes import HIGHEST
from ckpt_tools.planning.rules.save.rank_mismatch import Rows, find_placed, find_rank_order
from ckpt_tools.reading.scheduler import prefetch
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import trust
from ckpt_tools.storage.listing import list_entries
from ckpt_tools.storage.trust import Trust, Untrusted
from ckpt_tools.storage.urls import is_url

_SIZED = ("tp", "pp", "cp", "ep", "etp")
"""Axes whose size files or names may tell; the data parallel size is what the world size leaves over."""
_GRID = ("tp", "cp", "dp", "pp")
"""Axes whose sizes make up the world size."""
_PLACED = ("tp", "cp", "ep", "dp", "pp")
"""Axes that the rank order has to place."""
_FILES = 256
"""How many files of one checkpoint are read at most."""
_NEIGHBOURS = 64
"""How many files of other checkpoints are read at most for the rank order, as many as the judge reads."""
_ASKED = 4
"""How many checkpoints are read at most for the number of ranks."""
_Coords = frozenset[tuple[tuple[str, int], ...]]
"""The coordinates in the names of a checkpoint's files."""


def settle_expert_names(s: Session, checkpoints: list[Checkpoint], level: Level) -> list[Checkpoint]:
    """Return checkpoints with the axis "ep" in place of "pp" where names count experts: the last number of
    mp_rank_00_001 is an expert if there is one pipeline stage, as a model's file tells. Reads files.
    """
    if not any(dict(p.coords)["pp"] for c in checkpoints for p in _find_ambiguous_parts(c.parts)):
        return checkpoints
    grids, counts_experts = list[_Coords](), dict[_Coords, bool | None]()
    for c in checkpoints:
        parts = list(_find_ambiguous_parts(_find_sizing_files(c, s.layouts)))
        grid = frozenset(p.coords for p in parts)
        grids.append(grid)
        if len(grid) > 1 and counts_experts.get(grid) is None:
            counts_experts[grid] = _do_count_experts(s.report(p, level) for p in parts[:_NEIGHBOURS])
    usual = next((experts for experts in counts_experts.values() if experts is not None), False)
    known = {grid: usual if experts is None else experts for grid, experts in counts_experts.items()}
    rows = zip(checkpoints, grids, strict=True)
    return [_name_experts(c) if known.get(grid, usual) else c for c, grid in rows]


def _find_ambiguous_parts(parts: Sequence[Part]) -> Iterator[Part]:
    """Yield parts whose names may count experts as "pp", which looks like pipeline stages."""
    for p in parts:
        axes = [axis for axis, _ in p.coords]
        if "pp" in axes and "ep" not in axes:
            yield p


def _do_count_experts(reports: Iterator[Report]) -> bool | None:
    """Return True if the first report with sizes has experts and one stage; None if none has sizes."""
    sizes = next(filter(None, (in_files.read_sizes([r]) for r in reports)), None)
    return None if sizes is None else sizes.get("pp") == 1 and sizes.get("ep", 1) > 1


def _name_experts(c: Checkpoint) -> Checkpoint:
    """Return a checkpoint with the axis "pp" of its parts called "ep"."""
    parts = list(c.parts)
    for i, p in enumerate(parts):
        if "ep" not in dict(p.coords):
            parts[i] = p._replace(coords=tuple(("ep" if axis == "pp" else axis, at) for axis, at in p.coords))
    return replace(c, parts=tuple(parts))


def read_saved_sizes(s: Session, checkpoint: Checkpoint, level: Level) -> Mapping[str, int]:
    """Return parallel sizes of the job that saved a checkpoint, as its files tell; reads some of them."""
    files = _find_sizing_files(checkpoint, s.layouts)[:_ASKED]
    return in_files.read_sizes(s.report(p, level) for p in files)


def leave_out_leftovers(s: Session, checkpoints: Sequence[Checkpoint], level: Level) -> list[Checkpoint]:
    """Return checkpoints without older files of ranks that only a larger job before had. Reads."""
    settled = list(checkpoints)
    for i, c in enumerate(settled):
        if not _has_older_ranks(c.parts):
            continue
        layout = s.layouts.of(c)
        lost = {p.path for p in completeness.find_left_over(c, layout, read_saved_sizes(s, c, level))}
        parts = tuple(p for p in c.parts if p.path not in lost)
        times = sorted(p.mtime_ns for p in list_essential(parts, layout))
        if lost and times:
            settled[i] = replace(c, parts=parts, mtime_ns=times[len(times) // 2])
    return settled


def _has_older_ranks(parts: Sequence[Part]) -> bool:
    """Return True if all files from some data parallel rank on are older than all of lower ranks."""
    rows = sorted((dict(p.coords).get("dp", 0), p.mtime_ns) for p in parts)
    oldest_until = list(accumulate((ns for _, ns in rows), min))
    newest_from = list(accumulate((ns for _, ns in reversed(rows)), max))[::-1]
    starts = [i for i, ((rank, _), (following, _)) in enumerate(pairwise(rows), 1) if rank < following]
    return any(newest_from[i] < oldest_until[i - 1] for i in starts)


def find_leftovers_beside(s: Session, c: Checkpoint, expected: completeness.Expected) -> Iterator[Finding]:
    """Yield findings on files of a larger job in the directory of a checkpoint, which has none of them."""
    whole = replace(c, parts=tuple(p for p in s.parts if p.home == c.parts[0].home and p.layout == c.layout))
    yield from mixed_counters.find_leftovers(whole, expected)


def find_topology(
    s: Session, ranked: Sequence[Checkpoint], expected: completeness.Expected, selection: Selection
) -> tuple[Topology, int | None, list[Finding]]:
    """Return the topology, how many ranks wrote the files (None if nothing tells), and warnings. Order of
    trust: flag, launcher, file content, names on disk (docs/design.md section 5); but if contents contradict
    the names, or each other, the names are right.
    """
    first = next((c for c in ranked if c.kind is not Kind.RELEASE), ranked[0])
    like = (c for c in ranked if (c.kind, c.layout, c.run) == (first.kind, first.layout, first.run))
    # one save alone may have lost the highest places, which two do not
    newest = [first, *islice((c for c in like if c is not first), 1)]
    rows, in_contents = _ask_files(s, ranked, first, selection)
    known = _find_sizes(newest, [r for _, r in rows], selection)
    sizes = {axis: size.value for axis, size in known.items()}
    order = selection.rank_order
    if axis := next((a for a in _PLACED if a not in order.split("-") and sizes.get(a, 1) > 1), None):
        raise parallel_sizes.ask_for_axis(axis, sizes[axis], order)
    worlds = _find_worlds(newest, expected, in_contents, sizes, selection)
    known["world_size"] = world = _count_ranks(selection, worlds)
    pieces = map(s.layouts.piece_of, first.parts)
    warnings = [*parallel_sizes.warn_of_inferred(world, pieces, s.root)]
    if order == Selection().rank_order:
        order = _find_rank_order(s, ranked, rows, selection)
        if order != selection.rank_order:
            warnings.append(rank_mismatch.describe_other_order(order, first.path))
    strategy = read_groups(selection, s.root, world.value)
    saved = _find_saved_world(first, worlds, s.layouts.of(first))
    return Topology(world.value, sizes, order, known, strategy), saved, warnings


# ---- which files are read


def _ask_files(
    s: Session, ranked: Sequence[Checkpoint], first: Checkpoint, selection: Selection
) -> tuple[Rows, int | None]:
    """Return files with their reports, and the number of ranks that they tell, or None."""
    without_world, pieces = list[tuple[Part, Report]](), set[str]()
    for c in ranked[:_ASKED]:  # an older one for pieces without a sound file so far, if names show a grid
        if c.kind is Kind.RELEASE and c is not first:
            continue
        files = _find_sizing_files(c, s.layouts)
        rows = _read_reports(s, [p for p in files if p.piece not in pieces][:_FILES], selection)
        if world := _find_saved_world_size(rows, s.layouts.of(c).ranks.told_by):
            return rows, world
        without_world = without_world or rows
        pieces.update(p.piece for p, r in rows if r.verdict is not Verdict.BROKEN)
        if pieces and not any(axis in COORDS for p in first.parts for axis, _ in p.coords):
            break  # this file could have told
    return without_world, None


def _find_saved_world_size(rows: Rows, sizing_piece: str) -> int | None:
    """Return the number of ranks that files tell, else the one of files of the ``sizing_piece``; or None."""
    world = in_files.find_world_size(r for _, r in rows)
    return world or in_files.read_world_size(r for p, r in rows if p.piece == sizing_piece)


def _read_reports(s: Session, parts: Sequence[Part], selection: Selection) -> list[tuple[Part, Report]]:
    """Return each file with its report, at most of level structure."""
    level = min(Level.STRUCTURE, selection.level)
    prefetch(s, parts, level)
    return [(p, s.report(p, level)) for p in parts]


def _find_sizing_files(c: Checkpoint, layouts: Layouts) -> list[Part]:
    """Return the files that may tell how many ranks saved them; files of the piece for it go first."""
    sizing_piece = layouts.of(c).ranks.told_by
    files = [p for p in c.parts if p.role == "model" or p.piece == sizing_piece]
    return sorted(files, key=lambda p: p.piece != sizing_piece)


# ---- parallel sizes


def _find_sizes(newest: list[Checkpoint], reports: list[Report], selection: Selection) -> dict[str, Known]:
    """Return the sizes of all parallel axes that anything tells; of the data parallel axis only by flag."""

    def sizes_of(saves: Sequence[Checkpoint]) -> dict[str, Known]:
        sizes = {axis: _find_size(axis, saves, reports, selection.sizes.get(axis)) for axis in _SIZED}
        return {axis: size for axis, size in sizes.items() if size.value}

    world, sizes = _find_given_world(selection), sizes_of(newest)
    if world and world.value % prod(size.value for axis, size in sizes.items() if axis in _GRID):
        sizes = sizes_of(newest[:1])  # this job has fewer places than the save before
    if dp := selection.sizes.get("dp"):
        sizes["dp"] = Known(dp, "--parallel dp")
    return sizes


def _find_size(axis: str, newest: Sequence[Checkpoint], reports: Sequence[Report], flag: int | None) -> Known:
    """Return the size of an axis, 0 if unknown. Names of a second save count only if no file tells it."""
    if flag:
        return Known(flag, f"--parallel {axis}")
    in_file, shards = in_files.read_size(axis, reports), in_files.read_shard_count(axis, reports)
    on_disk = Known(_find_named_size(axis, newest[:1] if in_file or shards else newest), "directory names")
    if shards and shards.value > on_disk.value:
        on_disk = shards
    return in_file if in_file and in_file.value >= on_disk.value else on_disk


def _find_named_size(axis: str, saves: Sequence[Checkpoint]) -> int:
    """Return how many places of an axis the names of files show, 0 if they show none."""
    return 1 + max((at for c in saves for p in c.parts for a, at in p.coords if a == axis), default=-1)


def _find_rank_order(s: Session, ranked: Sequence[Checkpoint], rows: Rows, selection: Selection) -> str:
    """Return the rank order that most files show. Files of the newest save may have been swapped."""
    known = list(find_placed(rows))
    # the one file left of a save may stand where every order has it
    places = max((prod(n for axis, n in row.sizes if axis in in_files.PLACES) for row in known), default=1)
    if places > 1 or len({row.rank for row in known}) > 1:
        read = {p.path for p, _ in rows}
        files = (p for c in ranked[:_ASKED] for p in _find_sizing_files(c, s.layouts))
        others = list(islice((p for p in files if p.path not in read), _NEIGHBOURS))
        known += find_placed(_read_reports(s, others, selection))
    return find_rank_order(known)


# ---- the number of ranks


class _Worlds(NamedTuple):
    """How many ranks wrote a save, by contents, names, highest rank and parallel sizes; None or 0: untold."""

    in_files: Known | None
    in_names: int | None
    highest: int | None
    grid: int


def _find_worlds(
    newest: Sequence[Checkpoint],
    expected: completeness.Expected,
    in_contents: int | None,
    sizes: Mapping[str, int],
    selection: Selection,
) -> _Worlds:
    """Return how many ranks wrote the first of the ``newest`` saves, as each source tells it."""
    first = newest[0]
    grid = prod(sizes.get(axis, 1) for axis in _GRID) if sizes else 0
    world = Known(in_contents, "world_size in the files") if in_contents else None
    if world and grid and not selection.sizes and world.value % grid:
        world = Known(grid, "parallel sizes")  # each grid position with files had a rank
    if grid and "dp" not in sizes:
        grid *= _find_named_size("dp", newest) or 1
    shared = all(expected.layouts.of(first).piece(p.piece).readers.shared for p in first.parts)
    # of files that every rank loads, only this save's own names tell how many ranks wrote them
    highest = completeness.expect_ranks([first], expected.layouts) if shared else expected.named
    return _Worlds(world, completeness.read_world(first), highest, grid)


def _count_ranks(selection: Selection, worlds: _Worlds) -> Known:
    """Return the job's number of ranks. Raises UsageError if it is no multiple of what --parallel gives."""
    world = _find_given_world(selection)
    if world is None:
        in_contents, in_names, highest, grid = worlds
        sources = {"names on disk": in_names, HIGHEST: highest, "parallel sizes": grid, ALONE: 1}
        world = in_contents or next(Known(n, source) for source, n in sources.items() if n)
        groups = chain.from_iterable(selection.replica_groups.values())
        # a rank that --replica-groups names is one of them
        grouped = 1 + max(chain.from_iterable(groups), default=-1)
        world = Known(grouped, "--replica-groups") if grouped > world.value else world
    if world.value % (grid := prod(selection.sizes.get(axis, 1) for axis in _GRID)):
        raise parallel_sizes.ask_for_multiple(world, grid)
    return world


def _find_saved_world(first: Checkpoint, worlds: _Worlds, layout: Layout) -> int | None:
    """Return how many ranks wrote the files, None if neither contents nor names tell it."""
    if worlds.in_files:
        return worlds.in_files.value
    if layout.complete.by_name:
        return None
    in_names = worlds.in_names or worlds.highest
    if any(layout.piece(p.piece).readers.sharded for p in first.parts):
        return in_names  # the grid of their names does not show how many ranks shared them
    return in_names or worlds.grid or 1


def _find_given_world(selection: Selection) -> Known | None:
    """Return the number of ranks from --world-size, else from the launcher; None if neither gives it."""
    if selection.world_size:
        return Known(selection.world_size, selection.world_from)
    started = launchers.find_current()
    if started and started.world_size:
        return Known(started.world_size.value, started.world_size.provenance)
    return None


def read_groups(selection: Selection, root: str, world_size: int) -> RankGroups:
    """Return groups of equal ranks from --strategy-dir, else (). Raises UsageError or CannotLook."""
    directory = selection.strategy_dir
    if directory is None:
        return ()
    require_trusted(directory, root, selection.trust)
    from ckpt_tools.formats import FORMATS  # imports all of them

    read = next(f.rank_groups for f in FORMATS if f.rank_groups is not None)
    return read(directory, world_size)


def require_trusted(directory: str, root: str, trusted: Trust) -> None:
    """Raise Untrusted if strategy files lie outside ROOT and others could have written them."""
    if is_inside(directory, root):
        return
    if is_url(directory):
        text = f"--strategy-dir {directory} lies outside {root}, and nothing tells who may write there"
        raise Untrusted(text, "copy its files to a directory of your own, and name that")
    with suppress(OSError), trust.label("--strategy-dir"):  # read_groups raises CannotLook for it
        trust.check(directory, trusted)
        for entry in list_entries(directory):
            trust.check(entry.path, trusted)
