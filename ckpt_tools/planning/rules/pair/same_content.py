"""``pair/same-content``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ckpt_tools.errors import CkptError
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Kind
from ckpt_tools.planning.facts import StateFile
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, name_below

_MOST = 4
"""How many files of other series a file is compared with: equal replicas may be thousands."""
_STEPS = 3
"""In how many saves a file must be, and be equal in all, to count as not trained."""
_SEVERAL = 2
"""How many saves must show a difference: one alone may show it by a damaged file."""


def _get_save(f: StateFile) -> tuple[str, tuple[int, ...]]:
    """Return a key that the files of one save share: its directory, and when it was made."""
    return f.home, f.when


def check(files: Sequence[StateFile]) -> Iterator[Hit]:
    """Yield each file that is equal to one of another save or rank of its run, although training moved on."""
    run = _Run(files)
    equal = defaultdict[bytes, list[StateFile]](list)
    for f in run.files:
        equal[f.content].append(f)
    for same in equal.values():
        for i, f in enumerate(same[1:], 1):
            for older in _choose_equal_files(f, same[:i]):
                if (severity := run.compare(older, f)) is not None:
                    yield from _find_hits(older, f, severity)


def _choose_equal_files(f: StateFile, same: Sequence[StateFile]) -> list[StateFile]:
    """Return files of ``same`` content to compare ``f`` with: two of its own series, else a few of others."""
    if own := [o for o in same if o.series == f.series]:
        return [o for o in own if are_apart(o, f)][:2] or own[:1]  # one may be a link to it
    others: dict[object, StateFile] = {}
    for o in (*(o for o in same if _get_save(o) == _get_save(f)), *same):
        others.setdefault(o.series, o)
    return list(others.values())[:_MOST]


class _Run:
    """The files of a run in their order. A series is the same file (role, rank, name) of all saves."""

    def __init__(self, files: Sequence[StateFile]) -> None:
        self.files = sorted(files, key=lambda f: (f.when, f.path))
        self.by_series = defaultdict[object, dict[object, StateFile]](dict)  # then by save
        for f in self.files:
            self.by_series[f.series][_get_save(f)] = f

    def compare(self, older: StateFile, f: StateFile) -> Severity | None:
        """Return how bad it is that two files are equal; None if they may be."""
        # the best so far, and an export, are meant to be copies
        is_meant = older.kind is not f.kind and bool({older.kind, f.kind} & {Kind.BEST, Kind.RELEASE})
        if is_meant or not (older.compared or f.compared):
            return None
        if older.series == f.series:
            return self._compare_saves(older, f)
        return None if self._may_be_equal(older, f) else self._compare_series(older, f)

    def _compare_saves(self, older: StateFile, f: StateFile) -> Severity | None:
        """Return how bad it is that two saves have an equal file of one series; None if they may."""
        if not are_apart(older, f) and (older.when == f.when or not self._has_progress(older, f)):
            return None  # one state under two names
        if older.when[:-1] == f.when[:-1]:  # but for the date
            return Severity.WARNING  # who starts again may come to the same state again
        contents = [o.content for o in self.by_series[f.series].values() if not o.broken]
        if older.trained or f.trained or any(content != f.content for content in contents):
            return Severity.ERROR
        return None if len(contents) >= _STEPS else self._judge_by_two_saves(older, f)

    def _judge_by_two_saves(self, older: StateFile, f: StateFile) -> Severity | None:
        """Return how bad two equal files are if no third save shows that they are trained (None: unknown)."""
        states, has_progress = self._find_states(f), self._has_progress(older, f)
        if not has_progress and any(o.broken for o in (*self._find_states(older), *states)):
            return None  # a broken file may be the one that differs
        models = sum(o.role != "optimizer" for o in states)
        return Severity.ERROR if models == 1 or not has_progress else Severity.WARNING

    def _compare_series(self, older: StateFile, f: StateFile) -> Severity | None:
        """Return how bad it is that files of two series are equal, in one save or two; None if they may."""
        of_one_save = _get_save(older) == _get_save(f)
        differing = self._find_differences(older, f)
        if older.role != f.role:
            of_optimizer = "optimizer" in (older.role, f.role) and (older.state or f.state)
            return Severity.ERROR if of_optimizer or (differing and not of_one_save) else None
        # ranks may have begun alike
        witnesses = [a for a in differing if a.when < f.when] if of_one_save else differing
        severity = Severity.ERROR if len(witnesses) >= _SEVERAL else Severity.WARNING
        return severity if differing and (older.state or f.state) else None

    def _may_be_equal(self, a: StateFile, b: StateFile) -> bool:
        """Return True if one series has, more than once, contents of the other: replicas, or a model that
        follows another. True also if an index lists the tensors of both in one save: some may be equal.
        """
        contents = {o.content for o in self.by_series[a.series].values() if not o.broken}
        equal = sum(o.content in contents for o in self.by_series[b.series].values() if not o.broken)
        return equal > 1 or (_get_save(a) == _get_save(b) and a.indexed and b.indexed)

    def _find_differences(self, a: StateFile, b: StateFile) -> list[StateFile]:
        """Return files of the series of ``a`` that differ from the file of ``b``'s series in their save."""
        of_a, of_b = self.by_series[a.series], self.by_series[b.series]
        pairs = [(of_a[save], of_b[save]) for save in of_a.keys() & of_b.keys()]
        return [x for x, y in pairs if x.content != y.content and not (x.broken or y.broken)]

    def _find_states(self, f: StateFile) -> list[StateFile]:
        """Return the files of the save of ``f`` that hold a model or an optimizer's state."""
        save = _get_save(f)
        return [saves[save] for saves in self.by_series.values() if save in saves and saves[save].state]

    def _has_progress(self, older: StateFile, f: StateFile) -> bool:
        """Return True if any model's or optimizer's file differs between the saves of two files."""
        one, other = _get_save(older), _get_save(f)
        pairs = ((of[one], of[other]) for of in self.by_series.values() if one in of and other in of)
        return any(b.state and not (a.broken or b.broken) and a.content != b.content for a, b in pairs)


