"""Whether the writer that a file names, and the grid of ranks it stood in,
fit the place where the file lies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.layouts import COORDS, Layouts, Piece
from ckpt_tools.layouts.common.rank_grid import Topology
from ckpt_tools.layouts.common.saved_by import likely_rank, owner, saved_sizes
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

Rows = Sequence[tuple[Part, Report]]
Found = Iterator[tuple[str, Finding]]
DEFAULT = Topology(1).order
ORDERS = tuple(
    dict.fromkeys((DEFAULT, "tp-cp-ep-pp-dp", *("-".join(axes) for axes in permutations(DEFAULT.split("-")))))
)
"""Megatron-LM's default order, that of --use-tp-pp-dp-mapping, and all others."""
_MOST = 512
"""Files at most that an order is worked out from."""


class Placed(NamedTuple):
    """A file in a parallel grid: who wrote it, where it lies,
    and the sizes of that grid as it says itself.
    """

    part: Part
    rank: int
    coords: tuple[tuple[str, int], ...]
    sizes: tuple[tuple[str, int], ...]

    def stands(self, order: str) -> tuple[tuple[str, int | None], ...]:
        """The coordinates of that rank when ranks are laid out in this order."""
        known = dict(self.sizes)
        there = Topology(known.pop("world"), known, order).coordinates(self.rank)
        return tuple((axis, there.get(axis)) for axis, _ in self.coords)

    def fits(self, order: str) -> bool:
        """Whether that rank belongs where the file lies."""
        return self.stands(order) == self.coords


def contradictions(rows: Rows, layouts: Layouts) -> Found:
    """(path, finding) for the files of one run that another rank wrote than the one whose place they have.

    Or another job than the rest.
    """
    known = [(part, report) for part, report in rows if report.format and report.metadata]
    wrong = set[str]()
    for path, f in (*_by_name(known, layouts), *_by_axis(known), *_by_grid(known)):
        if path not in wrong:
            wrong.add(path)
            yield path, f
    yield from _sizes(known, layouts)


def placed(rows: Rows) -> Iterator[Placed]:
    """The files that tell their writer and the grid it stood in, where that grid makes sense."""
    for part, report in rows:
        rank, sizes = owner(report.metadata).get("rank"), saved_sizes([report])
        world = sizes.get("world", 0)
        if rank is None or rank >= world or not part.coords or "tp" not in sizes:
            continue
        if world % _model_parallel(sizes) == 0:
            grid = tuple((axis, n) for axis, n in sizes.items() if axis != "dp")
            yield Placed(part, rank, tuple(_coordinates(part, sizes)), grid)


