"""Accelerate's ``save_state``: ``checkpoint_N/`` where N counts saves, or the user's ``step_N``,
``checkpoint-N``, ``epoch_N`` and kohya's ``*-state``; ``random_states_R.pkl`` is written last.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts import deepspeed
from ckpt_tools.layouts.common.counters import borrowed, place_in_run
from ckpt_tools.layouts.common.layout import Compared, Complete, Layout, Metadata, Purpose, Steps, whole
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.layouts.common.piece import TELLS_STEP, Claim, Piece, Readers
from ckpt_tools.layouts.hf_trainer import ST, TORCH, fsdp_pieces
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.flaw import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

DIFFUSERS = ("unet", "unet_ema", "transformer", "transformer_ema", "controlnet", "prior", "prior_ema")
"""Directories into which hooks of diffusers' training scripts save the model, each with a role of its own."""
MARKS = ("", "_step", "_epoch", "_kohya_step", "_kohya_epoch", "_kohya")
"""Ends of the names of pieces, by what the directory is called."""
_KOHYA = "_kohya"
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
    counted = {f"optimizer{mark}": ("optimizer_step",) for mark in MARKS}
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


def _pieces(home: str, mark: str) -> Iterator[Piece]:
    yield Piece(
        f"rng{mark}",
        "rng",
        f"{home}/random_states_{{rank}}.pkl",
        TORCH,
        readers=Readers(shared=True, sharded=True, survivable=True),
    )
    for name, template, formats in (
        ("model", "model[_{shard}].safetensors", ST),
        ("model_shard", "model-{shard:05d}-of-{of:05d}.safetensors", ST),
        ("bin", "pytorch_model[_{shard}].bin", TORCH),
        ("bin_shard", "pytorch_model-{shard:05d}-of-{of:05d}.bin", TORCH),
    ):
        yield Piece(f"{name}{mark}", "model", f"{home}/{template}", formats, claim=Claim.COMPANION)
    yield Piece(
        f"index{mark}",
        "model_index",
        f"{home}/<model.safetensors|pytorch_model.bin>.index.json",
        ("safetensors_index",),
        claim=Claim.COMPANION,
    )
    for name, template in (
        ("optimizer", "optimizer[_{shard}].bin"),
        ("scheduler", "scheduler[_{shard}].bin"),
        ("sampler", "sampler[_{shard}].bin"),
        ("dataloader", "dl_state_dict[_{shard}].bin"),
        ("scaler", "scaler.pt"),
        ("custom", "custom_checkpoint_{shard}.pkl"),
    ):
        claim = Claim.SURE if name == "optimizer" else Claim.COMPANION
        yield Piece(f"{name}{mark}", name, f"{home}/{template}", TORCH, claim=claim)
    yield from _diffusers(home, mark)
    yield from fsdp_pieces(home, mark)
    for piece in deepspeed.pieces(f"{home}/pytorch_model[_{{node}}]", f"{deepspeed.MARK}{mark}"):
        yield replace(piece, claim=Claim.COMPANION)


def _kohya() -> Iterator[Piece]:
    """The directories of sd-scripts, each with a file that says how far training was."""
    for home, mark in (
        ("{prefix}-step{step:08d}-state", "_kohya_step"),
        ("{prefix}-{epoch:06d}-state", "_kohya_epoch"),
        ("{prefix}-state", "_kohya"),
    ):
        yield from _pieces(home, mark)
        yield Piece(
            f"train_state{mark}", "state", f"{home}/train_state.json", ("json_member",), content=TELLS_STEP
        )


def _diffusers(home: str, mark: str) -> Iterator[Piece]:
    """Models that a hook saves with ``save_pretrained``, in directories of their own."""
    for name in DIFFUSERS:
        weights = Piece(f"{name}{mark}", name, "", ST, claim=Claim.COMPANION)
        at = f"{home}/{name}/diffusion_pytorch_model"
        index = f"{at}.<safetensors|bin>.index.json"
        shard = f"{at}-{{shard:05d}}-of-{{of:05d}}"
        yield replace(weights, template=f"{at}.safetensors")
        yield replace(weights, template=f"{at}.bin", name=f"{name}_bin{mark}", formats=TORCH)
        yield replace(weights, template=f"{shard}.safetensors", name=f"{name}_shard{mark}")
        yield replace(weights, template=index, name=f"{name}_index{mark}", formats=("safetensors_index",))
        config = replace(weights, template=f"{home}/{name}/config.json", formats=("json_member",))
        yield replace(config, name=f"{name}_config{mark}", role=f"{name}_config", required=False)
    lora = f"{home}/pytorch_lora_weights.safetensors"
    yield Piece(f"lora{mark}", "model", lora, ST, claim=Claim.COMPANION)


LAYOUT = Layout(
    name="accelerate",
    title="Accelerate save_state",
    pieces=(
        *_pieces("checkpoint_{generation}", ""),
        *_pieces("<checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}", "_step"),
        *_pieces("<epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}", "_epoch"),
        *_kohya(),
    ),
    resume=_resume,
    steps=_steps,
    check=_check,
    lost=_lost,
    complete=Complete(
        commit="rng",
        needs_any=("model", *DIFFUSERS),
        # which it was prepared with
        saved_with=tuple((f"scheduler{mark}", "optimizer") for mark in MARKS),
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