def are_apart(a: StateFile, b: StateFile) -> bool:
    """Return True if a step, epoch or date that both files have shows different progress."""
    return any(x >= 0 and y >= 0 and x != y for x, y in zip(a.when, b.when, strict=True))


def _find_hits(older: StateFile, f: StateFile, severity: Severity) -> Iterator[Hit]:
    """Yield a hit on the copy of two equal files; on both if nothing tells which one it is."""
    of_one_save = _get_save(older) == _get_save(f)
    effect = Effect.REJECT if of_one_save or older.fits != f.fits else Effect.ASK
    if f.compared and (older.fits or not f.fits):
        yield _make_hit(f, older, severity, effect)
    if older.compared and (f.fits or not older.fits):
        is_sure = of_one_save or older.fits != f.fits
        yield _make_hit(older, f, severity if is_sure else Severity.NOTE, effect)


def _make_hit(copy: StateFile, original: StateFile, severity: Severity, effect: Effect) -> Hit:
    """Return the hit on a copy. With severity NOTE the text says that either file may be the copy."""
    a, b = original.path.split("/"), copy.path.split("/")
    fork = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    which = "the same" if _get_save(original) == _get_save(copy) else "another"
    text = f"byte for byte the {original.role} file of {which} checkpoint, {'/'.join(a[fork:])}"
    text += ": either is the copy" if severity is Severity.NOTE else ""
    effect = effect if severity is not Severity.WARNING else Effect.WARN
    return Hit(copy.path, text, severity=severity, effect=effect, of_file=True, other=original.path)


def ask_which_is_the_copy(root: str, first: str, second: str, answers: Sequence[str]) -> CkptError:
    """Return the question which of two files is the copy: a wrong answer may lose or mix steps."""
    both = f"{name_below(first, root)} and {name_below(second, root)}"
    text = f"{both} are byte for byte the same, although training went on between them"
    return error_of(RULE, Hit(first, text, f"restore whichever is the copy, or {', or '.join(answers)}"))


RULE = Rule(
    id="pair/same-content",
    codes=("same-content",),
    effect=Effect.ASK,
    answer="--max-step N for the older save, --exclude for the one that is not trusted",
    why="""\
A model's or an optimizer's file is byte for byte that of another step or rank, although training
moved on between them: one was copied over the other, and a job would go on with a mixed state. What
a file tells of its own step or name says which is the copy, and its save is skipped; where
nothing tells, it is a question. Times say nothing. Files that are equal in three or more saves, and
in all, are not trained; ranks that are equal in another save are replicas.
For: hand-made repairs that copy a shard of another save; writers that save the same buffer twice.
""",
    check=check,
)
