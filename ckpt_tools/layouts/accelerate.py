"""Accelerate's ``save_state``: ``checkpoint_N/`` where N counts saves, or the user's ``step_N``,
``checkpoint-N``, ``epoch_N`` and kohya's ``*-state``; ``random_states_R.pkl`` is written last.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ckpt_tools.layouts import deepspeed
from ckpt_tools.layouts.common.counters import borrowed, place_in_run
from ckpt_tools.layouts.common.layout import Compared, Complete, Layout, Metadata, Purpose, Steps, whole
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.layouts.common.piece import TELLS_STEP, Claim, Piece, Readers, nest
from ckpt_tools.layouts.hf_trainer import ST, TORCH, fsdp_pieces
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

DIFFUSERS = ("unet", "unet_ema", "transformer", "transformer_ema", "controlnet", "prior", "prior_ema")
"""Directories into which hooks of diffusers' training scripts save the model, each with a role of its own."""
_KOHYA = "_kohya"
_HOMES = (
    ("checkpoint_{generation}", ""),
    ("<checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}", "_step"),
    ("<epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}", "_epoch"),
    ("{prefix}-step{step:08d}-state", f"{_KOHYA}_step"),
    ("{prefix}-{epoch:06d}-state", f"{_KOHYA}_epoch"),
    ("{prefix}-state", _KOHYA),
)
"""What the directory is called, and ends of the names of pieces."""
_NUMBERED = re.compile(
    r"((?:pytorch_)?model|optimizer|scheduler|sampler|dl_state_dict|custom_checkpoint)(?:_(\d+))?"
    r"\.(?:safetensors|bin|pkl)"
)
"""What is saved of each model, optimizer … that was prepared: the first has no number, or 0."""


def _steps(part: Part, metadata: Metadata) -> Steps:
    """By the name, or kohya's train_state.json: N counts saves, and the schedulers count in units of their
    own.
    """
    step = part.step if part.step is not None else whole(metadata.get("current_step"))
    return step, part.epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    counted = {f"optimizer{mark}": ("optimizer_step",) for _, mark in _HOMES}
    steps, epochs = (f"train_state_kohya{mark}" for mark in ("_step", "_epoch"))
    yield from borrowed(
        parts, {**counted, steps: ("current_step",), epochs: ("current_epoch",)}, place_in_run
    )
    yield from _without_schedule(parts)
    yield from _without_kohyas(parts)


