"""Two files of models or optimizers that are equal, although they are of different steps or ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from shlex import quote

from ckpt_tools.errors import CkptError
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Kind
from ckpt_tools.planning.facts import StateFile
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of

_MOST = 2
"""Files of other places that each file is compared with: equal replicas may be thousands."""
_STEPS = 3
"""A file that is equal in so many saves, and in all, is not trained."""
_SEVERAL = 2
"""Saves that show something which one alone may show because a file of it is damaged."""
_DATE = -1
"""Where in ``when`` the date is."""


_Save = tuple[str, tuple[int, ...]]


def _save(f: StateFile) -> _Save:
    return f.home, f.when


def check(files: Sequence[StateFile]) -> Iterator[Hit]:
    """Yield each file that is equal to one of another save or rank of its run, although training moved on."""
    run = _Run(files)
    equal = defaultdict[bytes, list[StateFile]](list)
    for f in run.files:
        equal[f.content].append(f)
    for same in equal.values():
        for i, f in enumerate(same[1:], 1):
            yield from run.compare_with_earlier(f, same[:i])


class _Run:
    """The files of a run in their order."""

    def __init__(self, files: Sequence[StateFile]) -> None:
        self.files = sorted(files, key=lambda f: (f.when, f.path))
        self.places = defaultdict[object, dict[_Save, StateFile]](dict)
        for f in self.files:
            self.places[f.place][_save(f)] = f

    def compare_with_earlier(self, f: StateFile, same: Sequence[StateFile]) -> Iterator[Hit]:
        """Yield what is wrong with a file beside the first equal ones: of its place, else of other places."""
        elsewhere = {o.place: o for o in reversed(same) if o.place != f.place}
        beside = {o.place: o for o in reversed(same) if o.place != f.place and _save(o) == _save(f)}
        of_place = [o for o in same if o.place == f.place]
        told = [o for o in of_place if are_apart(o, f)]  # a link to the newest tells no step
        others = dict.fromkeys((*[*beside.values()][:_MOST], *[*elsewhere.values()][:_MOST]))
        for o in told[:1] or of_place[:1] or others:
            yield from self.compare(o, f)

    def compare(self, older: StateFile, f: StateFile) -> Iterator[Hit]:
        if not (older.compared or f.compared) or _is_aside(older, f):
            return
        if _save(older) == _save(f):
            severity = self._compare_ranks(older, f)
        elif older.place != f.place:
            severity = self._compare_places(older, f)
        else:
            severity = self._compare_steps(older, f)
        if severity is not None:
            yield from _find_hits(older, f, severity)

    def _compare_steps(self, older: StateFile, f: StateFile) -> Severity | None:
        """How bad it is that one place holds the same in two saves."""
        if not are_apart(older, f):
            return Severity.ERROR if self._are_two_states(older, f) else None
        if older.when[:_DATE] == f.when[:_DATE]:
            return Severity.WARNING  # who starts again may come to the same state again
        if older.trained or f.trained:
            return Severity.ERROR
        steps = [o for o in self.places[f.place].values() if not o.broken]
        if any(o.content != f.content for o in steps):
            return Severity.ERROR
        return None if len(steps) >= _STEPS else self._compare_saves(older, f)

    def _compare_saves(self, older: StateFile, f: StateFile) -> Severity | None:
        """How bad it is where no third save shows whether the file is trained."""
        moved = any(self._find_differences(older, f))
        if not moved and any(o.broken for o in (*self._find_states(older), *self._find_states(f))):
            return None  # what would show that training moved on cannot be read
        alone = len([o for o in self._find_states(f) if o.role != "optimizer"]) == 1 or not moved
        return Severity.ERROR if alone else Severity.WARNING

    def _are_two_states(self, older: StateFile, f: StateFile) -> bool:
        """Return True if two saves are not one state under two names: most, or other units, differ."""
        differ = list(self._find_differences(older, f))
        if older.when != f.when:
            return any(differ)
        return f.tells_step and 2 * sum(differ) > max(2, len(differ))

    def _compare_places(self, older: StateFile, f: StateFile) -> Severity | None:
        """Return how bad equal files of two places are. A target network may follow a model."""
        pairs = [*self._find_pairs(older, f)]
        if any(a.content == b.content for a, b in pairs if _save(b) != _save(f)):
            return None  # replicas, whose places are compared by themselves
        if older.role != f.role:
            return Severity.ERROR if pairs or _is_state(older, f) else None
        if self._is_follower(older, f) or (older.place[1:3] == f.place[1:3] and len(pairs) < _SEVERAL):
            return None
        return Severity.ERROR if pairs else None

    def _is_follower(self, a: StateFile, b: StateFile) -> bool:
        """Return whether one place holds what the other held, at more than one step."""
        of_a, of_b = self.places[a.place], self.places[b.place]
        equal = (one != other and of_a[one].content == of_b[other].content for one in of_a for other in of_b)
        return sum(equal) >= _SEVERAL

    def _compare_ranks(self, older: StateFile, f: StateFile) -> Severity | None:
        """How bad it is that two files of one save are equal, by the saves in which they are not."""
        if older.indexed and f.indexed:
            return None  # an index names the tensors, and two files may hold equal ones
        pairs = [(a, b) for a, b in self._find_pairs(older, f) if _save(a) != _save(f)]
        if any(a.content == b.content for a, b in pairs):
            return None
        if older.role != f.role:
            return Severity.ERROR if _is_state(older, f) else None
        if not (pairs and (f.state or older.state)):
            return None
        earlier = sum(a.when < f.when for a, _ in pairs)
        return Severity.ERROR if earlier >= _SEVERAL else Severity.WARNING

    def _find_pairs(self, a: StateFile, b: StateFile) -> Iterator[tuple[StateFile, StateFile]]:
        """Yield what two places hold in each save that has both, without what is damaged."""
        mine, theirs = self.places[a.place], self.places[b.place]
        for save in mine.keys() & theirs.keys():
            if not (mine[save].broken or theirs[save].broken):
                yield mine[save], theirs[save]

    def _find_states(self, f: StateFile) -> list[StateFile]:
        of_save = (steps[_save(f)] for steps in self.places.values() if _save(f) in steps)
        return [o for o in of_save if o.state]

    def _find_differences(self, older: StateFile, f: StateFile) -> Iterator[bool]:
        """Yield for everything that two saves hold of models and optimizers whether it differs."""
        one, other = _save(older), _save(f)
        for steps in self.places.values():
            pair = [steps[save] for save in (one, other) if save in steps]
            if len(pair) == len({one, other}) and pair[-1].state and not any(x.broken for x in pair):
                yield pair[0].content != pair[-1].content


def are_apart(a: StateFile, b: StateFile) -> bool:
    """Return whether something that is known of both says that they are of different progress."""
    return any(x >= 0 and y >= 0 and x != y for x, y in zip(a.when, b.when, strict=True))


def _is_aside(a: StateFile, b: StateFile) -> bool:
    """Return whether one is the best or an export of the other: a copy, as its name says."""
    return a.kind is not b.kind and bool({a.kind, b.kind} & {Kind.BEST, Kind.RELEASE})


def _is_state(a: StateFile, b: StateFile) -> bool:
    """Return whether one of two files is an optimizer's state, and holds something."""
    return "optimizer" in (a.role, b.role) and (a.state or b.state)


