"""What training loops call the steps and epochs that they count in their files, and files that tell others
than their names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from ckpt_tools.layouts.common.layout import Metadata, Steps, whole
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

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
    """All numbers of steps, however deep in a file they are; safetensors keeps objects as JSON."""
    found = {**metadata, **dict(_inner(metadata))}
    return numbers(found, [key for key in found if key.rpartition(".")[2] in STEPS])


def _inner(metadata: Metadata) -> Iterator[tuple[str, int]]:
    """The whole numbers of objects that are kept as text, such as ai-toolkit's ``training_info``."""
    for key, text in metadata.items():
        if isinstance(text, str) and text.startswith("{") and len(text) <= _LONGEST_OBJECT:
            try:
                held = json.loads(text)
            except (ValueError, RecursionError):
                continue
            yield from ((f"{key}.{name}", n) for name, n in held.items() if type(n) is int)


def told_otherwise(
    parts: Sequence[tuple[Part, Report]], named_by: Callable[[Part], Steps]
) -> Iterator[tuple[str, Flaw]]:
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
    counted = [by_name[named] for named in sorted(by_name)]
    if len(counted) < 2 or any(len(told) > 1 for told in counted):
        return False
    numbers_ = [min(told) for told in counted]
    grows = all(a < b for a, b in pairwise(numbers_))
    both = zip(numbers_, sorted(by_name), strict=True)
    return grows and all(2 * told < named or told == named == 0 for told, named in both)
