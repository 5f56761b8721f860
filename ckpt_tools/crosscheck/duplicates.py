"""One file's bytes under two names of a run: what nothing inside a file shows when it was copied over that of another step, rank or role."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools.crosscheck.pages import Pages, equal, prints, unlike
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level

if TYPE_CHECKING:
    from ckpt_tools.reading.session import Session

_COUNTERS = frozenset({"optimizer_step", "global_step", "step_num", "save_id"})
_At = tuple[int, ...]
"""When in training: step, epoch, step in the epoch, restart."""
_TOGETHER_NS = 2_000_000_000
_STRAYS = 4
"""How many times further from its checkpoint's time than the other the copy must lie: some are always late."""
_INDEXES = 8
"""Files of a checkpoint that are asked for the names of its optimizer's state, at most."""


class _File(NamedTuple):
    """What one place of the checkpoint holds at one step."""

    pages: Pages
    part: Part


class Copied(NamedTuple):
    """A file that is byte for byte another's. ``rival``: nothing tells which of the two is the copy, and their steps differ."""

    path: str
    finding: Finding
    rival: Part | None = None


class _Rest(NamedTuple):
    """The tensors of two checkpoints: whether all are equal, in how many places models are, whether any differs, one that counts no steps, and an optimizer's."""

    equal: bool
    models: int
    differs: bool
    moved: bool
    optimizer: bool


def order(p: Part) -> _At:
    """When in training. A restarted job may save the same step again, and the same bytes: its restarts count only where nothing else tells the time."""
    generation = p.generation if p.step is None and p.epoch is None else None
    return tuple(-1 if v is None else v for v in (p.step, p.epoch, p.step_in_epoch, generation))


def place(p: Part) -> object:
    """What is the same for a file at all steps: its rank, its coordinates, its name in a directory of the checkpoint's own. The best so far is beside the order of training."""
    aside = p.kind if p.kind in (Kind.BEST, Kind.RELEASE) else None
    return p.role, aside, p.rank, p.coords, p.base, p.path.removeprefix(p.home) if p.home else ""


def same_content(parts: Sequence[Part], s: Session, others: Sequence[Part] = ()) -> Iterator[Copied]:
    """Parts of one run that are byte for byte a file of another step, rank or role, although training moved on between the two.

    ``others`` are files of the run's other checkpoints, nearest first, that nobody has read: only what is equal to one of the ``parts`` is asked of them.
    Copies that their layout makes (``single``, the best so far), replicas and hard links are expected.
    """
    read = [p for p in parts if p.path in s.reports]
    if any(_judged(p, s) for p in read):
        yield from _Run(read, others, s).copies()


def _judged(p: Part, s: Session) -> bool:
    """Whether a copy in this place would be loaded, and is no damaged file anyway."""
    piece, report = s.layouts.piece_of(p), s.reports.get(p.path)
    return report is not None and p.size > 0 and piece.loaded and report.verdict is not Verdict.BROKEN


