"""Hugging Face Trainer: ``checkpoint-N/`` with the model, ``optimizer.pt``, ``scheduler.pt``,
RNG states and, written last, ``trainer_state.json``.
"""

from __future__ import annotations

from ckpt_tools.layouts import deepspeed
from ckpt_tools.layouts.common.layout import Flaws, Saves, loss
from ckpt_tools.layouts.common.lost_files import stale_index, without_index, without_names
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint


def _find_lost(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield lost model states of an engine, indexes of shards, and adapters that their configuration or the
    saves ``beside`` it show: the trainer loads those with weights, and says nothing of others.
    """
    yield from deepspeed.without_model(c)
    yield from without_index(c, beside)
    for index in sorted(_find_unread(c)):
        yield stale_index(index, next(p.name for p in c.parts if p.piece in ("model", "bin")))
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

    yield from without_names(c, beside, list_needed)
    text = "there is no {}, which the run's other checkpoints have: a copy of it may have stopped early"
    yield from without_names(c, beside, list_dispensable, text, sure=False)


def _find_unread(c: Checkpoint) -> frozenset[str]:
    """Return the paths of indexes without shards beside a model in one file, for which the trainer looks
    first (transformers/trainer.py, _load_from_checkpoint).
    """
    model = {p.piece for p in c.parts if p.role == "model"}
    if model.isdisjoint(("model", "bin")) or not model.isdisjoint(("model_shard", "bin_shard")):
        return frozenset()
    return frozenset(p.path for p in c.parts if p.piece in ("model_index", "bin_index"))


HF_TRAINER = declare(
    __name__, "hf-trainer", check=deepspeed.find_lost_optimizers, lost=_find_lost, unread=_find_unread
)
