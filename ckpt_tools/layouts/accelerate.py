"""Accelerate's ``save_state``: ``checkpoint_N/`` where N counts saves, or the user's ``step_N``,
``checkpoint-N``, ``epoch_N`` and kohya's ``*-state``; ``random_states_R.pkl`` is written last.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from ckpt_tools.layouts import deepspeed
from ckpt_tools.layouts.common.counters import find_foreign, read_number_in_run
from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves, loss
from ckpt_tools.layouts.common.lost_files import list_lost
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part

_DIFFUSERS = ("unet", "unet_ema", "transformer", "transformer_ema", "controlnet", "prior", "prior_ema")
"""Directories into which hooks of diffusers' training scripts save one model each, and the models' roles."""
_NUMBERED = re.compile(
    r"((?:pytorch_)?model|optimizer|scheduler|sampler|dl_state_dict|custom_checkpoint)(?:_(\d+))?"
    r"\.(?:safetensors|bin|pkl)"
)
"""Names of files that are saved for each prepared model, optimizer …: the first has no number, or 0."""


def _check_saves(parts: Rows) -> Found:
    """Yield optimizer files that are missing or of another save, and lost schedules. Names are compared with
    kohya's train_state.json alone: other names count saves, and schedulers count in units of their own.
    """
    yield from deepspeed.find_lost_optimizers(parts)
    optimizers = (p for p, _ in parts if p.rank is None and p.name.startswith("optimizer"))
    keys: dict[str, tuple[str]] = {p.piece: ("optimizer_step",) for p in optimizers}
    keys |= {f"train_state_kohya_{unit}": (f"current_{unit}",) for unit in ("step", "epoch")}
    yield from find_foreign(parts, keys, read_number_in_run)
    yield from _find_lost_schedules(parts)
    scheduled = {p.home for p, _ in parts if p.role in ("scheduler", "custom")}
    for p, r in parts:
        # sd-scripts save every schedule, also one with a constant rate: without its file it counts from 0
        first, now = r.metadata.get("initial_lr"), r.metadata.get("lr")
        if "_kohya" in p.piece and p.home not in scheduled and first is not None and first == now:
            text = "a schedule has set its learning rate, and there is no scheduler.bin beside it"
            yield p.path, loss(text, sure=False)


def _find_lost_schedules(parts: Rows) -> Found:
    """Yield optimizers whose learning rate a schedule has changed (torch/optim/lr_scheduler.py keeps the
    first rate as ``initial_lr``), if their save has fewer files of schedules, and no file that may hold one.
    """
    schedules = Counter[str]()
    for p, r in parts:
        if p.role == "scheduler":
            schedules[p.home] += 1
        elif p.role == "custom" or "last_epoch" in r.metadata:
            schedules[p.home] += len(parts)  # a file of the loop's own may hold any number of schedules
    if not schedules and len({p.home for p, _ in parts}) > 1:  # the loop makes its schedule anew each time
        return
    for p, r in sorted(parts, key=lambda row: _read_number(row[0])):
        first, now = r.metadata.get("initial_lr"), r.metadata.get("lr")
        if p.role == "optimizer" and None not in (first, now) and first != now:
            schedules[p.home] -= 1  # each schedule is of one optimizer
            if schedules[p.home] < 0:
                text = f"a schedule has brought its learning rate from {first} to {now}"
                text += ", and no schedule could be read beside it: it would begin again"
                yield p.path, loss(text, sure=False)


def _read_number(p: Part) -> int:
    """Return the number of the prepared model, optimizer … that a file belongs to; 0 if its name has none."""
    found = _NUMBERED.fullmatch(p.name)
    return int(found[2] or 0) if found else 0


def _find_lost_files(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield missing files of a checkpoint with several prepared models or optimizers: numbers below the
    highest one, and names that the run's other saves have. Samplers are exempt: not every data loader has one
    to save.
    """

    def list_numbered(o: Checkpoint) -> frozenset[str]:
        """Return the names of files of prepared models, optimizers, schedulers and the like."""
        return frozenset(p.name for p in o.parts if _NUMBERED.fullmatch(p.name))

    numbers = defaultdict[str, set[int]](set)
    for found in filter(None, map(_NUMBERED.fullmatch, list_numbered(c))):
        numbers[found[1]].add(int(found[2] or 0))
    if not beside:
        highest = {kind: max(present) for kind, present in numbers.items()}
        yield from _find_lost_optimizer(c, highest.get("scheduler", -1), highest.get("optimizer", -1))
    for kind, present in sorted(numbers.items()):
        if kind != "sampler" and (gone := set(range(max(present))) - present):
            text = f"there is a {kind} file of number {max(present)}, and none of {min(gone)}"
            yield loss(text, c.path)
            return
    yield from _find_lost_configs(c)
    for name in list_lost(c, beside, list_numbered):
        match = _NUMBERED.fullmatch(name)
        if match is not None and match[1] in numbers:  # without any of a kind, the kind is missed
            yield loss(f"there is no {name}, which the run's other checkpoints have", c.path)


def _find_lost_configs(c: Checkpoint) -> Flaws:
    """Yield diffusers' model directories without config.json, by which ``from_pretrained`` builds models."""
    models = {p.path.rpartition("/")[0] for p in c.parts if p.role in _DIFFUSERS}
    described = {p.path.rpartition("/")[0] for p in c.parts if p.role.endswith("_config")}
    for home in sorted(models - described):
        text = f"there is no config.json in {home.rpartition('/')[2]}, without which the model is not loaded"
        yield loss(text, c.path)


def _find_lost_optimizer(c: Checkpoint, last_schedule: int, last_optimizer: int) -> Flaws:
    """Yield warnings: no file may hold an optimizer; or the highest number of a schedule exceeds the highest
    one of an optimizer (-1 for none). A loop may train nothing, or have two schedules for one optimizer.
    """
    has_one = any("optim" in p.role or p.role == "custom" or deepspeed.MARK in p.piece for p in c.parts)
    if not has_one and any(p.role in ("model", *_DIFFUSERS) for p in c.parts):
        text = "there is no file of an optimizer, and load_state of a job that trains fails without its own"
        yield loss(text, c.path, sure=False)
    if last_schedule > last_optimizer >= 0:
        text = f"there is a schedule of number {last_schedule}"
        yield loss(f"{text}, and no optimizer beyond number {last_optimizer}", c.path, sure=False)


ACCELERATE = declare(__name__, "accelerate", check=_check_saves, lost=_find_lost_files)
