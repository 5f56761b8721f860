"""Hugging Face's Trainer, Accelerate's ``save_state``, and Lightning."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from ckpt_tools.layouts import deepspeed
from ckpt_tools.layouts.common.counters import as_int, find_foreign, read_number_in_run
from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves
from ckpt_tools.layouts.common.lost_files import (
    check_index,
    compare_names,
    list_lost,
    loss,
    warn_of_stale_index,
)
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part


def _check_trainer(parts: Rows) -> Found:
    """Yield files of another save than their directory's name, and missing files of a DeepSpeed engine."""
    yield from _find_older_files(parts)
    yield from deepspeed.find_lost_optimizers(parts)


def _find_older_files(parts: Rows) -> Found:
    """Yield an optimizer or schedule of a lone checkpoint that took as many steps as an earlier one."""
    by_role = {p.role: (p, r.metadata) for p, r in parts}
    if len({p.home for p, _ in parts}) != 1 or not by_role.keys() >= {"optimizer", "scheduler", "state"}:
        return
    optimizer, schedule = by_role["optimizer"], by_role["scheduler"]
    step, interval = (as_int(by_role["state"][1].get(key)) for key in ("global_step", "save_steps"))
    taken, scheduled = as_int(optimizer[1].get("optimizer_step")), as_int(schedule[1].get("last_epoch"))
    # with num_bad_epochs a schedule counts evaluations, not steps (ReduceLROnPlateau)
    if step and interval and taken and scheduled and not (step % interval or "num_bad_epochs" in schedule[1]):
        yield from _compare_steps((optimizer[0], taken), (schedule[0], scheduled), step, interval)


def _compare_steps(optimizer: tuple[Part, int], schedule: tuple[Part, int], at: int, interval: int) -> Found:
    """Yield the file, given with its steps, that has those of a checkpoint earlier than the step ``at``."""
    (part, taken), (other, scheduled) = optimizer, schedule
    older = {n for n in (taken, scheduled) if n < at and n % interval == 0}
    if older == {taken, scheduled}:
        text = f"it and its schedule have taken {taken} steps, like checkpoint-{taken}, and the Trainer {at}"
        yield part.path, Flaw("step-mismatch", text, severity=Severity.WARNING)
    elif older and at in (taken, scheduled):
        text = f"it has taken {min(older)} steps, like checkpoint-{min(older)}, and all else here {at}"
        path = part.path if scheduled == at else other.path
        yield path, Flaw("step-mismatch", text, severity=Severity.WARNING)


