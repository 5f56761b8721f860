"""Counters inside files, compared with the names of all checkpoints of a run; and names of counters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import Found, Metadata, Rows, Steps, whole
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part

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


def last_word(metadata: Metadata, words: Sequence[str]) -> int | None:
    """Return the integer whose dotted name is, or ends in, one of the words; earlier words are preferred."""
    for word in words:
        for key, value in metadata.items():
            if (key == word or key.endswith(f".{word}")) and (n := whole(value)) is not None:
                return n
    return None


def numbers(metadata: Metadata, keys: Sequence[str]) -> tuple[int, ...]:
    """Return the whole numbers that the keys hold, also as text: safetensors keeps all values as text. A
    negative number counts nothing: YOLO's files of a run that is over say epoch -1.
    """
    text = {
        k: int(v) for k in keys if isinstance(v := metadata.get(k), str) and v.isdecimal() and len(v) <= 18
    }
    found = {**metadata, **text}
    return tuple(n for key in keys if key in found and (n := whole(found[key])) is not None and n >= 0)


def number(metadata: Metadata, keys: Sequence[str]) -> int | None:
    """Return the first of these ``numbers``; None without one."""
    return next(iter(numbers(metadata, keys)), None)


def steps_told(metadata: Metadata) -> tuple[int, ...]:
    """Return all numbers of steps in a file, at any depth and in safetensors' JSON (as ai-toolkit writes)."""
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
    """Return the step and epoch in a part's name, else in its entries; with ``by_name`` False vice versa."""
    its_step, its_epoch = number(metadata, step), number(metadata, epoch)
    if part.step is not None and (by_name or its_step is None):
        its_step = part.step
    if part.epoch is not None and (by_name or its_epoch is None):
        its_epoch = part.epoch
    return its_step, its_epoch, part.step_in_epoch


def named_steps(
    parts: Rows, read: Counter | Sequence[str] | str, what: str = "", role: str = "", unit: str = "step"
) -> Found:
    """Yield files (of a ``role``) that for certain hold another step than their name. ``read`` is the entry
    with the step, several entries of which the first one counts, or a function of the metadata. ``unit`` is
    the number in the name: step, epoch or step_in_epoch.
    """
    for part, report in parts:
        if callable(read):
            said = read(report.metadata)
        else:
            said = number(report.metadata, [read] if isinstance(read, str) else read)
        named = getattr(part, unit)
        if part.role == (role or part.role) and None not in (said, named) and said != named:
            text = f"the name says {unit.replace('_', ' ')} {named}, the file's {what or read} is {said}"
            yield part.path, Flaw("epoch-mismatch" if unit == "epoch" else "step-mismatch", text)


def named_epochs(parts: Rows, read: Counter | Sequence[str] | str, what: str = "", role: str = "") -> Found:
    """Yield files that hold another epoch than their name; otherwise as ``named_steps``."""
    return named_steps(parts, read, what, role, "epoch")


def find_misnamed(parts: Rows, named_by: Callable[[Part], Steps]) -> Found:
    """Yield files that hold another step or epoch than ``named_by`` returns for their name: an error if
    another file has that number in its name.
    """
    for code, at, keys in (("step-mismatch", 0, STEPS), ("epoch-mismatch", 1, EPOCHS)):
        rows = [(p, named_by(p)[at], numbers(r.metadata, keys)) for p, r in parts]
        names = {named for _, named, _ in rows}
        for p, named, held in rows:
            if named is not None and held and all(abs(named - n) > 1 for n in held):
                severity = Severity.WARNING if names.isdisjoint(held) else Severity.ERROR
                text = f"the name says {code[:-9]} {named}, the file {held[0]}"
                yield p.path, Flaw(code, text, severity=severity)


class _Counted(NamedTuple):
    """A file, the number of its checkpoint, and the number that the file's own counter ``said``."""

    number: int
    said: int
    part: Part


def borrowed(
    parts: Rows,
    keys: Mapping[str, Sequence[str]],
    place: Callable[[Part], int | None] = lambda p: p.step,
    *,
    beside: str = "",
) -> Found:
    """Yield files whose counter belongs to another checkpoint of the run. ``keys`` maps a piece to the names
    of its counter.

    Optimizers and schedulers count in units of their own (skipped steps, several processes, epochs), so only
    a comparison can contradict: elsewhere in the run the counter is exactly its checkpoint's number.
    ``place`` returns that number, or the counter of another file, described by ``beside``.
    """
    for piece, names in keys.items():
        by_rank: dict[object, list[_Counted]] = {}
        for p, r in parts:
            if p.piece != piece:
                continue
            n, said = place(p), number(r.metadata, names)
            if n is not None and said is not None:
                by_rank.setdefault((p.rank, p.coords), []).append(_Counted(n, said, p))
        for mine in by_rank.values():
            yield from _find_borrowed(mine, beside)


def _find_borrowed(rows: Sequence[_Counted], beside: str) -> Found:
    """Yield files whose counter is that of another checkpoint. Their own one must count otherwise: later
    counters are exact again, or the difference is more than one step.
    """
    exact = {row.number for row in rows if row.number == row.said}
    if exact == {0}:  # where all counters begin
        return
    for row in sorted(rows, key=lambda row: row[:2]):
        later = max(exact, default=0) > row.number
        if row.number not in exact and row.said in exact and (later or abs(row.number - row.said) > 1):
            where = f"like that of checkpoint {row.said}, but it lies in checkpoint {row.number}"
            if beside:
                where = f"{beside} {row.number}, and in the run's other checkpoints both count alike"
            yield row.part.path, Flaw("step-mismatch", f"its counter says {row.said}, {where}")


def schedules(parts: Rows, reported: Collection[str]) -> Found:
    """Yield schedulers' states of another checkpoint of the run, in any layout, but no ``reported`` paths."""
    by_name: dict[str, list[tuple[Part, int]]] = {}
    for p, r in parts:
        if (said := whole(r.metadata.get("last_epoch"))) is not None and p.path not in reported:
            name = p.path.removeprefix(p.home) if p.home else re.sub("[0-9]+", "", p.path)
            by_name.setdefault(name, []).append((p, said))
    taken = steps_taken(parts)
    for same in by_name.values():
        places = [taken.get(_identify_save(p)) for p, _ in same]
        # then both count in one unit, whether names tell steps or epochs
        beside = "" if None in places else "the optimizer beside it"
        places = places if beside else [place_in_run(p) for p, _ in same]
        rows = zip(places, same, strict=True)
        for path, f in _find_borrowed(
            [_Counted(n, said, p) for n, (p, said) in rows if n is not None], beside
        ):
            # the name of a file beside others may tell more than the number of its save, so a warning
            yield path, f if same[0][0].home else replace(f, severity=Severity.WARNING)


def _identify_save(p: Part) -> object:
    """Return what tells a file's save: its directory, or for files beside each other their step and epoch."""
    return p.home or (p.base, p.step, p.epoch)


def steps_taken(parts: Rows) -> dict[object, int]:
    """Return the steps that each save's optimizer has taken, if its files agree, by ``_identify_save``."""
    said: dict[object, set[int]] = {}
    for p, r in parts:
        if (taken := whole(r.metadata.get("optimizer_step"))) is not None:
            said.setdefault(_identify_save(p), set()).add(taken)
    return {save: min(taken) for save, taken in said.items() if len(taken) == 1}


def place_in_run(p: Part) -> int | None:
    """Return a checkpoint's step, else epoch, else generation: files of one run are all named alike."""
    return next((n for n in (p.step, p.epoch, p.generation) if n is not None), None)
