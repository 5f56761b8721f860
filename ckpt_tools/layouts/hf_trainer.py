"""Hugging Face Trainer: ``checkpoint-N/`` with the model, ``optimizer.pt``, ``scheduler.pt``,
RNG states and, written last, ``trainer_state.json``.
"""

from __future__ import annotations

from ckpt_tools.layouts import deepspeed
from ckpt_tools.layouts.common.counters import check_steps, find_foreign
from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves, as_int, loss
from ckpt_tools.layouts.common.lost_files import check_index, compare_names, warn_of_stale_index
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part


def _check_counters(parts: Rows) -> Found:
    """Yield files of another save than their directory's name, and missing files of a DeepSpeed engine."""
    yield from check_steps([row for row in parts if row[0].piece == "state"], "global_step")
    yield from find_foreign(parts, {"optimizer": ("optimizer_step",)})
    yield from _find_older_files(parts)
    yield from deepspeed.find_lost_optimizers(parts)


def _find_older_files(parts: Rows) -> Found:
    """Yield an optimizer or schedule that took as many steps as an earlier checkpoint, if the run has no
    other one to compare with. Steps that a gradient scaler skips are few.
    """
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


def _find_losses(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield lost model states of an engine, indexes of shards, and adapters that their configuration or the
    saves ``beside`` it show: the trainer loads those with weights, and says nothing of others.
    """
    yield from deepspeed.check_model(c)
    yield from check_index(c, beside)
    for index in sorted(_find_unread(c)):
        yield warn_of_stale_index(index, next(p.name for p in c.parts if p.piece in ("model", "bin")))
    models = {p.folder.directory for p in c.parts if p.role == "model"}
    for p in sorted(c.parts, key=lambda p: p.path):
        if p.name == "adapter_config.json" and p.folder.directory not in models:
            yield loss(f"there is no adapter_model file beside {p.path.removeprefix(f'{c.path}/')}", c.path)

    def list_needed(o: Checkpoint) -> frozenset[str]:
        """Return files of adapters, without which peft loads none; of modules, of which sentence-transformers
        builds a model; and of the model as FSDP loads it, exported beside them.
        """
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
    """Return the paths of indexes without shards beside a model in one file, for which the trainer looks
    first (transformers/trainer.py, _load_from_checkpoint).
    """
    model = {p.piece for p in c.parts if p.role == "model"}
    if model.isdisjoint(("model", "bin")) or not model.isdisjoint(("model_shard", "bin_shard")):
        return frozenset()
    return frozenset(p.path for p in c.parts if p.piece in ("model_index", "bin_index"))


HF_TRAINER = declare(__name__, "hf-trainer", check=_check_counters, lost=_find_losses, unread=_find_unread)