def _without_schedule(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Optimizers whose learning rate a schedule has moved on (torch/optim/lr_scheduler.py notes the first one
    beside it), where fewer of their files are schedules, and none may hold one.
    """
    held = _schedules(parts)
    if not held and len({p.home for p, _ in parts}) > 1:  # a loop that makes its schedule anew each time
        return
    for p, r in sorted(parts, key=lambda row: _number(row[0])):
        if p.role == "optimizer" and (moved := _moved(r)):
            held[p.home] -= 1  # each is of one optimizer
            if held[p.home] < 0:
                text = f"{moved}, and no schedule could be read beside it: it would begin again"
                yield p.path, Flaw("missing-part", text, severity=Severity.WARNING)


def _schedules(parts: Sequence[tuple[Part, Report]]) -> Counter[str]:
    """How many schedules there are, by directory; a file of the loop's own may hold any number of them."""
    held = Counter[str]()
    for p, r in parts:
        if p.role == "scheduler":
            held[p.home] += 1
        elif p.role == "custom" or "last_epoch" in r.metadata:
            held[p.home] += len(parts)
    return held


def _moved(optimizer: Report) -> str:
    """What a schedule has done to its learning rate; "" where it is the first one."""
    first, now = optimizer.metadata.get("initial_lr"), optimizer.metadata.get("lr")
    if None in (first, now) or first == now:
        return ""
    return f"a schedule has brought its learning rate from {first} to {now}"


def _without_kohyas(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """The same of sd-scripts, which save each schedule, also one that leaves the rate as it is: without it
    the steps begin again. One that has moved it is told above.
    """
    having = {p.home for p, _ in parts if p.role in ("scheduler", "custom")}
    for p, r in parts:
        first = r.metadata.get("initial_lr")
        if _KOHYA in p.piece and p.home not in having and first is not None and first == r.metadata.get("lr"):
            text = (
                "a schedule has noted its learning rate, and there is no schedule beside it (scheduler.bin)"
            )
            yield p.path, Flaw("missing-part", text, severity=Severity.WARNING)


def _numbered(c: Checkpoint) -> frozenset[str]:
    return frozenset(p.name for p in c.parts if _NUMBERED.fullmatch(p.name))


def _number(p: Part) -> int:
    """Of which model, optimizer … that was prepared it is."""
    found = _NUMBERED.fullmatch(p.name)
    return int(found[2] or 0) if found else 0


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Files of one model or optimizer of several: those below a higher number, and those that the saves
    beside it have. Not each loader of data has a sampler of its own to save.
    """
    numbers, mine = defaultdict[str, set[int]](set), _numbered(c)
    for found in filter(None, map(_NUMBERED.fullmatch, mine)):
        numbers[found[1]].add(int(found[2] or 0))
    if not beside:
        yield from _without_optimizer(c, numbers)
    for kind, held in numbers.items():
        if kind == "sampler":
            continue
        if gone := set(range(max(held))) - held:
            text = f"there is a {kind} file of number {max(held)}, and none of {min(gone)}"
            yield Flaw("missing-part", text, path=c.path)
            return
    yield from _without_configuration(c)
    for name in lost(c, beside, _numbered):
        named = _NUMBERED.fullmatch(name)
        if named is not None and named[1] in numbers:  # without any of a kind, the kind is missed
            text = f"there is no {name}, which the run's other checkpoints have"
            yield Flaw("missing-part", text, path=c.path)


def _without_configuration(c: Checkpoint) -> Iterator[Flaw]:
    """Models below it of which ``from_pretrained`` cannot say what they are."""
    models = {p.path.rpartition("/")[0] for p in c.parts if p.role in DIFFUSERS}
    described = {p.path.rpartition("/")[0] for p in c.parts if p.role.endswith("_config")}
    for home in sorted(models - described):
        text = f"there is no config.json in {home.rpartition('/')[2]}, without which the model is not loaded"
        yield Flaw("missing-part", text, path=c.path)


def _without_optimizer(c: Checkpoint, numbers: Mapping[str, set[int]]) -> Iterator[Flaw]:
    """None at all, but where an engine or an object of the loop's own may hold one, and more schedules than
    optimizers: a loop may train none, and have two schedules for one, so these are warnings.
    """
    held = any("optim" in p.role or p.role == "custom" or deepspeed.MARK in p.piece for p in c.parts)
    if not held and any(p.role in ("model", *DIFFUSERS) for p in c.parts):
        text = "there is no file of an optimizer, and load_state of a job that trains fails without its own"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)
    schedules, optimizers = (max(numbers.get(kind, ()), default=-1) for kind in ("scheduler", "optimizer"))
    if schedules > optimizers >= 0:
        text = f"there is a schedule of number {schedules}, and no optimizer beyond number {optimizers}"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(
        checkpoint.path, ("--resume_from_checkpoint", checkpoint.path)
    )  # accelerator.load_state(path)


def _pieces() -> Iterator[Piece]:
    beside = partial(Piece, claim=Claim.COMPANION)
    of_ranks = Readers(shared=True, sharded=True, survivable=True)
    yield Piece("rng", "rng", "random_states_{rank}.pkl", TORCH, readers=of_ranks)
    yield beside("model", "model", "model[_{shard}].safetensors", ST)
    yield beside("model_shard", "model", "model-{shard:05d}-of-{of:05d}.safetensors", ST)
    yield beside("bin", "model", "pytorch_model[_{shard}].bin", TORCH)
    yield beside("bin_shard", "model", "pytorch_model-{shard:05d}-of-{of:05d}.bin", TORCH)
    index = "<model.safetensors|pytorch_model.bin>.index.json"
    yield beside("index", "model_index", index, ("safetensors_index",))
    yield Piece("optimizer", "optimizer", "optimizer[_{shard}].bin", TORCH)
    yield beside("scheduler", "scheduler", "scheduler[_{shard}].bin", TORCH)
    yield beside("sampler", "sampler", "sampler[_{shard}].bin", TORCH)
    yield beside("dataloader", "dataloader", "dl_state_dict[_{shard}].bin", TORCH)
    yield beside("scaler", "scaler", "scaler.pt", TORCH)
    yield beside("custom", "custom", "custom_checkpoint_{shard}.pkl", TORCH)
    for name in DIFFUSERS:
        yield from nest(name, _diffusers(name))
    yield beside("lora", "model", "pytorch_lora_weights.safetensors", ST)
    yield from fsdp_pieces()
    engine = "pytorch_model[_{node}]"
    yield from nest(engine, deepspeed.PIECES, deepspeed.MARK, claim=Claim.COMPANION)


def _diffusers(name: str) -> Iterator[Piece]:
    """A model that a hook saves with ``save_pretrained``."""
    weights, at = partial(Piece, claim=Claim.COMPANION), "diffusion_pytorch_model"
    yield weights(name, name, f"{at}.safetensors", ST)
    yield weights(f"{name}_bin", name, f"{at}.bin", TORCH)
    yield weights(f"{name}_shard", name, f"{at}-{{shard:05d}}-of-{{of:05d}}.safetensors", ST)
    yield weights(f"{name}_index", name, f"{at}.<safetensors|bin>.index.json", ("safetensors_index",))
    yield weights(f"{name}_config", f"{name}_config", "config.json", ("json_member",), required=False)


_SAVED = tuple(_pieces())
_COUNTED = Piece("train_state", "state", "train_state.json", ("json_member",), content=TELLS_STEP)
"""How far training was, as sd-scripts say it in each directory."""
LAYOUT = Layout(
    name="accelerate",
    title="Accelerate save_state",
    pieces=tuple(
        piece
        for home, mark in _HOMES
        for piece in nest(home, (*_SAVED, _COUNTED) if _KOHYA in mark else _SAVED, mark)
    ),
    resume=_resume,
    steps=_steps,
    check=_check,
    lost=_lost,
    complete=Complete(
        commit="rng",
        needs_any=("model", *DIFFUSERS),
        # which it was prepared with
        saved_with=tuple((f"scheduler{mark}", "optimizer") for _, mark in _HOMES),
    ),
    purpose=Purpose.EXPORTS,
    compared=Compared.BY_PIECE,
    reshardable=True,
    reference=(
        "accelerate/checkpointing.py save_accelerator_state; "
        "ProjectConfiguration(automatic_checkpoint_naming) counts saves; diffusers examples/*/train_*.py;"
        " sd-scripts library/train_util.py (…_STATE_NAME, save_state_…)"
    ),
    limits=(
        "the number in checkpoint_N counts saves: no step is told",
        (
            "a model or RNG file of another save with the same shapes is seen only while that save is there, "
            "random numbers of this rank not before a third one"
        ),
    ),
)
