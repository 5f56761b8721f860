"""``save/rank-mismatch``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from ckpt_tools.discovery.completeness import Coordinates
from ckpt_tools.layouts import COORDS, Layout, Layouts, Piece
from ckpt_tools.layouts.common.saved_by import Topology, guess_rank, read_owner, read_sizes
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield files that were written by another rank than the one in their path, each once."""
    rows = [(part, report) for part, report in facts.rows if report.format and report.metadata]
    hits = (*_find_by_name(rows, facts.layouts), *_find_by_grid(rows))
    yield from {hit.path: hit for hit in reversed(hits)}.values()


def _find_by_grid(rows: Rows) -> Iterator[Hit]:
    """Yield files whose path has other coordinates than their writer, in the rank order of most files."""
    known = list(find_placed(rows))
    order = find_rank_order(known)
    for row in known:
        if not row.fits(order):
            named, own = _format(row.coords), _format(row.find_coordinates(order))
            writer = f"rank {row.rank}, which is {own} (rank order {order})"
            text = f"the path says {named}, the file was written by {writer}"
            yield Hit(row.part.path, text, of_file=True)


def _format(coordinates: Iterable[tuple[str, int | None]]) -> str:
    """Return coordinates as text: ``tp=0 pp=1``."""
    return " ".join(f"{axis}={at}" for axis, at in coordinates)


def _find_by_name(rows: Rows, layouts: Layouts) -> Iterator[Hit]:
    """Yield files that tell other coordinates than their path, or another rank if each has one writer."""
    own = [(p, r) for p, r in rows if p.rank is not None and _is_of_one_rank(layouts.piece_of(p))]
    trust_likely, of_one_rank = _are_likely_ranks_right(own), {p.path for p, _ in own}
    for part, report in rows:
        in_file, in_path = read_owner(report.metadata), dict(part.coords)
        if part.path in of_one_rank and part.rank is not None:
            in_path["rank"] = part.rank
            if trust_likely and (likely := guess_rank(report.metadata)) is not None:
                in_file.setdefault("rank", likely)
        for axis in (*COORDS, "rank"):
            if axis in in_file and axis in in_path and in_file[axis] != in_path[axis]:
                text = f"the path says {axis}={in_path[axis]}, the file was written by {axis}={in_file[axis]}"
                yield Hit(part.path, text, of_file=True)


def _are_likely_ranks_right(rows: Rows) -> bool:
    """Return True if ranks that contents suggest equal most names, or permute the names in each save."""
    saves: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for part, report in rows:
        if part.rank is not None and (likely := guess_rank(report.metadata)) is not None:
            saves[part.home or str(part.step)].append((part.rank, likely))
    agree = [named == likely for pairs in saves.values() for named, likely in pairs]
    if 2 * sum(agree) > len(agree):
        return True
    several = [tuple(zip(*pairs, strict=True)) for pairs in saves.values() if len(pairs) > 1]
    return bool(several) and all(sorted(named) == sorted(likely) for named, likely in several)


def _is_of_one_rank(piece: Piece) -> bool:
    """Return True if only one rank writes the file: not a set that all share, nor one for its group."""
    readers = piece.readers
    is_own = not readers.shared or readers.sharded
    return is_own and (not readers.replicated_over or readers.everyone_saves)


def describe_other_order(order: str, path: str) -> Finding:
    """Return the note that files show another rank order than the default one, such as tp-cp-ep-pp-dp."""
    text = f"the files were written in rank order {order}, which the plan follows"
    hint = f"nothing is wrong with them; --parallel order={order} says it without a note"
    return finding_of(RULE, Hit(path, text, hint, Severity.NOTE))


def find_doubled(c: Checkpoint, layout: Layout) -> Iterator[Finding]:
    """Yield files in a save's own directory with the piece, rank and coordinates of another file."""
    first_at: dict[tuple[str, int | None, Coordinates], str] = {}
    for p in c.parts:
        if not layout.piece(p.piece).readers.shared:
            # without "world": of -of-2 and -of-4 one set is a leftover
            coords = tuple(at for at in p.coords if at[0] != "world")
            first = first_at.setdefault((p.piece, p.rank, coords), p.path)
            if p.home and first != p.path:
                text = f"{first.rpartition('/')[2]} is there as well for the same rank"
                yield finding_of(RULE, Hit(p.path, text, code="extra-file"))


RULE = Rule(
    id="save/rank-mismatch",
    codes=("rank-mismatch", "extra-file"),
    effect=Effect.REJECT,
    answer="put the files of the two ranks back in their places",
    check=check,
    why="""\
A file says that another rank wrote it than its name says. The two ranks would train on each other's
shard, which no loader notices where shapes are equal.
For: Megatron's args.rank and cur_rank; hand-made copies of mp_rank_XX.
""",
)


Rows = Sequence[tuple[Part, Report]]
DEFAULT = Topology(1).order
ORDERS = tuple(
    dict.fromkeys((DEFAULT, "tp-cp-ep-pp-dp", *("-".join(axes) for axes in permutations(DEFAULT.split("-")))))
)
"""Megatron-LM's default order, that of --use-tp-pp-dp-mapping, and all others."""
_MOST = 512
"""How many files an order is worked out from at most."""


class Placed(NamedTuple):
    """A file of a parallel grid: the rank that wrote it, its coordinates, and the sizes that it tells."""

    part: Part
    rank: int
    coords: tuple[tuple[str, int], ...]
    sizes: tuple[tuple[str, int], ...]

    def find_coordinates(self, order: str) -> tuple[tuple[str, int | None], ...]:
        """Return the coordinates of the writing rank if ranks are laid out in this order."""
        sizes = dict(self.sizes)
        coordinates = Topology(sizes.pop("world"), sizes, order).coordinates(self.rank)
        return tuple((axis, coordinates.get(axis)) for axis, _ in self.coords)

    def fits(self, order: str) -> bool:
        """Return True if the rank order explains the coordinates in the name."""
        return self.find_coordinates(order) == self.coords


def find_placed(rows: Rows) -> Iterator[Placed]:
    """Yield files that tell their writer and a sensible grid. Without stages "pp" in a name is an expert."""
    for part, report in rows:
        rank, sizes = read_owner(report.metadata).get("rank"), read_sizes([report])
        world = sizes.get("world", 0)
        if rank is None or rank >= world or not part.coords or "tp" not in sizes:
            continue
        if world % count_of_one_model(sizes) == 0:
            experts = counts_experts(sizes) and "ep" not in dict(part.coords)
            names = {"pp": "ep"} if experts else {}
            coords = [(names.get(axis, axis), n) for axis, n in part.coords if axis in COORDS]
            grid = [(axis, n) for axis, n in sizes.items() if axis != "dp"]
            yield Placed(part, rank, tuple(coords), tuple(grid))


def counts_experts(sizes: Mapping[str, int]) -> bool:
    """Return True if "pp" in a name counts experts: there is one stage, and there are several experts."""
    return sizes.get("pp", 1) == 1 and sizes.get("ep", 1) > 1


def find_rank_order(rows: Sequence[Placed]) -> str:
    """Return the order that explains most files of a run; Megatron-LM's own order wins a tie."""
    rows = rows[:_MOST]
    if all(row.fits(DEFAULT) for row in rows):
        return DEFAULT
    return max(ORDERS, key=lambda order: (sum(row.fits(order) for row in rows), -ORDERS.index(order)))


def count_of_one_model(sizes: Mapping[str, int]) -> int:
    """Return how many ranks hold one copy of the model."""
    return sizes.get("tp", 1) * sizes.get("pp", 1) * sizes.get("cp", 1)
