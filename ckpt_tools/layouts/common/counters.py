"""Counters inside files against the names of their checkpoints, over all checkpoints of one run; and what
training loops call the steps and epochs that they count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import groupby, pairwise, repeat
from math import gcd
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import Found, Metadata, Rows, Steps, whole
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part

SHARED = frozenset({"consumed_train_samples", "global_samples", "skipped_steps", "global_step"})
"""Counters of a whole job (Megatron's args, DeepSpeed's model states, MindSpore's append_info):
all ranks of one save write the same number.
"""
STEPS = (
    "global_step",
    "step",
    "iteration",
    "step_num",
    "iter",
    "n_iter",
    "it",
    "train_step",
    "current_step",
    "num_updates",
    "step_count",  # LitGPT, which counts iter_num beside it
    "iter_num",  # nanoGPT
    "num_timesteps",  # of Stable-Baselines3's archives
    "trained_steps",  # picotron
    "optimizer/vars/0",  # Keras: the optimizer's iterations
    "batch_idx_train",  # icefall
    "meta.iter",
    "pickles.global_step",  # Diffusion Policy
    "train_state.global_step",
    "train_state.step",
    "optimizer_history.num_updates",
    "state.timestamp.Timestamp.batch",
    "state.timestamp.batch",
    "trainer.iteration",  # Ignite, MONAI
)
EPOCHS = (
    *("epoch", "epoch_num", "current_epoch", "last_finished_epoch", "meta.epoch", "train_state.epoch"),
    "reporter.epoch",  # ESPnet
    "cur_epoch",  # icefall, whose start_epoch is the first of the run
    "start_epoch",  # YOLOX: how many are done
    "pickles.epoch",
    "variable_state.epoch",  # robomimic
)
_LONGEST_OBJECT = 4096
Counter = Callable[[Metadata], "int | None"]


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


def numbers(metadata: Metadata, keys: Sequence[str]) -> tuple[int, ...]:
    """What those of the keys hold that hold a whole number; safetensors keeps all values as text. A negative
    one counts nothing: YOLO's files of a run that is over say epoch -1.
    """
    text = {k: int(v) for k in keys if isinstance(v := metadata.get(k), str) and v.isdigit() and len(v) <= 18}
    found = {**metadata, **text}
    return tuple(n for key in keys if key in found and (n := whole(found[key])) is not None and n >= 0)


def number(metadata: Metadata, keys: Sequence[str]) -> int | None:
    """The first of the numbers."""
    return next(iter(numbers(metadata, keys)), None)


def steps_told(metadata: Metadata) -> tuple[int, ...]:
    """All numbers of steps, however deep in a file they are; safetensors keeps objects as JSON, such as
    ai-toolkit's ``training_info``.
    """
    found = dict(metadata)
    for key, text in metadata.items():
        if isinstance(text, str) and text.startswith("{") and len(text) <= _LONGEST_OBJECT:
            try:
                held = json.loads(text)
            except (ValueError, RecursionError):
                continue
            found.update((f"{key}.{name}", n) for name, n in held.items() if type(n) is int)
    return numbers(found, [key for key in found if key.rpartition(".")[2] in STEPS])


def read_steps(
    part: Part,
    metadata: Metadata,
    *,
    step: Sequence[str] = (),
    epoch: Sequence[str] = (),
    by_name: bool = True,
) -> Steps:
    """What a part's name tells, else the first of its entries; or the entries first."""
    step_told, epoch_told = first(metadata, step), first(metadata, epoch)
    if part.step is not None and (by_name or step_told is None):
        step_told = part.step
    if part.epoch is not None and (by_name or epoch_told is None):
        epoch_told = part.epoch
    return step_told, epoch_told, part.step_in_epoch


def named_steps(
    parts: Rows, read: Counter | Sequence[str] | str, what: str = "", role: str = "", unit: str = "step"
) -> Found:
    """A step that a file (of a ``role``) tells for certain must be the step in its name. What tells it is the
    entry ``read``, the first of several, or what that returns.
    """
    for part, report in parts:
        if callable(read):
            said = read(report.metadata)
        else:
            said = first(report.metadata, [read] if isinstance(read, str) else read)
        named = part.step if unit == "step" else part.epoch
        if part.role == (role or part.role) and None not in (said, named) and said != named:
            text = f"the name says {unit} {named}, the file's {what or read} is {said}"
            yield part.path, Flaw("step-mismatch" if unit == "step" else "epoch-mismatch", text)


def named_epochs(parts: Rows, read: Counter | Sequence[str] | str, what: str = "", role: str = "") -> Found:
    """The same of epochs."""
    return named_steps(parts, read, what, role, "epoch")


def told_otherwise(parts: Rows, named_by: Callable[[Part], Steps]) -> Found:
    """Files that tell another step or epoch than their name, which is ``named_by`` whoever asks: damage where
    it is that of another file.
    """
    for code, at, keys in (("step-mismatch", 0, STEPS), ("epoch-mismatch", 1, EPOCHS)):
        rows = [(p, named_by(p)[at], numbers(r.metadata, keys)) for p, r in parts]
        names = {named for _, named, _ in rows}
        if _counts_something_else([(named, told) for _, named, told in rows if named is not None and told]):
            continue
        for p, named, told in rows:
            if named is not None and told and all(abs(named - n) > 1 for n in told):
                severity = Severity.WARNING if names.isdisjoint(told) else Severity.ERROR
                text = f"the name says {code[:-9]} {named}, the file {told[0]}"
                yield p.path, Flaw(code, text, severity=severity)


def _counts_something_else(rows: Sequence[tuple[int, tuple[int, ...]]]) -> bool:
    """Whether what the files of several saves tell grows with their names, and far more slowly, where not
    both begin at 0: VITS calls the epoch ``iteration``, and its files after the steps.
    """
    by_name: dict[int, set[int]] = {}
    for named, told in rows:
        by_name.setdefault(named, set()).add(told[0])
    if len(by_name) < 2 or any(len(told) > 1 for told in by_name.values()):
        return False
    counted = [(named, min(by_name[named])) for named in sorted(by_name)]
    grows = all(a < b for (_, a), (_, b) in pairwise(counted))
    return grows and all(2 * told < named or told == named == 0 for named, told in counted)


class _Counted(NamedTuple):
    """A file, the number of its checkpoint, and what the file's own counter says."""

    number: int
    said: int
    part: Part


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
            yield from _find_borrowed(sorted(mine, key=lambda row: row[:2]), growing, beside)


def schedules(parts: Rows, told: Collection[str]) -> Found:
    """Schedulers' states of another checkpoint of the run, in any layout; of those ``told`` more is known."""
    by_name: dict[str, list[_Counted]] = {}
    for p, r in parts:
        if (said := whole(r.metadata.get("last_epoch"))) is not None and p.path not in told:
            name = p.path.removeprefix(p.home) if p.home else re.sub("[0-9]+", "", p.path)
            by_name.setdefault(name, []).append(_Counted(0, said, p))
    taken = steps_taken(parts)
    for rows in by_name.values():
        if all(_save(row.part) in taken for row in rows):
            # in one unit, whether their names tell steps or epochs
            counts = sorted(
                (row._replace(number=taken[_save(row.part)]) for row in rows), key=lambda r: r[:2]
            )
            found = _find_borrowed(counts, growing=True, beside="the optimizer beside it")
        else:
            pieces = {row.part.piece: ("last_epoch",) for row in rows}
            paths = {row.part.path for row in rows}
            found = borrowed([row for row in parts if row[0].path in paths], pieces, place_in_run)
        for path, f in found:
            # of files beside each other the name that one was saved under may tell more
            yield path, f if rows[0].part.home else replace(f, severity=Severity.WARNING)


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


def _find_borrowed(rows: Sequence[_Counted], growing: bool, beside: str) -> Found:
    numbers, exact = {row.number for row in rows}, _find_exact(rows)
    may_stop = growing and (not exact or _count_epochs(rows))
    stopped = set(_find_stopped(rows)) if may_stop else set[int]()
    interval = gcd(*numbers) if beside else 0
    for at, (row, older) in enumerate(zip(rows, _furthest(rows, exact), strict=True)):
        wrong = row.number not in exact
        if wrong and row.said in numbers and _is_elsewhere(row, exact):
            where = f"like that of checkpoint {row.said}, but it lies in checkpoint {row.number}"
            if beside:
                where = f"{beside} {row.number}, and in the run's other checkpoints both count alike"
            yield row.part.path, Flaw("step-mismatch", f"its counter says {row.said}, {where}")
        elif wrong and older > max(row.said, 0) and _may_be_of_a_save(row, numbers, interval):
            yield row.part.path, _doubt(row, f"less than the {older} of an older checkpoint of the run")
        elif at in stopped:
            yield row.part.path, _doubt(row, "the same as in an older checkpoint of the run")


def _find_exact(rows: Sequence[_Counted]) -> set[int]:
    """The numbers that counters tell exactly; 0, where all begins, is none."""
    exact = {row.number for row in rows if row.number == row.said}
    return exact if exact != {0} else set()


def _count_epochs(rows: Sequence[_Counted]) -> bool:
    return all(row.part.step is None and row.part.epoch is not None for row in rows)


def _doubt(row: _Counted, text: str) -> Flaw:
    return Flaw("step-mismatch", f"its counter says {row.said}, {text}", severity=Severity.WARNING)


def _may_be_of_a_save(row: _Counted, numbers: Collection[int], interval: int) -> bool:
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


def _find_stopped(rows: Sequence[_Counted]) -> Iterator[int]:
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


def _is_elsewhere(row: _Counted, exact: Collection[int]) -> bool:
    """Whether a counter is another checkpoint's.

    Its own checkpoint's count is elsewhere: later ones are exact again, or a whole interval of several steps
    is missing.
    """
    if row.said not in exact and row.said != row.number:
        return False
    return any(number > row.number for number in exact) or abs(row.number - row.said) > 1
