"""The files of one run by their places and steps, and what tells whether equal ones may be equal.

A place is what is the same for a file at all steps: its role, rank, coordinates and name. A step is when in
training.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools.crosscheck.pages import Pages, equal, prints
from ckpt_tools.formats import names
from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.inspection.recognise import by_layout
from ckpt_tools.model import ranges
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level, Report

if TYPE_CHECKING:
    from ckpt_tools.reading.session import Session

_COUNTERS = frozenset({"optimizer_step", "global_step", "step_num", "save_id", "consumed_samples"})
_READERS = frozenset({"_num_yielded", "_snapshot._snapshot_step"})
"""How far an epoch has been read (torchdata/stateful_dataloader/stateful_dataloader.py)."""
MANIFEST = "manifest"
"""The role of what lists files under names that were drawn by lot: no two saves have equal ones."""
_FEW_DIGITS = 32
_WRITERS = 4
"""Files that a rank writes at the same time, at most (DCP's thread_count, 2 in Megatron-core)."""
_DIGITS = re.compile("[0-9]+")
_NAMED = 64
"""Files that two indexes name of which the bytes are compared, at most."""
_TENSORS = 64
"""Tensors of a file that are named, at most."""
_INDEXES = 8
"""Files of a checkpoint that are asked for the names of its optimizer's state, at most."""

At = tuple[int, ...]
"""When in training: step, epoch, step in the epoch, restart."""


class File(NamedTuple):
    """What one place of the checkpoint holds at one step."""

    pages: Pages
    part: Part


class Pair(NamedTuple):
    """Two files that are compared."""

    a: File
    b: File

    @property
    def same(self) -> bool:
        return self.a.pages == self.b.pages


class Rest(NamedTuple):
    """The tensors of two checkpoints: whether all are equal, and in how many places models are.

    ``differs``: some file differs; ``moved``: one that counts no steps; ``optimizer``: an optimizer's.
    """

    equal: bool
    models: int
    differs: bool
    moved: bool
    optimizer: bool


_COUNTED = re.compile(r"/(?:iter|iteration|step|global_step|checkpoint)[_-]?([0-9]{1,18})(?=/)")


def order(p: Part) -> At:
    """When in training.

    A restarted job may save the same step again, and the same bytes: its restarts count only where nothing
    else tells the time.
    """
    generation = p.generation if p.step is None and p.epoch is None else None
    return tuple(-1 if v is None else v for v in (p.step, p.epoch, p.step_in_epoch, generation))


def place(p: Part) -> object:
    """What is the same for a file at all steps. The best so far is beside the order of training. A directory
    within a save may count the step once more (``checkpoint-20/iter_0000020/``).
    """
    aside = p.kind if p.kind in (Kind.BEST, Kind.RELEASE) else None
    name = p.path.removeprefix(p.home) if p.home else ""
    if name.count("/") > 1 and (m := _COUNTED.match(name)) and int(m[1]) == p.step:
        name = name[m.end() :]
    return p.role, aside, p.rank, p.coords, p.base, name


def shown(p: Part) -> str:
    """Its path below the directory of the run."""
    return p.path.removeprefix(f"{p.base}/")


def tensor_names(of: Collection[str]) -> str:
    """Names of tensors, those that differ by one number together; of very many the first."""
    first = sorted(of)[:_TENSORS]
    more = f" and {len(of) - len(first):,} more" if len(of) > len(first) else ""
    return ranges.names(name[:200] for name in first) + more


def judged(p: Part, s: Session) -> bool:
    """Whether a copy in this place would be loaded, is data of a model or an optimizer, and is no damaged
    file anyway.

    Metadata, indexes and other files without tensors may be the same in every save, but for those that hold
    a number that is another in each: what they say is compared with names and other files instead.
    """
    piece, report = s.layouts.piece_of(p), s.reports.get(p.path)
    if report is None or p.size <= 0 or piece.constant:
        return False
    is_drawn = p.role == MANIFEST or not report.metadata.keys().isdisjoint(_COUNTERS)
    if p.path in s.indexes.known and not is_drawn:
        return False
    untold = not (report.metadata or report.tensors)
    if p.size <= _FEW_DIGITS and (untold or names.is_text(report.format)):
        return False
    data = is_drawn or report.tensors > 0 or p.role in ("model", "optimizer", "data")
    return data and piece.loaded and report.verdict is not Verdict.BROKEN


def files_for_each_tensor(parts: Sequence[Part], s: Session) -> set[str]:
    """Return the paths of files that an index names and of which a rank has many with a tensor each: the
    number that each is called by says nothing, and some tensors are the same in every save.
    """
    of_rank = defaultdict[tuple[str, int | None], list[Part]](list)
    for p in parts:
        if any(map(by_layout, s.indexes.described(p.path))):
            of_rank[p.home, p.rank].append(p)
    many = (rows for rows in of_rank.values() if len(rows) > _WRITERS)
    each = (rows for rows in many if all((r := s.reports.get(p.path)) is None or r.tensors < 2 for p in rows))
    return {p.path for rows in each for p in rows}


class RunFiles:
    """``places`` maps a place to its files by step, ``same`` what pages hold to the files that hold it.

    ``times`` are those of all files of a step, ``judged`` the paths of files of which a copy would matter.
    """

    def __init__(self, parts: Sequence[Part], others: Sequence[Part], s: Session) -> None:
        self.session = s
        # Their paths as the reports have them: a part makes its own anew each time.
        each = files_for_each_tensor(parts, s)
        self.judged = {s.known(p).path for p in parts if judged(p, s) and p.path not in each}
        self.same: dict[Pages, list[Part]] = defaultdict(list)
        self.times: dict[At, list[int]] = defaultdict(list)
        self._rests: dict[tuple[At, At], Rest] = {}
        pages = prints(parts, others, s)
        known = (File(pages[p.path], p) for p in (*parts, *others) if p.path in pages)
        self._known = sorted(known, key=lambda f: (order(f.part), f.part.rank or 0))
        for f in self._known:
            self.same[f.pages].append(f.part)
        for p in (*parts, *others):
            self.times[order(p)].append(p.mtime_ns)

    @cached_property
    def places(self) -> dict[object, dict[At, File]]:
        """Nobody asks where no two files are equal."""
        out: dict[object, dict[At, File]] = defaultdict(dict)
        for f in self._known:
            out[place(f.part)][order(f.part)] = f
        return out

    def of_place(self, p: Part) -> dict[At, File]:
        """What the place of a file holds at each step."""
        return self.places[place(p)]

    def at_step(self, at: At) -> Iterator[File]:
        """The files of one step."""
        return (steps[at] for steps in self.places.values() if at in steps)

    def at_both(self, a: At, b: At) -> Iterator[Pair]:
        """What each place holds at two steps."""
        for steps in self.places.values():
            if a in steps and b in steps:
                yield Pair(steps[a], steps[b])

    def others_than(self, p: Part) -> Iterator[Part]:
        """The files that hold something else than this one does."""
        own = {o.path for same in self.same.values() if p in same for o in same}
        return (f.part for f in self._known if f.part.path not in own)

    # --- of one file

    def holds_tensors(self, p: Part) -> bool:
        """Whether training changes what is in the file: it has tensors of its own, and is no index."""
        report = self.session.reports.get(p.path)
        if report is None or p.path in self.session.indexes.known:
            return False
        return report.tensors > 0 or p.role in ("model", "data")

    def _is_state(self, p: Part) -> bool:
        return self.holds_tensors(p) or p.role == "optimizer"

    def _may_be_model(self, p: Part) -> bool:
        return p.role not in ("optimizer", "rng") and not self.session.layouts.piece_of(p).constant

    def counts(self, p: Part) -> bool:
        """Whether the file holds what is another at every save:
        a count of steps, or the save's own number.
        """
        return not self.session.known(p).metadata.keys().isdisjoint(_COUNTERS)

    def reads_on(self, p: Part) -> bool:
        """Whether the file says where in an epoch its loader stands, and that it is not at the end."""
        told = self.session.known(p).metadata
        return not (told.keys().isdisjoint(_READERS) or told.get("_iterator_finished"))

    def damaged(self, p: Part) -> bool:
        """Whether a look at the file has shown damage; nothing is read for this."""
        report = self.session.reports.get(p.path)
        return report is not None and report.verdict is Verdict.BROKEN

    def unsound(self, p: Part) -> bool:
        """Whether a file that differs may do so because it is damaged; the file is read for this."""
        return self._read(p).verdict in (Verdict.BROKEN, Verdict.UNKNOWN)

    def proven(self, p: Part) -> bool:
        """Whether checksums prove that a file that differs does so because it holds something else."""
        return not self.unsound(p) and self._read(p).coverage > 0.5

    def _read(self, p: Part) -> Report:
        """The report on a file; what only an index names is not read to the end."""
        named = self.session.layouts.piece_of(p).role == p.role
        return self.session.report(p, Level.CONTENT if named else Level.STRUCTURE)

    def odd(self, p: Part) -> bool:
        """Whether a file is of another format, or holds other tensors, than its own place at another step."""
        steps = reversed(self.of_place(p).items())
        sibling = next((f.part for at, f in steps if at != order(p)), None)
        if sibling is None:
            return False
        a, b = (self.session.report(one, Level.STRUCTURE) for one in (p, sibling))
        if (a.format, a.signature) != (b.format, b.signature):
            return True
        return a.metadata.get("archive_name") != b.metadata.get("archive_name")

    def stray(self, p: Part) -> int:
        """How far in time a file lies from those of its own step, in ns.

        A copy is younger than they, or has the age of its original.
        """
        times = sorted(self.times[order(p)])
        return abs(p.mtime_ns - times[len(times) // 2])

    def holds_optimizer_state(self, p: Part) -> bool:
        """Whether the names of its tensors say that some are an optimizer's."""
        return any(map(is_optimizer_state, self._tensors(p)))

    def trained(self, p: Part) -> bool:
        """Whether every step changes a tensor of the file.

        It is an optimizer's state, or a tensor that the checkpoint holds such a state of.
        """
        names = self._tensors(p)
        beside = [f.part for f in self.at_step(order(p)) if f.part is not p]
        if self.holds_optimizer_state(p) or _near_state(p, beside):
            return True
        state = [f".{name}." for name in self._state_names(beside)]
        tensors = {f".{n}." for n in names} | {f".{n.partition('.')[2]}." for n in names if "." in n}
        return any(tensor in entry for entry in state for tensor in tensors)

    def _state_names(self, files: Sequence[Part]) -> Iterator[str]:
        """What the optimizer's state is called in the files that list it."""
        telling = [p for p in files if p.path in self.session.indexes.known or p.role == "optimizer"]
        for p in telling[:_INDEXES]:
            yield from filter(is_optimizer_state, self._tensors(p))

    def _tensors(self, p: Part) -> list[str]:
        return [t.name for t in self.session.inspect(p.path, Level.STRUCTURE)[1].tensors]

    # --- of two files

    def lags(self, older: Part, p: Part) -> bool:
        """Whether one place follows the other at more than one step.

        So does a copy of a model that is renewed now and then (a target network).
        """
        equal = 0
        for a, f in self.of_place(p).items():
            equal += sum(a != b and f.pages == g.pages for b, g in self.of_place(older).items())
        return equal > 1

    def stands(self, a: At, b: At) -> bool:
        """Whether training changed no weight between two steps: all learning rates of the first are 0, and it
        is one step, or those of the second are 0 as well. So it is where a job goes on beyond the end of its
        schedule.
        """
        return self._at_rest(a) and (0 <= a[0] == b[0] - 1 or self._at_rest(b))

    def _at_rest(self, at: At) -> bool:

        telling = (f.part for f in self.at_step(at) if f.part.role in ("optimizer", "scheduler"))
        rates = {self.session.report(p, Level.STRUCTURE).metadata.get("lr") for p in telling}
        return rates == {0.0}

    def parted(self, older: Part, p: Part) -> bool:
        """Whether most files of tensors differ between the directories of two files, or of what both name:
        one alone may be damaged.
        """
        pages: dict[str, set[Pages]] = defaultdict(set)
        homes: dict[str, set[str]] = defaultdict(set)
        for f in self._known:
            if f.part.home in (older.home, p.home) and f.part.role in ("model", "optimizer"):
                name = f.part.path.removeprefix(f.part.home)
                homes[name].add(f.part.home)
                pages[name].add(f.pages)
        differ = [len(pages[name]) > 1 for name, both in homes.items() if len(both) == 2]
        if not differ:
            named = sorted(self._named(older) & self._named(p))[:_NAMED]
            pairs = ([o._replace(path=o.home + name) for o in (older, p)] for name in named)
            differ = [not equal(a, b, self.session) for a, b in pairs]
        return 2 * sum(differ) > max(2, len(differ))

    def _named(self, p: Part) -> set[str]:
        """What an index names, as seen from its checkpoint's directory."""
        return {path.removeprefix(p.home) for path in self.session.indexes.members({p.path})}

    def rest(self, a: At, b: At) -> Rest:
        """What the checkpoints of two steps hold."""
        if (a, b) not in self._rests:
            self._rests[a, b] = self._compared(a, b)
        return self._rests[a, b]

    def _compared(self, a: At, b: At) -> Rest:
        held = [pair for pair in self.at_both(a, b) if self._is_state(pair.b.part)]
        whole = [x for x in held if not (self.damaged(x.a.part) or self.damaged(x.b.part))]
        differ = [pair.b.part for pair in whole if not pair.same]
        return Rest(
            equal=all(pair.same for pair in held),
            models=sum(self._may_be_model(pair.b.part) for pair in held),
            differs=bool(differ),
            moved=any(not self.counts(p) for p in differ),
            optimizer=any(p.role == "optimizer" for p in differ),
        )


def _near_state(p: Part, beside: Sequence[Part]) -> bool:
    """Whether the name of a file, or of one in its directory, is that of an optimizer's state."""
    home = p.path.rpartition("/")[0]
    near = (o for o in beside if p.home and o.path.rpartition("/")[0] == home)
    return any(is_optimizer_state(o.path.removeprefix(o.home)) for o in (p, *near))


# --- what the names of two parts tell of each other


def alike(a: Part, b: Part) -> bool:
    """Whether two files are of the same kind."""
    return a.role == b.role and a.piece == b.piece


def both_placed(a: Part, b: Part) -> bool:
    """Whether something tells when in training each was saved: a copy of the newest (``last``) that has lost
    the file with its step is of no other step.
    """
    return placed(a) and placed(b)


def placed(p: Part) -> bool:
    return (p.step, p.epoch, p.generation) != (None, None, None)


def differ_in_a_number(a: Part, b: Part) -> bool:
    """Whether two files beside each other are called alike but for the numbers in their names."""
    one, other = (_DIGITS.split(o.name) for o in (a, b))
    beside = a.base == b.base and not (a.home or b.home) and a.kind is b.kind is Kind.PERIODIC
    return beside and len(one) > 1 and one == other and a.name != b.name


def apart(a: Part, b: Part) -> bool:
    """Whether something known of both says that one is older than the other."""
    return any(x >= 0 and y >= 0 and x != y for x, y in zip(order(a), order(b), strict=True))


def before(a: Part, b: Part) -> bool:
    return (order(a), a.rank or 0, a.path) < (order(b), b.rank or 0, b.path)


def whose(original: Part, copy: Part) -> str:
    """Whose file the original is, as seen from the copy."""
    a, b = order(original), order(copy)
    several = elsewhere(original, copy) or differ_in_a_number(original, copy)
    same = "another" if several else "the same"
    which = "an older" if a < b else "a newer" if a > b else same
    return f"{which} checkpoint, {where(original, copy)}"


def elsewhere(a: Part, b: Part) -> bool:
    """Whether two files have one place in two saves."""
    return place(a) == place(b) and a.home != b.home


def of_two_saves(a: Part, b: Part) -> bool:
    return order(a) != order(b) or elsewhere(a, b)


def where(older: Part, p: Part) -> str:
    """The path of one file from where it parts from the other's."""
    a, b = older.path.split("/"), p.path.split("/")
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    return "/".join(a[common:])