def _find_lost_of_trainer(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield lost model states of an engine, indexes of shards, adapters, and files that other saves have."""
    yield from deepspeed.check_model(c)
    yield from check_index(c, beside)
    for index in sorted(_find_unread(c)):
        yield warn_of_stale_index(index, next(p.name for p in c.parts if p.piece in ("model", "bin")))
    models = {p.folder.directory for p in c.parts if p.role == "model"}
    for p in sorted(c.parts, key=lambda p: p.path):
        if p.name == "adapter_config.json" and p.folder.directory not in models:
            yield loss(f"there is no adapter_model file beside {p.path.removeprefix(f'{c.path}/')}", c.path)

    def list_needed(o: Checkpoint) -> frozenset[str]:
        """Return files of adapters (peft), of modules (sentence-transformers), and of a model for FSDP."""
        begins = ("adapter_model.", "adapter_config.", "pytorch_model_fsdp")
        files = [p.path for p in o.parts if p.name.startswith(begins) or p.role == "module_config"]
        return frozenset(path.removeprefix(f"{o.path}/") for path in files)

    def list_dispensable(o: Checkpoint) -> frozenset[str]:
        """Return files that the trainer resumes without: an evaluation reads tokenizers, people arguments."""
        return frozenset(p.name for p in o.parts if p.role in ("tokenizer", "args"))

    yield from compare_names(c, beside, list_needed)
    text = "there is no {}, which the run's other checkpoints have: a copy of it may have stopped early"
    yield from compare_names(c, beside, list_dispensable, text, sure=False)


def _find_unread(c: Checkpoint) -> frozenset[str]:
    """Return indexes without shards beside a whole model, which transformers/trainer.py looks for first."""
    model = {p.piece for p in c.parts if p.role == "model"}
    if model.isdisjoint(("model", "bin")) or not model.isdisjoint(("model_shard", "bin_shard")):
        return frozenset()
    return frozenset(p.path for p in c.parts if p.piece in ("model_index", "bin_index"))


HF_TRAINER = declare(
    "hf_trainer", "hf-trainer", check=_check_trainer, lost=_find_lost_of_trainer, unread=_find_unread
)


_DIFFUSERS = ("unet", "unet_ema", "transformer", "transformer_ema", "controlnet", "prior", "prior_ema")
"""Directories into which hooks of diffusers' training scripts save one model each, and the models' roles."""
_NUMBERED = re.compile(
    r"((?:pytorch_)?model|optimizer|scheduler|sampler|dl_state_dict|custom_checkpoint)(?:_(\d+))?"
    r"\.(?:safetensors|bin|pkl)"
)
"""Names of files that are saved for each prepared model, optimizer …: the first has no number, or 0."""


def _check_accelerate(parts: Rows) -> Found:
    """Yield optimizer files that are missing or of another save, and lost schedules."""
    yield from deepspeed.find_lost_optimizers(parts)
    # names other than kohya's count saves, and schedulers count in units of their own
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
    """Yield optimizers whose learning rate a schedule has changed, if their save lacks files of schedules."""
    schedules = Counter[str]()
    for p, r in parts:
        if p.role == "scheduler":
            schedules[p.home] += 1
        elif p.role == "custom" or "last_epoch" in r.metadata:
            schedules[p.home] += len(parts)  # a file of the loop's own may hold any number of schedules
    if not schedules and len({p.home for p, _ in parts}) > 1:  # the loop makes its schedule anew each time
        return
    for p, r in sorted(parts, key=lambda row: _read_number(row[0])):
        # torch/optim/lr_scheduler.py keeps the first rate
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


def _find_lost_of_accelerate(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield missing numbers of prepared models, optimizers …, and files that the run's other saves have."""

    def list_numbered(o: Checkpoint) -> frozenset[str]:
        return frozenset(p.name for p in o.parts if _NUMBERED.fullmatch(p.name))

    numbers = defaultdict[str, set[int]](set)
    for found in filter(None, map(_NUMBERED.fullmatch, list_numbered(c))):
        numbers[found[1]].add(int(found[2] or 0))
    if not beside:
        highest = {kind: max(present) for kind, present in numbers.items()}
        yield from _find_lost_optimizer(c, highest.get("scheduler", -1), highest.get("optimizer", -1))
    for kind, present in sorted(numbers.items()):
        # not every data loader has a sampler to save
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
    """Yield warnings about an optimizer that no file may hold, or that a schedule's number tells of."""
    has_one = any("optim" in p.role or p.role == "custom" or deepspeed.MARK in p.piece for p in c.parts)
    if not has_one and any(p.role in ("model", *_DIFFUSERS) for p in c.parts):
        text = "there is no file of an optimizer, and load_state of a job that trains fails without its own"
        yield loss(text, c.path, sure=False)
    if last_schedule > last_optimizer >= 0:  # or the loop has two schedules for one optimizer
        text = f"there is a schedule of number {last_schedule}"
        yield loss(f"{text}, and no optimizer beyond number {last_optimizer}", c.path, sure=False)


ACCELERATE = declare("accelerate", "accelerate", check=_check_accelerate, lost=_find_lost_of_accelerate)


def _check_lightning(parts: Rows) -> Found:
    """Yield lost files of a DeepSpeed engine, and a ``last.ckpt`` of an older step than other files."""
    yield from deepspeed.find_lost_optimizers(parts)
    named = [p for p, _ in parts if p.piece in ("checkpoint", "called")]
    newest, newest_ns = max(((p.step, p.mtime_ns) for p in named if p.step is not None), default=(0, 0))
    rows = [(as_int(r.metadata.get("global_step")), p) for p, r in parts if p.piece == "last"]
    last_files = [(step, p) for step, p in rows if step is not None]
    # a run that began anew renews last-v1.ckpt instead
    step, last = max(last_files, key=lambda row: row[0], default=(newest, None))
    if last is not None and step < newest:
        # of another callback then, or the job died between the two
        is_early = last.mtime_ns < newest_ns
        text = f"it is of step {step}, and a checkpoint of step {newest} beside it"
        text += "" if is_early else f": every save renews {last.name}"
        severity = Severity.NOTE if is_early else Severity.WARNING
        yield last.path, Flaw("step-mismatch", text, severity=severity)


def _find_lost_of_lightning(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield lost model states of an engine, and directories without a file that Lightning needs to load."""
    yield from deepspeed.check_model(c, beside)
    # WandbLogger logs a directory for each version of a save, with the file in it
    exempt = ("tag", "model") if any(p.piece == "artifact" for p in c.parts) else ("tag",)
    files = [p for p in c.parts if p.home and p.role not in exempt and deepspeed.MARK not in p.piece]
    for role, name in (("metadata", ".metadata"), ("state", "meta.pt")) if files else ():
        if all(part.role != role for part in files):
            text = f"{files[0].home.rpartition('/')[2]} has no {name}: Lightning does not load it"
            yield loss(text, files[0].path)


LIGHTNING = declare(
    "lightning",
    "lightning",
    steps=lambda _part, metadata: (as_int(metadata.get("global_step")), as_int(metadata.get("epoch")), None),
    check=_check_lightning,
    lost=_find_lost_of_lightning,
)
