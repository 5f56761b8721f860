"""Counters inside files, compared with the names of all checkpoints of a run; and names of counters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import groupby, pairwise, repeat
from math import gcd
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import Found, Metadata, Rows, Steps
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Scalar

SHARED = frozenset({"consumed_train_samples", "global_samples", "skipped_steps", "global_step"})
"""Counters of a whole job (Megatron's args, DeepSpeed's model states, MindSpore's append_info): all ranks of
one save write the same number.
"""
STEPS = (
    *("global_step", "step", "iteration", "step_num", "iter", "n_iter", "it", "train_step", "current_step"),
    "num_updates",
    "step_count",  # LitGPT, which counts iter_num beside it
    "iter_num",  # nanoGPT
    "num_timesteps",  # of Stable-Baselines3's archives
    "trained_steps",  # picotron
    "optimizer/vars/0",  # Keras: the optimizer's iterations
    "batch_idx_train",  # icefall
    "meta.iter",
    "pickles.global_step",  # Diffusion Policy
    *("train_state.global_step", "train_state.step", "optimizer_history.num_updates"),
    *("state.timestamp.Timestamp.batch", "state.timestamp.batch"),
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


def as_int(value: Scalar) -> int | None:
    """Return a metadata value if it is an int, else None (True is no int here)."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_first(metadata: Metadata, keys: Sequence[str]) -> int | None:
    """Return the first integer that one of the keys holds; None without one."""
    return next((n for k in keys if k in metadata and (n := as_int(metadata[k])) is not None), None)


def read_by_last_word(metadata: Metadata, words: Sequence[str]) -> int | None:
    """Return the integer whose dotted name is, or ends in, one of the words; earlier words are preferred."""
    for word in words:
        for key, value in metadata.items():
            if (key == word or key.endswith(f".{word}")) and (n := as_int(value)) is not None:
                return n
    return None


def read_counts(metadata: Metadata, keys: Sequence[str]) -> tuple[int, ...]:
    """Return the whole numbers, at least 0, that the keys hold, also as text, as safetensors keeps them."""
    text = {
        k: int(v) for k in keys if isinstance(v := metadata.get(k), str) and v.isdecimal() and len(v) <= 18
    }
    found = {**metadata, **text}
    # YOLO's files of a run that is over say epoch -1
    return tuple(n for key in keys if key in found and (n := as_int(found[key])) is not None and n >= 0)


def read_count(metadata: Metadata, keys: Sequence[str]) -> int | None:
    """Return the first whole number, at least 0, that the keys hold, also as text; None without one."""
    return next(iter(read_counts(metadata, keys)), None)


def read_all_steps(metadata: Metadata) -> tuple[int, ...]:
    """Return all numbers of steps in a file, at any depth and in safetensors' JSON (as ai-toolkit writes)."""
    found = dict(metadata)
    for key, text in metadata.items():
        if isinstance(text, str) and text.startswith("{") and len(text) <= _LONGEST_OBJECT:
            try:
                entries = json.loads(text)
            except (ValueError, RecursionError):
                continue
            found.update((f"{key}.{name}", n) for name, n in entries.items() if type(n) is int)
    return read_counts(found, [key for key in found if key.rpartition(".")[2] in STEPS])


def read_steps(
    part: Part,
    metadata: Metadata,
    *,
    step: Sequence[str] = (),
    epoch: Sequence[str] = (),
    by_name: bool = True,
) -> Steps:
    """Return the step and epoch in a part's name, else in its entries; with ``by_name`` False vice versa."""
    its_step, its_epoch = read_first(metadata, step), read_first(metadata, epoch)
    if part.step is not None and (by_name or its_step is None):
        its_step = part.step
    if part.epoch is not None and (by_name or its_epoch is None):
        its_epoch = part.epoch
    return its_step, its_epoch, part.step_in_epoch


def check_steps(
    parts: Rows, read: Counter | Sequence[str] | str, what: str = "", role: str = "", unit: str = "step"
) -> Found:
    """Yield files (of a ``role``) of another step than their name, or epoch or step_in_epoch by ``unit``.
    ``read`` is the entry (of several the first counts), or a function; messages call it ``what``.
    """
    for part, report in parts:
        if callable(read):
            in_file = read(report.metadata)
        else:
            in_file = read_first(report.metadata, [read] if isinstance(read, str) else read)
        in_name = getattr(part, unit)
        if part.role == (role or part.role) and None not in (in_file, in_name) and in_file != in_name:
            counted = "epoch" if unit == "epoch" else "step"
            text = f"the name says {counted} {in_name}, the file's {what or read} is {in_file}"
            yield part.path, Flaw(f"{counted}-mismatch", text)


def find_misnamed(parts: Rows, named_by: Callable[[Part], Steps]) -> Found:
    """Yield files of another step or epoch than ``named_by`` tells: an error if another file is named so."""
    for code, at, keys in (("step-mismatch", 0, STEPS), ("epoch-mismatch", 1, EPOCHS)):
        rows = [(p, named_by(p)[at], read_counts(r.metadata, keys)) for p, r in parts]
        all_in_names = {in_name for _, in_name, _ in rows}
        if _is_other_unit([(in_name, held) for _, in_name, held in rows if in_name is not None and held]):
            continue
        for p, in_name, held in rows:
            if in_name is not None and held and all(abs(in_name - n) > 1 for n in held):
                severity = Severity.WARNING if all_in_names.isdisjoint(held) else Severity.ERROR
                text = f"the name says {code[:-9]} {in_name}, the file {held[0]}"
                yield p.path, Flaw(code, text, severity=severity)


def _is_other_unit(rows: Sequence[tuple[int, tuple[int, ...]]]) -> bool:
    """Return True if files' numbers grow less than half as fast as names': VITS calls the epoch iteration."""
    by_name: dict[int, set[int]] = {}
    for in_name, held in rows:
        by_name.setdefault(in_name, set()).add(held[0])
    if len(by_name) < 2 or any(len(held) > 1 for held in by_name.values()):
        return False
    pairs = [(in_name, min(by_name[in_name])) for in_name in sorted(by_name)]
    grows = all(a < b for (_, a), (_, b) in pairwise(pairs))
    return grows and all(2 * n < in_name or n == in_name == 0 for in_name, n in pairs)


class _Counted(NamedTuple):
    """A file, the number of its checkpoint, and the number in the file's own ``counter``."""

    number: int
    counter: int
    part: Part


def find_foreign(
    parts: Rows,
    keys: Mapping[str, Sequence[str]],
    number: Callable[[Part], int | None] = lambda p: p.step,
    *,
    growing: bool = True,
    beside: str = "",
) -> Found:
    """Yield files whose counter belongs to another checkpoint of the run. ``keys`` maps a piece to the names
    of its counter.

    Optimizers and schedulers count in units of their own (skipped steps, several processes, epochs), so only
    a comparison can contradict: elsewhere in the run the counter is exactly its checkpoint's number, or
    (``growing``) it does not grow from one checkpoint to the next as it does between the others. ``number``
    returns the checkpoint's number, or the counter of another file, described by ``beside``.
    """
    for piece, names in keys.items():
        by_rank: dict[object, list[_Counted]] = {}
        for p, r in parts:
            if p.piece != piece:
                continue
            n, counter = number(p), read_first(r.metadata, names)
            if n is not None and counter is not None:
                by_rank.setdefault((p.rank, p.coords), []).append(_Counted(n, counter, p))
        for rows in by_rank.values():
            yield from _find_borrowed(sorted(rows, key=lambda row: row[:2]), growing, beside)


def find_schedules(parts: Rows, reported: Collection[str]) -> Found:
    """Yield schedulers' states of another checkpoint of the run, in any layout, but no ``reported`` paths."""
    by_name: dict[str, list[_Counted]] = {}
    for p, r in parts:
        if (counter := as_int(r.metadata.get("last_epoch"))) is not None and p.path not in reported:
            name = p.path.removeprefix(p.home) if p.home else re.sub("[0-9]+", "", p.path)
            by_name.setdefault(name, []).append(_Counted(0, counter, p))
    taken = count_optimizer_steps(parts)
    for rows in by_name.values():
        if all(_identify_save(row.part) in taken for row in rows):
            # both count in one unit, whether names tell steps or epochs
            counts = [row._replace(number=taken[_identify_save(row.part)]) for row in rows]
            counts.sort(key=lambda r: r[:2])
            found = _find_borrowed(counts, growing=True, beside="the optimizer beside it")
        else:
            pieces = {row.part.piece: ("last_epoch",) for row in rows}
            paths = {row.part.path for row in rows}
            found = find_foreign([row for row in parts if row[0].path in paths], pieces, read_number_in_run)
        for path, f in found:
            # the name of a file beside others may tell more than the number of its save, so a warning
            yield path, f if rows[0].part.home else replace(f, severity=Severity.WARNING)


def _identify_save(p: Part) -> object:
    """Return what tells a file's save: its directory, or for files beside each other their step and epoch."""
    return p.home or (p.base, p.step, p.epoch)


def count_optimizer_steps(parts: Rows) -> dict[object, int]:
    """Return the steps that each save's optimizer has taken, if its files agree, by ``_identify_save``."""
    counters: dict[object, set[int]] = {}
    for p, r in parts:
        if (taken := as_int(r.metadata.get("optimizer_step"))) is not None:
            counters.setdefault(_identify_save(p), set()).add(taken)
    return {save: min(taken) for save, taken in counters.items() if len(taken) == 1}


def read_number_in_run(p: Part) -> int | None:
    """Return a checkpoint's step, else epoch, else generation: files of one run are all named alike."""
    return next((n for n in (p.step, p.epoch, p.generation) if n is not None), None)


def _find_borrowed(rows: Sequence[_Counted], growing: bool, beside: str) -> Found:
    """Yield files, sorted by number, whose counter is another checkpoint's, by the rules of find_foreign."""
    numbers, exact = {row.number for row in rows}, _find_exact_numbers(rows)
    may_stop = growing and (not exact or _are_epochs(rows))
    stopped = set(_find_stopped(rows)) if may_stop else set[int]()
    interval = gcd(*numbers) if beside else 0
    for at, (row, older) in enumerate(zip(rows, _list_highest(rows, exact), strict=True)):
        is_wrong = row.number not in exact
        if is_wrong and row.counter in numbers and _is_of_another(row, exact):
            where = f"like that of checkpoint {row.counter}, but it lies in checkpoint {row.number}"
            if beside:
                where = f"{beside} {row.number}, and in the run's other checkpoints both count alike"
            yield row.part.path, Flaw("step-mismatch", f"its counter says {row.counter}, {where}")
        elif is_wrong and older > max(row.counter, 0) and _may_be_of_lost_save(row, numbers, interval):
            yield row.part.path, _warn(row, f"less than the {older} of an older checkpoint of the run")
        elif at in stopped:
            yield row.part.path, _warn(row, "the same as in an older checkpoint of the run")


def _find_exact_numbers(rows: Sequence[_Counted]) -> set[int]:
    """Return the numbers that counters say exactly; none if only 0, where all counters begin, is one."""
    exact = {row.number for row in rows if row.number == row.counter}
    return exact if exact != {0} else set()


def _are_epochs(rows: Sequence[_Counted]) -> bool:
    """Return True if names of all files tell an epoch and no step."""
    return all(row.part.step is None and row.part.epoch is not None for row in rows)


def _warn(row: _Counted, text: str) -> Flaw:
    return Flaw("step-mismatch", f"its counter says {row.counter}, {text}", severity=Severity.WARNING)


def _may_be_of_lost_save(row: _Counted, numbers: Collection[int], interval: int) -> bool:
    """Return True if a counter may be a lost save's. With an ``interval`` it may begin anew at any step."""
    is_restarted = row.number - row.counter in numbers
    return not is_restarted and (not interval or (row.counter > 0 and row.counter % interval == 0))


def _list_highest(rows: Sequence[_Counted], exact: Collection[int]) -> Iterator[int]:
    """Yield for each row the highest counter of older checkpoints with ``exact`` numbers; 0 without one."""
    highest = 0
    for number, same in groupby(rows, lambda row: row.number):
        counters = [row.counter for row in same]
        yield from repeat(highest, len(counters))
        if number in exact:
            highest = max(highest, *counters)


def _find_stopped(rows: Sequence[_Counted]) -> Iterator[int]:
    """Yield the index of each row with the counter of an older checkpoint, although others have grown."""
    wrong = [at for at, row in enumerate(rows) if row.counter != row.number]
    steps = ((_compute_growth(a, b), at) for at, (a, b) in enumerate(pairwise(rows)) if b.number > a.number)
    least = nsmallest(3, steps)  # of which a row is at the ends of two
    first_with: dict[int, int] = {}
    for at, row in enumerate(rows):
        if not (distance := row.number - first_with.setdefault(row.counter, row.number)):
            continue
        if row.part.epoch is not None and wrong in ([], [at]):
            stands = len(rows) > 2
        else:
            grown = [growth for growth, n in least if n not in (at - 1, at)]
            a, b = rows[at - 1], rows[min(at + 1, len(rows) - 1)]
            grown += [_compute_growth(a, b)] if at + 1 < len(rows) and b.number > a.number else []
            stands = min(grown, default=0) * distance >= 1
        if stands:
            yield at


def _compute_growth(a: _Counted, b: _Counted) -> float:
    """Return by how much a counter grows at least for each step between two checkpoints."""
    return (b.counter - a.counter - 1) / (b.number - a.number)


def _is_of_another(row: _Counted, exact: Collection[int]) -> bool:
    """Return True if a counter is, as far as ``exact`` numbers tell, that of another checkpoint."""
    if row.counter not in exact and row.counter != row.number:
        return False
    return any(n > row.number for n in exact) or abs(row.number - row.counter) > 1
