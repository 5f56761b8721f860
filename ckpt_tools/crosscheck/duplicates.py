"""One file's bytes under two names of a run, although the two should differ.

Nothing inside a file shows that it was copied over that of another step, rank or role.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools.crosscheck.pages import are_linked, differing, equal, unlike
from ckpt_tools.crosscheck.run_files import (
    MANIFEST,
    File,
    Pair,
    RunFiles,
    alike,
    apart,
    before,
    both_placed,
    differ_in_a_number,
    elsewhere,
    judged,
    of_two_saves,
    order,
    place,
    placed,
    where,
    whose,
)
from ckpt_tools.findings import finding
from ckpt_tools.inspection.recognise import by_layout
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind, Part

if TYPE_CHECKING:
    from ckpt_tools.layouts import Piece
    from ckpt_tools.reading.session import Session

_TOGETHER_NS = 2_000_000_000
_SAME_NS = 20_000_000
"""Files that are written within one tick of the kernel's clock (at most 10 ms) have one time."""
_STRAYS = 4
"""How many times further from its checkpoint's time than the other the copy must lie:
some are always late.
"""


class Copied(NamedTuple):
    """A file that is byte for byte another's.

    ``rival``: nothing tells which of the two is the copy, and their steps differ.
    """

    path: str
    finding: Finding
    rival: Part | None = None


class _Copy(NamedTuple):
    """Two equal files: the one that is the copy, its original, and whether anything tells which is which."""

    copy: Part
    original: Part
    known: bool


def same_content(parts: Sequence[Part], s: Session, others: Sequence[Part] = ()) -> Iterator[Copied]:
    """Parts of one run that are byte for byte a file of another step, rank or role,
    although training moved on.

    ``others`` are files of the run's other checkpoints, nearest first, that nobody has read: only what is
    equal to one of the ``parts`` is asked of them.
    Copies that their layout makes (``single``, the best so far), replicas and hard links are expected.
    """
    read = [p for p in parts if p.path in s.reports]
    if any(judged(p, s) for p in read):
        yield from _Duplicates(RunFiles(read, others, s)).copies()