def _coordinates(part: Part, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Where a file lies; without pipeline stages a second number in its name is an expert's."""
    experts = _counts_experts(sizes) and "ep" not in dict(part.coords)
    for axis, at in part.coords:
        if axis in COORDS:
            yield "ep" if axis == "pp" and experts else axis, at


def _counts_experts(sizes: Mapping[str, int]) -> bool:
    """Whether what a name gives as the pipeline stage is that of the experts: there are no stages."""
    return sizes.get("pp", 1) == 1 and sizes.get("ep", 1) > 1


def rank_order(rows: Sequence[Placed]) -> str:
    """The order that explains most files of a run; Megatron-LM's own goes first where several do."""
    some = rows[:_MOST]
    if all(row.fits(DEFAULT) for row in some):
        return DEFAULT
    return max(ORDERS, key=lambda order: (sum(row.fits(order) for row in some), -ORDERS.index(order)))


def _model_parallel(sizes: Mapping[str, int]) -> int:
    """Ranks that hold one copy of the model."""
    return sizes.get("tp", 1) * sizes.get("pp", 1) * sizes.get("cp", 1)


def _by_grid(rows: Rows) -> Found:
    """Writers whose rank has other coordinates. Replicas may be written by any rank of their group."""
    known = list(placed(rows))
    order = rank_order(known)
    for row in known:
        if not row.fits(order):
            here, there = _spelled(row.coords), _spelled(row.stands(order))
            writer = f"rank {row.rank}, which is {there} (rank order {order})"
            text = f"the path says {here}, the file was written by {writer}"
            yield row.part.path, finding("rank-mismatch", text)


def _spelled(coordinates: Iterable[tuple[str, int | None]]) -> str:
    return " ".join(f"{axis}={at}" for axis, at in coordinates)


def _by_axis(rows: Rows) -> Found:
    """Writers that name their coordinates."""
    for part, report in rows:
        said, places = owner(report.metadata), dict(part.coords)
        for axis in COORDS:
            if axis in said and axis in places and said[axis] != places[axis]:
                text = f"the path says {axis}={places[axis]}, the file was written by {axis}={said[axis]}"
                yield part.path, finding("rank-mismatch", text)


def _by_name(rows: Rows, layouts: Layouts) -> Found:
    """Files with a rank in their name, and only one writer."""
    ranked = [(part, report) for part, report in rows if part.rank is not None]
    own = [(part, report) for part, report in ranked if _one_rank_writes(layouts.piece_of(part))]
    trusted = _trusted(own)
    for part, report in own:
        writer = owner(report.metadata).get("rank", likely_rank(report.metadata) if trusted else None)
        if writer is not None and writer != part.rank:
            text = f"the path says rank {part.rank}, the file was written by rank {writer}"
            yield part.path, finding("rank-mismatch", text)


def _trusted(rows: Rows) -> bool:
    """Whether what may be the writer's rank is.

    It agrees with most names, or the names of every save are a permutation of it.
    """
    saves: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for part, report in rows:
        if part.rank is not None and (maybe := likely_rank(report.metadata)) is not None:
            saves[part.home or str(part.step)].append((part.rank, maybe))
    agree = [rank == said for pairs in saves.values() for rank, said in pairs]
    if 2 * sum(agree) > len(agree):
        return True
    several = [pairs for pairs in saves.values() if len(pairs) > 1]
    return bool(several) and all(map(_permuted, several))


def _permuted(pairs: Sequence[tuple[int, int]]) -> bool:
    return sorted(a for a, _ in pairs) == sorted(b for _, b in pairs)


def _one_rank_writes(piece: Piece) -> bool:
    """Whether only that rank writes the file: not a set that all share, nor one replica for its group."""
    return (not piece.shared or piece.sharded) and (not piece.replicated_over or piece.everyone_saves)


def _sizes(rows: Rows, layouts: Layouts) -> Found:
    """Parallel sizes that contradict each other, the names, or the other files of a checkpoint:
    once for each checkpoint.
    """
    homes: dict[str, list[tuple[Part, dict[str, int]]]] = defaultdict(list)
    for part, report in rows:
        if part.home and part.coords and "world" in (said := saved_sizes([report])):
            homes[part.home].append((part, said))
    for files in homes.values():
        yield from _two_jobs(files)
        told = ((part, _why(part, said, layouts.piece_of(part))) for part, said in files)
        doubtful = [(part, why) for part, why in told if why]
        if doubtful:
            more = f" (so do {len(doubtful) - 1} more of its checkpoint)" if len(doubtful) > 1 else ""
            yield doubtful[0][0].path, finding("parallel-sizes", doubtful[0][1] + more)


def _why(part: Part, said: Mapping[str, int], piece: Piece) -> str:
    """How one file's parallel sizes contradict each other or its path; "" when they do not."""
    model, world = _model_parallel(said), said["world"]
    if "tp" in said and world % model:
        sizes = " ".join(f"{axis}={said[axis]}" for axis in ("tp", "pp", "cp") if said.get(axis, 1) > 1)
        return f"the file says {sizes}, {model} ranks, and that {world} ranks saved it"
    for axis, at in part.coords:
        if at >= said.get(axis, at + 1) and not (axis == "pp" and _counts_experts(said)):
            return f"the path says {axis}={at}, the file that there are {said[axis]}"
    for axis in ("tp", "pp"):
        if f"{{{axis}" in piece.template and axis not in dict(part.coords) and said.get(axis, 1) > 1:
            return f"the path names no {axis}, the file says that there are {said[axis]}"
    return ""


Job = tuple[tuple[str, int], ...]
"""What tells jobs apart: the world size, tp and pp, as far as files say."""


def _two_jobs(files: Iterable[tuple[Part, dict[str, int]]]) -> Found:
    """Files of one checkpoint that jobs of different sizes wrote:
    those of the smaller group, of equal ones all.
    """
    jobs: dict[Job, list[Part]] = defaultdict(list)
    for part, said in files:
        job = tuple(sorted((axis, n) for axis, n in said.items() if axis in ("world", "tp", "pp")))
        jobs[job].append(part)
    most = max(map(len, jobs.values()))
    usual = [job for job, parts in jobs.items() if len(parts) == most]
    for job, parts in jobs.items():
        other = next((o for o in (*usual, *jobs) if o != job), None)
        if other is not None and (len(usual) > 1 or job != usual[0]):
            text = _other_job(dict(job), dict(other))
            for part in parts:
                yield part.path, finding("mixed-attempts", text, severity=Severity.ERROR)


def _other_job(job: Mapping[str, int], other: Mapping[str, int]) -> str:
    """How the job that wrote some files differs from the one that wrote the rest of their checkpoint."""
    rest = "wrote it, other files of its checkpoint one"
    if job["world"] == other["world"]:
        return f"a job with {_named(job)} {rest} with {_named(other)}"
    return f"a job of {job['world']} ranks {rest} of {other['world']}"


def _named(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{axis}={sizes[axis]}" for axis in ("tp", "pp") if axis in sizes)
