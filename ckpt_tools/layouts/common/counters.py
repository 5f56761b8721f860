"""Counters inside files against the names of their checkpoints, over all checkpoints of one run."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import groupby, pairwise, repeat
from math import gcd
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import Metadata, whole
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

SHARED = frozenset({"consumed_train_samples", "global_samples", "skipped_steps", "global_step"})
"""Counters of a whole job (Megatron's args, DeepSpeed's model states, MindSpore's append_info):
all ranks of one save write the same number.
"""
Rows = Sequence[tuple[Part, Report]]
Counter = Callable[[Metadata], "int | None"]
Found = Iterator[tuple[str, Flaw]]


def first(metadata: Metadata, keys: Sequence[str]) -> int | None:
    """The first of the keys that holds an integer."""
    return next((n for n in (whole(metadata.get(k)) for k in keys) if n is not None), None)


def last_word(metadata: Metadata, words: Sequence[str]) -> int | None:
    """The integer whose dotted name is, or ends in, one of the words; words first come first."""
    for word in words:
        for key, value in metadata.items():
            if (key == word or key.endswith(f".{word}")) and (n := whole(value)) is not None:
                return n
    return None


def named_steps(
    parts: Rows, read: Counter | str, what: str = "", role: str = "", unit: str = "step"
) -> Found:
    """A step that a file (of a ``role``) tells for certain must be the step in its name. What tells it is the
    entry ``read``, or what that returns.
    """
    for part, report in parts:
        said = whole(report.metadata.get(read)) if isinstance(read, str) else read(report.metadata)
        named = part.step if unit == "step" else part.epoch
        if part.role == (role or part.role) and None not in (said, named) and said != named:
            text = f"the name says {unit} {named}, the file's {what or read} is {said}"
            yield part.path, Flaw("step-mismatch" if unit == "step" else "epoch-mismatch", text)


def named_epochs(parts: Rows, read: Counter | str, what: str = "", role: str = "") -> Found:
    """The same of epochs."""
    return named_steps(parts, read, what, role, "epoch")


def borrowed(
    parts: Rows,
    keys: Mapping[str, Sequence[str]],
    number: Callable[[Part], int | None] = lambda p: p.step,
    *,
    growing: bool = True,
    beside: str = "",
) -> Found:
    """Files whose counter belongs to another checkpoint of the run.
    ``keys`` maps a piece to the names of its counter.

    Optimizers and schedulers count in units of their own (skipped steps, several processes, epochs), so only
    a comparison can contradict: a counter that is elsewhere in the run exactly its checkpoint's number, or
    (``growing``) that does not grow from one checkpoint to the next as it does between the others. The number
    is that of the checkpoint, or what another file ``beside`` this one counts.
    """
    for piece, names in keys.items():
        by_rank: dict[object, list[_Counted]] = {}
        for p, r in parts:
            if p.piece != piece:
                continue
            n, said = number(p), first(r.metadata, names)
            if n is not None and said is not None:
                by_rank.setdefault((p.rank, p.coords), []).append(_Counted(n, said, p))
        for mine in by_rank.values():
            yield from _borrowed(sorted(mine, key=lambda row: row[:2]), growing, beside)


class _Counted(NamedTuple):
    """A file, the number of its checkpoint, and what the file's own counter says."""

    number: int
    said: int
    part: Part


def schedules(parts: Rows, told: Collection[str]) -> Found:
    """Schedulers' states of another checkpoint of the run, in any layout; of those ``told`` more is known."""
    by_name: dict[str, list[tuple[Part, Report]]] = {}
    for p, r in parts:
        if whole(r.metadata.get("last_epoch")) is not None and p.path not in told:
            name = p.path.removeprefix(p.home) if p.home else re.sub("[0-9]+", "", p.path)
            by_name.setdefault(name, []).append((p, r))
    taken = steps_taken(parts)
    for rows in by_name.values():
        for path, f in _of_schedules(rows, taken):
            # of files beside each other the name that one was saved under may tell more
            yield path, f if rows[0][0].home else replace(f, severity=Severity.WARNING)


def _of_schedules(rows: Rows, taken: Mapping[object, int]) -> Found:
    """The same of files of one name, beside optimizers that have ``taken`` so many steps."""
    if all(_save(p) in taken for p, _ in rows):  # in one unit, whether their names tell steps or epochs
        said = ((p, first(r.metadata, ("last_epoch",))) for p, r in rows)
        counts = [_Counted(taken[_save(p)], n, p) for p, n in said if n is not None]
        counts.sort(key=lambda row: row[:2])
        yield from _borrowed(counts, growing=True, beside="the optimizer beside it")
    else:
        yield from borrowed(rows, {p.piece: ("last_epoch",) for p, _ in rows}, place_in_run)


def _save(p: Part) -> object:
    """Which save a file is of: its directory, or among files beside each other what they count."""
    return p.home or (p.base, p.step, p.epoch)


def steps_taken(parts: Rows) -> dict[object, int]:
    """How many steps a checkpoint's optimizer has taken, by its save, where several agree."""
    said: dict[object, set[int]] = {}
    for p, r in parts:
        if (taken := whole(r.metadata.get("optimizer_step"))) is not None:
            said.setdefault(_save(p), set()).add(taken)
    return {save: min(taken) for save, taken in said.items() if len(taken) == 1}


def place_in_run(p: Part) -> int | None:
    """What tells a checkpoint's place in its run; the files of a run are all named alike."""
    return next((n for n in (p.step, p.epoch, p.generation) if n is not None), None)


def _borrowed(rows: Sequence[_Counted], growing: bool, beside: str) -> Found:
    numbers, exact = {row.number for row in rows}, _exact(rows)
    may_stop = not growing or (bool(exact) and not _by_epochs(rows))
    interval = gcd(*numbers) if beside else 0
    stopped = set() if may_stop else set(_stopped(rows))
    for at, (row, older) in enumerate(zip(rows, _furthest(rows, exact), strict=True)):
        if row.number not in exact and row.said in numbers and _elsewhere(row, exact):
            yield row.part.path, Flaw("step-mismatch", _whose(row, beside))
        elif (
            row.number not in exact and older > max(row.said, 0) and _may_be_a_save_s(row, numbers, interval)
        ):
            text = f"its counter says {row.said}, less than the {older} of an older checkpoint of the run"
            yield row.part.path, Flaw("step-mismatch", text, severity=Severity.WARNING)
        elif at in stopped:
            text = f"its counter says {row.said}, the same as in an older checkpoint of the run"
            yield row.part.path, Flaw("step-mismatch", text, severity=Severity.WARNING)


def _may_be_a_save_s(row: _Counted, numbers: Collection[int], interval: int) -> bool:
    """Whether a counter may be that of a save that is gone. One that was begun anew counts from the save that
    training went on from; a schedule (its saves' ``interval`` is told) also begins anew at any step.
    """
    restarted = row.number - row.said in numbers
    return not restarted and (not interval or (row.said > 0 and row.said % interval == 0))


def _furthest(rows: Sequence[_Counted], exact: Collection[int]) -> Iterator[int]:
    """For each row the most that the right counter of an older checkpoint says; 0 without one."""
    most = 0
    for number, same in groupby(rows, lambda row: row.number):
        here = [row.said for row in same]
        yield from repeat(most, len(here))
        if number in exact:
            most = max(most, *here)


def _exact(rows: Sequence[_Counted]) -> set[int]:
    """The numbers that counters tell exactly; 0, where all begins, is none."""
    exact = {row.number for row in rows if row.number == row.said}
    return exact if exact != {0} else set()


def _by_epochs(rows: Sequence[_Counted]) -> bool:
    return all(row.part.step is None and row.part.epoch is not None for row in rows)


def _whose(row: _Counted, beside: str) -> str:
    if beside:
        other = f"{beside} {row.number}, and in the run's other checkpoints both count alike"
    else:
        other = f"like that of checkpoint {row.said}, but it lies in checkpoint {row.number}"
    return f"its counter says {row.said}, {other}"


def _stopped(rows: Sequence[_Counted]) -> Iterator[int]:
    """Where a counter is the same as in an older checkpoint, although it should have grown as between the
    others: one of epochs or evaluations may stand still for several saves, and grow by one more or less than
    usual.
    """
    wrong = [at for at, row in enumerate(rows) if row.said != row.number]
    steps = ((_growth(a, b), at) for at, (a, b) in enumerate(pairwise(rows)) if b.number > a.number)
    least = nsmallest(3, steps)  # of which a row is at the ends of two
    first_with: dict[int, int] = {}
    for at, row in enumerate(rows):
        if not (distance := row.number - first_with.setdefault(row.said, row.number)):
            continue
        if row.part.epoch is not None and wrong in ([], [at]):
            stands = len(rows) > 2
        else:
            grown = [growth for growth, n in least if n not in (at - 1, at)]
            a, b = rows[at - 1], rows[min(at + 1, len(rows) - 1)]
            grown += [_growth(a, b)] if at + 1 < len(rows) and b.number > a.number else []
            stands = min(grown, default=0) * distance >= 1
        if stands:
            yield at


def _growth(a: _Counted, b: _Counted) -> float:
    """How much a counter grows at least for each step between two checkpoints."""
    return (b.said - a.said - 1) / (b.number - a.number)


def _elsewhere(row: _Counted, exact: Collection[int]) -> bool:
    """Whether a counter is another checkpoint's.

    Its own checkpoint's count is elsewhere: later ones are exact again, or a whole interval of several steps
    is missing.
    """
    if row.said not in exact and row.said != row.number:
        return False
    return any(number > row.number for number in exact) or abs(row.number - row.said) > 1