class _Run:
    """The files of one run by their places and steps."""

    def __init__(self, parts: Sequence[Part], others: Sequence[Part], s: Session) -> None:
        self.s = s
        self.judged = {p.path for p in parts if _judged(p, s)}
        self.places: dict[object, dict[_At, _File]] = defaultdict(dict)
        self.same: dict[Pages, list[Part]] = defaultdict(list)
        self.times: dict[_At, list[int]] = defaultdict(list)
        self._rests: dict[tuple[_At, _At], _Rest] = {}
        pages = prints(parts, others, s)
        for p in sorted(
            (p for p in (*parts, *others) if p.path in pages), key=lambda p: (order(p), p.rank or 0)
        ):
            self.places[place(p)][order(p)] = _File(pages[p.path], p)
            self.same[pages[p.path]].append(p)
        for p in (*parts, *others):
            self.times[order(p)].append(p.mtime_ns)

    def copies(self) -> Iterator[Copied]:
        for group in self.same.values():
            places, steps = (
                {place(p): p for p in reversed(group)},
                {order(p): p for p in reversed(group)},
            )  # the first of each
            for p in group[1:]:
                elsewhere = (
                    o
                    for o in (steps[order(p)], *islice(places.values(), 2))
                    if place(o) != place(p) and _before(o, p)
                )
                partners = (o for o in (places[place(p)], next(elsewhere, p)) if o is not p)
                yield from next(filter(None, (self._confirmed(o, p) for o in partners)), ())

    def _confirmed(self, older: Part, p: Part) -> list[Copied]:
        if p.size != older.size or self.judged.isdisjoint((p.path, older.path)):
            return []
        found = list(self._pair(older, p))
        return (
            found if found and equal(older, p, self.s) else []
        )  # last, because it reads both files to the end

    def _pair(self, older: Part, p: Part) -> Iterator[Copied]:
        if older.kind is not p.kind and {older.kind, p.kind} & {Kind.BEST, Kind.RELEASE}:
            return
        if place(older) != place(p):
            severity = self._of_two_places(older, p)
        elif order(older) != order(p) and p.path in self.judged:
            severity = self._of_two_steps(older, p)
        else:
            return
        if severity is None:
            return
        if severity is Severity.ERROR and {older.role, p.role} <= {"rng", "data"}:
            severity = Severity.WARNING  # random numbers and what only an index names may repeat
        yield from self._told(*self._copy(older, p), severity)

    def _told(self, copy: Part, original: Part, known: bool, severity: Severity) -> Iterator[Copied]:
        """What is said of the copy, and of the other where that may as well be it."""
        ranks = order(copy) == order(original) and copy.role == original.role
        doubtful = severity is Severity.ERROR and not known and order(copy) != order(original)
        if copy.path in self.judged:
            of = f"{_where(original, copy)}, from which this rank's files differ at other steps"
            of = of if ranks else f"the {original.role} file of {self._whose(original, copy)}"
            f = finding("same-content", f"byte for byte {of}", severity=severity)
            yield Copied(copy.path, f, original if doubtful else None)
        if not (known or ranks) and original.path in self.judged:
            text = f"byte for byte the {copy.role} file of {self._whose(copy, original)}: either is the copy"
            f = finding("same-content", text, severity=Severity.NOTE)
            yield Copied(original.path, f, copy if doubtful else None)

    def _whose(self, original: Part, copy: Part) -> str:
        a, b = order(original), order(copy)
        return f"{'an older' if a < b else 'a newer' if a > b else 'the same'} checkpoint, {_where(original, copy)}"

    # --- another step's

    def _of_two_steps(self, older: Part, p: Part) -> Severity | None:
        """What one place holds at two steps is a copy where it must have moved on, and suspect where the rest of its checkpoint did."""
        mine, own = self.places[place(p)], self.places[place(p)][order(p)].pages
        others = [f for f in mine.values() if f.pages != own]
        if p.role == "rng" and len(mine) < 3:
            return None
        holds = self.s.reports[p.path].tensors > 0 or p.role in ("model", "data")
        if not holds:
            return None
        if (
            p.role == "optimizer"
            or self._counts(p)
            or any(unlike(f.pages, own) or self._sound(f.part) for f in others)
        ):
            return Severity.ERROR
        if others:
            return Severity.WARNING
        if len(mine) > 2 or p.role in ("rng", "data"):
            return None  # equal at all steps: nothing in it is trained
        rest = self._rest(older, p)
        if rest.equal or (rest.models == 1 and rest.optimizer):
            return (
                Severity.ERROR
            )  # all that there is, though the steps differ; or the only weights, and training moved on
        if rest.differs and self._trained(p):
            return Severity.ERROR
        return Severity.WARNING if rest.moved else None

    def _rest(self, older: Part, p: Part) -> _Rest:
        key = order(older), order(p)
        if key not in self._rests:
            both = [
                (steps[key[0]], steps[key[1]])
                for steps in self.places.values()
                if key[0] in steps and key[1] in steps
            ]
            held = [(a, b) for a, b in both if self._holds(b.part) or b.part.role == "optimizer"]
            differ = [
                b.part
                for a, b in held
                if a.pages != b.pages and not (self._damaged(a.part) or self._damaged(b.part))
            ]
            self._rests[key] = _Rest(
                all(a.pages == b.pages for a, b in held),
                sum(b.part.role not in ("optimizer", "rng") for _, b in held),
                bool(differ),
                any(not self._counts(o) for o in differ),
                any(o.role == "optimizer" for o in differ),
            )
        return self._rests[key]

    def _damaged(self, p: Part) -> bool:
        report = self.s.reports.get(p.path)
        return report is not None and report.verdict is Verdict.BROKEN

    def _trained(self, p: Part) -> bool:
        """Whether the file holds an optimizer's state, or a tensor that the checkpoint holds such a state of: those change with every step."""
        names = self._tensors(p)
        beside = [o for o in self._of(order(p)) if o is not p]
        near = [p, *(o for o in beside if p.home and o.path.rpartition("/")[0] == p.path.rpartition("/")[0])]
        if any(map(is_optimizer_state, names)) or any(
            is_optimizer_state(o.path.removeprefix(o.home)) for o in near
        ):
            return True
        beside = [o for o in beside if o.path in self.s.indexes.known or o.role == "optimizer"]
        state = [f".{n}." for o in beside[:_INDEXES] for n in self._tensors(o) if is_optimizer_state(n)]
        bare = {f".{n}." for n in names} | {f".{n.partition('.')[2]}." for n in names if "." in n}
        return any(n in o for o in state for n in bare)

    def _of(self, at: _At) -> Iterator[Part]:
        return (steps[at].part for steps in self.places.values() if at in steps)

    def _tensors(self, p: Part) -> list[str]:
        return [t.name for t in self.s.inspect(p.path, Level.STRUCTURE)[1].tensors]

    def _counts(self, p: Part) -> bool:
        """Whether the file holds what is another at every save: a count of steps, or the save's own number."""
        return not self.s.reports[p.path].metadata.keys().isdisjoint(_COUNTERS)

    # --- another rank's, or what is something else

    def _of_two_places(self, older: Part, p: Part) -> Severity | None:
        """Equal files of two places are no replicas where the two differ at other steps, and not because one of those is damaged."""
        mine, theirs, now, then = self.places[place(p)], self.places[place(older)], order(p), order(older)
        same_step, alike = now == then, p.role == older.role and p.piece == older.piece
        steps = (
            (mine.keys() & theirs.keys()) - {now}
            if same_step
            else (mine.keys() & theirs.keys()) & {now, then}
        )
        pairs = [(mine[o], theirs[o]) for o in steps]
        if any(a.pages == b.pages for a, b in pairs):
            return None  # replicas
        if alike and same_step and not (self._holds(p) or self._holds(older)):
            return None
        sound = [
            (a, b) for a, b in pairs if self._sound(a.part) is not False and self._sound(b.part) is not False
        ]
        if not sound:
            named = not (
                same_step and self.s.indexes.claims(p.path)
            )  # else an index names the tensors, and two files may hold equal ones
            never = (
                named
                and "optimizer" in (p.role, older.role)
                and p.role != older.role
                and (self._holds(p) or self._holds(older))
            )
            return Severity.ERROR if never else None  # what a model is, an optimizer's state is not
        proven = all(
            unlike(a.pages, b.pages) or (self._sound(a.part) and self._sound(b.part)) for a, b in sound
        )
        if not same_step:
            lagging = p.role == older.role and self._lags(older, p)
            return (
                Severity.ERROR
                if not lagging and (proven or not alike or len(sound) > 1)
                else Severity.WARNING
            )
        early = min(order(a.part) for a, _ in sound) < now  # all may begin alike, and part ways later
        return Severity.ERROR if early and (not alike or (len(sound) > 1 and proven)) else Severity.WARNING

    def _lags(self, older: Part, p: Part) -> bool:
        """Whether one place follows the other at more than one step, as a copy of a model does that is renewed now and then (a target network)."""
        mine, theirs = self.places[place(p)], self.places[place(older)]
        return sum(a != b and f.pages == g.pages for a, f in mine.items() for b, g in theirs.items()) > 1

    def _holds(self, p: Part) -> bool:
        report = self.s.reports.get(p.path)
        return (
            report is not None
            and p.path not in self.s.indexes.known
            and (report.tensors > 0 or p.role in ("model", "data"))
        )

    # --- which of two is the copy

    def _copy(self, older: Part, p: Part) -> tuple[Part, Part, bool]:
        """(copy, original, whether anything tells): the one that is unlike its own place at other steps, else whose time is not its checkpoint's, else the later."""
        odd = [self._odd(older), self._odd(p)] if place(older) != place(p) else [False, False]
        if odd[0] != odd[1]:
            return (older, p, True) if odd[0] else (p, older, True)
        strays = [self._stray(older), self._stray(p)]
        if max(strays) < max(_TOGETHER_NS, _STRAYS * min(strays)):
            return p, older, False
        return (older, p, True) if strays[0] > strays[1] else (p, older, True)

    def _odd(self, p: Part) -> bool:
        """Whether a file is of another format, or holds other tensors, than its own place at another step."""
        sibling = next((f.part for at, f in reversed(self.places[place(p)].items()) if at != order(p)), None)
        if sibling is None:
            return False
        a, b = self.s.report(p, Level.STRUCTURE), self.s.report(sibling, Level.STRUCTURE)
        first = [r.metadata.get("archive_name") for r in (a, b)]
        return (a.format, a.signature, first[0]) != (b.format, b.signature, first[1])

    def _stray(self, p: Part) -> int:
        """How far in time a file lies from those of its own step, in ns: a copy is younger than they, or has the age of its original."""
        times = sorted(self.times[order(p)])
        return abs(p.mtime_ns - times[len(times) // 2])

    def _sound(self, p: Part) -> bool | None:
        """Whether a file that differs does so because it holds something else, and not because it is damaged; None when no checksum can tell."""
        report = self.s.report(
            p, Level.CONTENT if self.s.layouts.piece_of(p).role == p.role else Level.STRUCTURE
        )
        return (
            False
            if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN)
            else True
            if report.coverage > 0.5
            else None
        )


def _before(a: Part, b: Part) -> bool:
    return (order(a), a.rank or 0) <= (order(b), b.rank or 0) and a is not b


def _where(older: Part, p: Part) -> str:
    a, b = older.path.split("/"), p.path.split("/")
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    return "/".join(a[common:])
