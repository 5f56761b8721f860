"""Counters inside files against the names of their checkpoints, over all checkpoints of one run; and what
training loops call the steps and epochs that they count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
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
    beside: str = "",
) -> Found:
    """Files whose counter says another checkpoint's number, where that of a third says its own.
    ``keys`` maps a piece to the names of its counter. The number is that of the checkpoint, or what another
    file ``beside`` this one counts: optimizers and schedulers may count in units of their own.
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
            yield from _find_borrowed(mine, beside)


def schedules(parts: Rows, told: Collection[str]) -> Found:
    """Schedulers' states of another checkpoint of the run, in any layout; of those ``told`` more is known."""
    by_name: dict[str, list[_Counted]] = {}
    taken = steps_taken(parts)
    for p, r in parts:
        if (said := whole(r.metadata.get("last_epoch"))) is not None and p.path not in told:
            name = p.path.removeprefix(p.home) if p.home else re.sub("[0-9]+", "", p.path)
            by_name.setdefault(name, []).append(_Counted(0, said, p))
    for rows in by_name.values():
        if all(_save(row.part) in taken for row in rows):
            # in one unit, whether their names tell steps or epochs
            counts = [row._replace(number=taken[_save(row.part)]) for row in rows]
            found = _find_borrowed(counts, "the optimizer beside it")
        else:
            placed = ((place_in_run(row.part), row) for row in rows)
            found = _find_borrowed([row._replace(number=n) for n, row in placed if n is not None])
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


def _find_borrowed(rows: Iterable[_Counted], beside: str = "") -> Found:
    """Yield what counts another checkpoint's number, if its own is counted elsewhere: later ones are exact
    again, or a whole interval of several steps is missing. 0, where all begins, is no exact number.
    """
    rows = sorted(rows, key=lambda row: row[:2])
    exact = {row.number for row in rows if row.number == row.said}
    exact = exact if exact != {0} else set()
    # of steps, where some tell the number of their checkpoint, what is another one's is seen by that
    again = None if exact and any(row.part.step is not None for row in rows) else _find_again(rows)
    for at, row in enumerate(rows):
        number, said, part = row
        if _is_elsewhere(row, exact):
            where = f"like that of checkpoint {said}, but it lies in checkpoint {number}"
            if beside:
                where = f"{beside} {number}, and in the run's other checkpoints both count alike"
            yield part.path, Flaw("step-mismatch", f"its counter says {said}, {where}")
        elif (older := _find_more(row, rows, exact, bool(beside))) or at == again:
            than = f"less than the {older} of" if older else "the same as in"
            text = f"its counter says {said}, {than} an older checkpoint of the run"
            yield part.path, Flaw("step-mismatch", text, severity=Severity.WARNING)


def _is_elsewhere(row: _Counted, exact: Collection[int]) -> bool:
    """Return whether a counter is another checkpoint's."""
    if row.number in exact or row.said not in exact:
        return False
    return row.number < max(exact) or abs(row.number - row.said) > 1


def _find_more(row: _Counted, rows: Sequence[_Counted], exact: Collection[int], beside: bool) -> int:
    """Return what an older checkpoint counts if that is more, and it is not known why; else 0. What was begun
    anew counts from the save that training went on from, a schedule from any step.
    """
    older = max((n for n in exact if n < row.number), default=0)
    if row.number in exact or older <= max(row.said, 0):
        return 0
    numbers = {row.number for row in rows}
    anew = row.number - row.said in numbers or (beside and (row.said <= 0 or row.said % gcd(*numbers) > 0))
    return 0 if anew else older


def _find_again(rows: Sequence[_Counted]) -> int | None:
    """Return which row alone counts what an older one does, where all others grow: exactly as the numbers do,
    or by more than one, as counters in units of their own may stand still for several saves.
    """
    first_with: dict[int, int] = {}
    again = [at for at, row in enumerate(rows) if first_with.setdefault(row.said, at) != at]
    rest = [row for at, row in enumerate(rows) if at not in again]
    grow = all(row.number == row.said for row in rest) or all(b.said - a.said > 1 for a, b in pairwise(rest))
    return again[0] if len(again) == 1 and len(rest) > 1 and grow else None
