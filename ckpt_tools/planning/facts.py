"""The facts that rules see of a tree and of a save: values made once from listed and read files."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import merge
from itertools import islice
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools.discovery.completeness import Expected
from ckpt_tools.layouts import Layouts, Piece
from ckpt_tools.layouts.common.saved_by import Topology
from ckpt_tools.model.checkpoint import Checkpoint, Order
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.ranges import Ranges
from ckpt_tools.model.report import Report, Tensor


class UnplacedFile(Struct, frozen=True):
    """A file below ROOT that no layout recognises."""

    path: str
    size: int
    mtime_ns: int
    format: str | None
    state: bool  # its format can hold a training state
    optimizer: bool | None = None  # it holds an optimizer's state; None if it cannot be read
    step: int | None = None
    broken: bool = False
    damage: str = ""  # what is wrong with it, if its data is here and cannot be loaded
    inside: bool = False  # it lies in the directory of the choice


When = tuple[int, ...]
"""When in training: step, epoch, step in the epoch, restart (if no step is known), date. -1: unknown."""


class StateFile(Struct, frozen=True):
    """One file of a save, as it is compared between the saves of a run."""

    path: str
    role: str
    kind: Kind
    home: str  # the directory of its save, "" if it lies among files of other saves
    when: When
    series: tuple[object, ...]  # the same at all steps: role, rank, coordinates, name
    content: bytes  # a digest or size: files with the same are equal as far as they were read
    compared: bool  # it is a state, would be loaded, and its layout lets it change
    broken: bool = False
    trained: bool = False  # every step changes it
    indexed: bool = False  # an index lists its tensors
    fits: bool = False  # its content tells the same name or step as its path
    state: bool = False  # it holds a model or an optimizer's state


class SavesFacts(Struct, frozen=True):
    """Saves of one run: all that save rules see."""

    saves: Sequence[Checkpoint]  # these are judged
    expected: Expected  # what the run's saves lead to expect of each
    files: Sequence[Part] = ()  # of the saves, and files that they are compared with
    reports: Mapping[str, Report] = field(default_factory=dict)  # the deepest ones by path
    tensors: Callable[[Part], Mapping[str, Tensor]] = lambda _: {}  # a file's tensors by name
    # whether a file of a format may end after any record and look whole
    hides_cuts: Callable[[str | None], bool] = lambda _: False
    # whether a file begins with all tensors of another
    begins_with: Callable[[Part, Report], bool] = lambda _whole, _cut: False
    first: Order | None = None  # the order of the run's first save; None if ``files`` are the whole run's

    @property
    def layouts(self) -> Layouts:
        """All layouts."""
        return self.expected.layouts

    def report(self, part: Part) -> Report:
        """Return the report on a file. Raises KeyError if it was not read."""
        if (report := self.reports.get(part.path)) is None:
            raise KeyError(part.path)
        return report

    @property
    def rows(self) -> list[tuple[Part, Report]]:
        """The files that were read, each with its report."""
        return [(p, r) for p in self.files if (r := self.reports.get(p.path)) is not None]


class Tensors(NamedTuple):
    """What a file says about its tensors."""

    signature: str  # "" if it cannot be read
    partial: str = ""  # why it holds less than its rank had, so that it is no replica
    sizes: Mapping[str, int] = MappingProxyType({})  # the parallel sizes of its job


class OwnFile(NamedTuple):
    """A file that a rank itself wrote: its name for messages, and the signature of its tensors."""

    name: str
    signature: str


class Evidence(Struct, frozen=True):
    """Functions that tell about replicas; each may read files."""

    tensors: Callable[[Part], Tensors]
    # the nearest readable file that a rank itself wrote in the role of a part
    find_own_file: Callable[[int, Part], OwnFile | None]
    differences: Callable[[Part, Part], Sequence[str]] | None = None  # unequal tensors; None if not asked for


class StandIn(Struct, frozen=True):
    """A file that may replace one that a rank lacks. ``by_layout``: the layout calls them equal."""

    rank: int
    part: Part
    piece: Piece
    source: str
    topology: Topology
    evidence: Evidence
    by_layout: bool
    strict: bool


class Gap(Struct, frozen=True):
    """Ranks, of a job of ``world``, that have no usable file of a role."""

    path: str
    role: str
    world: int
    group: str = ""  # who holds the same state; "" if nobody does
    damaged: bool = False  # they have files of their own
    asked: bool = False  # only the caller can tell their group
    ranks: Ranges = ()


_EACH_WAY = 2
"""How many saves before, and how many after it, a checkpoint is compared with."""


def get_order(c: Checkpoint) -> tuple[Order, int]:
    """Return the key by which the saves of a run are in the order of training."""
    return c.order, c.mtime_ns


def find_neighbours(c: Checkpoint, in_order: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the saves next to one, before and after, of its layout, run and kind. Few can be damaged."""

    def is_alike(o: Checkpoint) -> bool:
        return (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind) and o.key != c.key

    at = bisect_left(in_order, get_order(c), key=get_order)
    before = (in_order[i] for i in range(at - 1, -1, -1))
    after = (in_order[i] for i in range(at, len(in_order)))
    return [o for way in (before, after) for o in islice(filter(is_alike, way), _EACH_WAY)]


class Run(Struct, frozen=True, dict=True):
    """One run: finished ``checkpoints``, ``candidates`` that no filter hides, how many ranks ``saved``."""

    checkpoints: Sequence[Checkpoint]
    candidates: Sequence[Checkpoint]
    expected: Expected
    topology: Topology
    saved: int | None

    @cached_property
    def in_order(self) -> list[Checkpoint]:
        """The candidates in the order of training."""
        return sorted(self.candidates, key=get_order)

    @cached_property
    def _by_time(self) -> list[Checkpoint]:
        return sorted(self.checkpoints, key=attrgetter("mtime_ns"))

    @cached_property
    def first(self) -> dict[tuple[str, str], Order]:
        """The order of the first save of each layout and run."""
        return {(o.layout, o.run): o.order for o in sorted(self.checkpoints, key=lambda o: o.order)[::-1]}

    def find_nearest(self, c: Checkpoint) -> Iterator[Checkpoint]:
        """Yield the run's other finished checkpoints, the nearest in time to ``c`` first."""
        at = bisect_left(self._by_time, c.mtime_ns, key=attrgetter("mtime_ns"))
        sides = reversed(self._by_time[:at]), self._by_time[at:]
        near = merge(*sides, key=lambda o: abs(o.mtime_ns - c.mtime_ns))
        yield from (o for o in near if o.key != c.key)