class _Duplicates:
    """The equal files of one run, and which of them should differ."""

    def __init__(self, files: RunFiles) -> None:
        self.files = files

    def copies(self) -> Iterator[Copied]:
        """Each file beside the first equal one of its place, else of another place."""
        for files in self.files.same.values():
            # what shows no step hides no other one
            placed_first = sorted(files, key=lambda p: not placed(p))
            first_of_place = {place(p): p for p in reversed(placed_first)}
            first_of_step = {order(p): p for p in reversed(placed_first)}
            for p in files:
                others = (o for at, o in first_of_place.items() if at != place(p))
                firsts = (first_of_step[order(p)], *islice(others, 2))
                elsewhere = (o for o in firsts if place(o) != place(p) and before(o, p))
                partners = (o for o in (first_of_place[place(p)], *elsewhere) if o is not p)
                yield from next(filter(None, (self._confirmed(o, p) for o in partners)), ())

    def _confirmed(self, older: Part, p: Part) -> list[Copied]:
        if p.size != older.size or self.files.judged.isdisjoint((p.path, older.path)):
            return []
        severity = self._severity(older, p)
        reported = [] if severity is None else list(self._reported(self._which(older, p), severity))
        if reported and are_linked(older, p):
            return list(self._linked(older, p)) if severity is Severity.ERROR else []
        # last, because it reads both to the end
        return reported if reported and equal(older, p, self.files.session) else []

    def _linked(self, older: Part, p: Part) -> Iterator[Copied]:
        """What is said of a hard link to the state of another step, where nothing else tells the two saves
        apart: who links a file means it, but a state with an optimizer is of one step.
        """
        told = place(older) == place(p) and p.path in self.files.judged and apart(older, p)
        state = told and (self.files.counts(p) or self.files.holds_optimizer_state(p))
        if state and self.files.rest(order(older), order(p)).equal:
            text = f"it is the file of {whose(older, p)}, by a hard link: it is of one of the two steps"
            yield Copied(p.path, finding("same-content", text, severity=Severity.WARNING))

    def _severity(self, older: Part, p: Part) -> Severity | None:
        """How bad it is that two files are equal; None where they may be."""
        if older.kind is not p.kind and {older.kind, p.kind} & {Kind.BEST, Kind.RELEASE}:
            return None
        severity = None
        if place(older) != place(p):
            severity = self._of_two_places(older, p)
        elif self._of_one_told_step(older, p):
            severity = Severity.ERROR
        elif both_placed(older, p) and order(older) != order(p) and p.path in self.files.judged:
            severity = self._of_two_steps(older, p)
        elif self._of_two_dates(older, p) or self._of_two_counts(older, p):
            severity = Severity.WARNING  # who starts again may come to the same state again
        if severity is Severity.ERROR and older.role == p.role and p.role in ("rng", "data"):
            return Severity.WARNING  # random numbers and what only an index names may repeat
        return severity

    def _reported(self, found: _Copy, severity: Severity) -> Iterator[Copied]:
        """What is said of the copy, and of the other where that may as well be it."""
        copy, original, known = found
        same_step = order(copy) == order(original)
        ranks = same_step and copy.role == original.role and place(copy) != place(original)
        doubtful = severity is Severity.ERROR and not known and of_two_saves(copy, original)
        if self._matters(copy, original):
            of = f"the {original.role} file of {whose(original, copy)}"
            if ranks:
                of = f"{where(original, copy)}, from which this rank's files differ at other steps"
            f = finding("same-content", f"byte for byte {of}", severity=severity)
            yield Copied(copy.path, f, original if doubtful else None)
        if not (known or ranks) and original.path in self.files.judged:
            text = f"byte for byte the {copy.role} file of {whose(copy, original)}: either is the copy"
            unplaced = not same_step and not apart(copy, original)  # either may be the later one
            less = severity if unplaced and severity is Severity.WARNING else Severity.NOTE
            f = finding("same-content", text, severity=less)
            yield Copied(original.path, f, copy if doubtful else None)

    def _matters(self, copy: Part, original: Part) -> bool:
        """Whether a copy is loaded, also where a state lies in place of what is the same in every save."""
        constant = self._piece(copy).constant
        return not self.files.judged.isdisjoint({copy.path, original.path} if constant else {copy.path})

    # --- of another step

    def _of_one_told_step(self, older: Part, p: Part) -> bool:
        """Whether each is the file that tells its save's step, and the two saves hold other tensors."""
        told = self._piece(p).step_from == "content" and p.path in self.files.judged
        return told and not apart(older, p) and elsewhere(older, p) and self.files.parted(older, p)

    def _of_two_dates(self, older: Part, p: Part) -> bool:
        """Whether two saves of one step, or of which nothing tells the step, are called after two dates."""
        dated = self.files.session.layouts.of(p).dated
        if dated is None or order(older) != order(p) or p.path not in self.files.judged:
            return False
        dates = [dated.fullmatch(o.home.rpartition("/")[2]) for o in (older, p)]
        return all(dates) and older.home != p.home and self.files.session.known(p).tensors > 0

    def _of_two_counts(self, older: Part, p: Part) -> bool:
        """Whether two files that tell no step are called alike but for a number (``stage-2``, ``ck3``), and
        training moves on: they hold an optimizer's state, or another such file is unlike them.
        """
        if placed(p) or placed(older) or not differ_in_a_number(older, p):
            return False
        state = self.files.counts(p) or self.files.holds_optimizer_state(p)
        return state or any(differ_in_a_number(o, p) for o in self.files.others_than(p))

    def _of_two_steps(self, older: Part, p: Part) -> Severity | None:
        """What one place holds at two steps.

        A copy where it must have moved on, and suspect where the rest of its checkpoint did.
        """
        if self._one_state(older, p) or (p.role == "model" and self.files.stands(order(older), order(p))):
            return None
        if self._first_saved(older, p) is not None:
            return Severity.ERROR
        if not self._moves_on(older, p):
            return Severity.WARNING if self._came_with_its_time(older, p) else None
        return self._of_what_moves(older, p)

    def _of_what_moves(self, older: Part, p: Part) -> Severity | None:
        """What one place holds at two steps, where training changes it, judged by the other steps."""
        steps = self.files.of_place(p)
        own = steps[order(p)].pages
        if p.role in ("optimizer", MANIFEST) or self._piece(p).moves or self.files.counts(p):
            return Severity.ERROR
        if self.files.reads_on(p) and (len(steps) == 2 or p.role != "data"):
            # or at the same place of another epoch
            return Severity.WARNING if len(steps) == 2 else None
        others = [f for f in steps.values() if f.pages != own and not self.files.unsound(f.part)]
        if others:
            return Severity.ERROR if self._moved(older, p, others) else Severity.WARNING
        if len(steps) > 2 or p.role in ("rng", "data"):
            return None  # equal at all steps: nothing in it is trained
        return self._beside_the_rest(older, p)

    def _moved(self, older: Part, p: Part, others: Sequence[File]) -> bool:
        """Whether the files of other steps, which differ from it, show that it must have moved on, too."""
        own = self.files.of_place(p)[order(p)].pages
        if any(unlike(f.pages, own) or self.files.proven(f.part) for f in others):
            return True
        several = any(differing(f.pages, own) > 1 for f in others)  # more than a flipped bit
        alone = several and self._beside_the_rest(older, p) is Severity.ERROR
        return alone or self.files.holds_optimizer_state(p)

    def _one_state(self, older: Part, p: Part) -> bool:
        """Whether their checkpoints are the same state under two names, of which one counts steps and the
        other epochs, or one tells less, so that nothing says that training moved on between them.
        """
        return not apart(older, p) and not self.files.rest(order(older), order(p)).differs

    def _moves_on(self, older: Part, p: Part) -> bool:
        """Whether anything in the file must change; two equal states of random numbers show nothing."""
        steps = len(self.files.of_place(p))
        if p.role == "rng" and (steps < 3 or self._stands_still(older, p)):
            return False
        if self.files.session.known(p).tensors > 0 or p.role in ("data", MANIFEST):
            return True
        if self._piece(p).moves or self.files.counts(p) or self.files.reads_on(p):
            return True
        # of the files that an index names, one may hold nothing but settings
        return p.role == "model" and not self._indexed(p)

    def _piece(self, p: Part) -> Piece:
        return self.files.session.layouts.piece_of(p)

    def _came_with_its_time(self, older: Part, p: Part) -> bool:
        """Whether two files have one time of modification to the last digit, and not that of the rest of both
        checkpoints: whoever put one in place of the other kept its time, as ``cp -p`` does.
        """
        if older.mtime_ns != p.mtime_ns or p.mtime_ns % 1_000_000 == 0:  # not told so exactly
            return False
        return max(self.files.stray(older), self.files.stray(p)) > _SAME_NS

    def _stands_still(self, older: Part, p: Part) -> bool:
        """Whether a place holds the same at all steps between two, as random numbers do until the next is
        drawn: a sampler draws one for an epoch. They never come back to what they were.
        """
        own = self.files.of_place(p)[order(p)].pages
        steps = self.files.of_place(p).items()
        return all(f.pages == own for at, f in steps if order(older) < at < order(p))

    def _beside_the_rest(self, older: Part, p: Part) -> Severity | None:
        """A file that is equal at the only two steps, judged by what else the two checkpoints hold."""
        rest = self.files.rest(order(older), order(p))
        if rest.equal or (rest.models == 1 and rest.optimizer):
            return Severity.ERROR  # all that there is; or the only weights, and training moved on
        if rest.differs and self.files.trained(p):
            return Severity.ERROR
        return Severity.WARNING if rest.moved else None

    # --- of another rank, or of something else

    def _of_two_places(self, older: Part, p: Part) -> Severity | None:
        """Files of two places, which are no replicas where the two differ at other steps.

        A difference counts only where it does not come from damage.
        """
        pairs = self._pairs(older, p)
        if any(pair.same for pair in pairs):
            return None  # replicas
        same_step = order(p) == order(older)
        stateless = alike(older, p) and same_step and not self._either_holds(older, p)
        if stateless and self.files.odd(older) == self.files.odd(p):
            return None
        sound = [x for x in pairs if not (self.files.unsound(x.a.part) or self.files.unsound(x.b.part))]
        if not sound:
            return self._of_two_roles(older, p)
        return Severity.ERROR if self._certain(older, p, sound) else Severity.WARNING

    def _certain(self, older: Part, p: Part, sound: Sequence[Pair]) -> bool:
        """Whether one of two places must be a copy that hold different, ``sound`` files at other steps."""
        same_kind, proven = alike(older, p), all(map(self._proven, sound))
        if order(p) == order(older):
            # all may begin alike, and part ways later
            early = min(order(pair.a.part) for pair in sound) < order(p)
            return early and (not same_kind or (len(sound) > 1 and proven))
        if p.role == older.role and self.files.lags(older, p):
            return False
        return proven or not same_kind or len(sound) > 1

    def _pairs(self, older: Part, p: Part) -> list[Pair]:
        """What the two places hold at the steps that tell whether they are replicas."""
        mine, theirs, now, then = self.files.of_place(p), self.files.of_place(older), order(p), order(older)
        both = mine.keys() & theirs.keys()
        constant = now in both and then in theirs and theirs[now].pages == theirs[then].pages
        telling = both - {now} if now == then or constant else both & {now, then}
        return [Pair(mine[at], theirs[at]) for at in telling]

    def _either_holds(self, older: Part, p: Part) -> bool:
        return self.files.holds_tensors(p) or self.files.holds_tensors(older)

    def _proven(self, pair: Pair) -> bool:
        """Whether two files differ because they hold something else."""
        if unlike(pair.a.pages, pair.b.pages):
            return True
        return self.files.proven(pair.a.part) and self.files.proven(pair.b.part)

    def _indexed(self, p: Part) -> bool:
        """Whether an index says what the file holds."""
        return any(map(by_layout, self.files.session.indexes.described(p.path)))

    def _of_two_roles(self, older: Part, p: Part) -> Severity | None:
        """Where no other step tells: what a model is, an optimizer's state is not."""
        if order(p) == order(older) and self._indexed(p):
            return None  # an index names the tensors, and two files may hold equal ones
        roles = {p.role, older.role}
        never = len(roles) == 2 and "optimizer" in roles and self._either_holds(older, p)
        return Severity.ERROR if never else None

    # --- which of two is the copy

    def _which(self, older: Part, p: Part) -> _Copy:
        """The one that was first saved under another name, or is unlike its own place at other steps, else
        whose time is not its checkpoint's. Where nothing tells, the later one is taken for the copy.
        """
        if (original := self._first_saved(older, p)) is not None:
            return _Copy(p if original is older else older, original, known=True)
        if differ_in_a_number(older, p) and not (placed(older) or placed(p)):
            first, last = sorted((older, p), key=lambda o: o.mtime_ns)
            return _Copy(last, first, known=True)
        if elsewhere(older, p) and order(older) == order(p):
            first, last = sorted((older, p), key=lambda o: o.home)  # by their dates
            return _Copy(last, first, known=False)
        if place(older) != place(p) and (odd := self.files.odd(older)) != self.files.odd(p):
            return _Copy(older, p, known=True) if odd else _Copy(p, older, known=True)
        one, other = self.files.stray(older), self.files.stray(p)
        copy, original = (older, p) if one > other else (p, older)
        far = max(one, other) >= max(_TOGETHER_NS, _STRAYS * min(one, other))
        if far and copy.mtime_ns >= original.mtime_ns:  # nobody copies what is not written yet
            return _Copy(copy, original, known=True)
        return _Copy(p, older, known=False)

    def _first_saved(self, older: Part, p: Part) -> Part | None:
        """The one of two equal files whose name is the one that the archive was first saved under, or whose
        step is the one that the file tells.
        """
        from ckpt_tools.layouts.common.loop_counters import steps_told  # of equal files alone

        metadata = self.files.session.known(p).metadata
        name, steps = metadata.get("archive_name"), set(steps_told(metadata))
        named = [o for o in (older, p) if name and os.path.basename(o.path).startswith(f"{name}.")]
        apart = None not in (older.step, p.step) and older.step != p.step
        told = [o for o in (older, p) if apart and o.step in steps]
        return next((found[0] for found in (named, told) if len(found) == 1), None)