def _find_hits(older: StateFile, f: StateFile, severity: Severity) -> Iterator[Hit]:
    """Yield what is said of the copy; of both where nothing tells which of them it is."""
    if older.fits != f.fits:
        copy, original = (older, f) if f.fits else (f, older)
        if copy.compared:
            yield _make_hit(copy, original, severity, Effect.REJECT)
        return
    of_one_save = _save(older) == _save(f)
    effect = Effect.REJECT if of_one_save else Effect.ASK
    if f.compared:
        yield _make_hit(f, older, severity, effect)
    if older.compared:
        yield _make_hit(older, f, severity if of_one_save else Severity.NOTE, effect)


def _make_hit(copy: StateFile, original: StateFile, severity: Severity, effect: Effect) -> Hit:
    where = _cut_at_fork(original.path, copy.path)
    if _save(copy) == _save(original) and copy.role == original.role:
        text = f"byte for byte {where}, from which this rank's files differ at other steps"
    else:
        which = _compare_age(original, copy)
        text = f"byte for byte the {original.role} file of {which} checkpoint, {where}"
    if severity is Severity.NOTE:
        text += ": either is the copy"
    ask = effect if severity is not Severity.WARNING else Effect.WARN
    return Hit(copy.path, text, severity=severity, effect=ask, other=original.path)


def _compare_age(original: StateFile, copy: StateFile) -> str:
    if _save(original) == _save(copy):
        return "the same"
    if original.when == copy.when:
        return "another"
    return "an older" if original.when < copy.when else "a newer"


def _cut_at_fork(path: str, other: str) -> str:
    """Return a path from where it parts from the other."""
    a, b = path.split("/"), other.split("/")
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    return "/".join(a[common:])


def ask_which_is_the_copy(first: str, second: str, homes: Sequence[str], answers: Sequence[str]) -> CkptError:
    """Return the question which of two files is the copy: either answer may lose or mix steps."""
    text = (
        f"{first} and {second} are byte for byte the same, although training moved on between them, and"
        " nothing in them tells which is the copy"
    )
    compare = f"'ckpt diff {' '.join(map(quote, homes))}' compares the two"
    hint = f"restore the one that is the copy, or {', or '.join(answers)}; {compare}"
    return error_of(RULE, Hit(first, text, hint))


RULE = Rule(
    id="pair/same-content",
    codes=("same-content",),
    effect=Effect.ASK,
    answer="--max-step N for the older save, --exclude for the one that is not trusted",
    why="""\
A model's or an optimizer's file is byte for byte that of another step or rank, although training
moved on between them: one was copied over the other, and a job would go on with a mixed state. What
a file tells of its own step or name says which is the copy, and its save is passed over; where
nothing tells, it is a question. Times say nothing. Files that are equal in three or more saves, and
in all, are not trained; ranks that are equal in another save are replicas.
For: hand-made repairs that copy a shard of another save; writers that save the same buffer twice.
""",
    check=check,
)
