"""torchtune: ``epoch_N/`` holds the model after an epoch, ``recipe_state/recipe_state.pt`` the optimizer and
the counters of the last one alone, written over at the end of every save.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import Counting, Layout, Metadata, Steps, whole
from ckpt_tools.layouts.common.piece import TELLS_STEP, Claim, Piece, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume

TORCH = ("torch_zip", "torch_legacy")
_RECIPE = "recipe"
_ADAPTER = "adapter_model.pt"
"""What training goes on from, beside the same adapter for other programs and the model with it merged in."""


def _steps(part: Part, metadata: Metadata) -> Steps:
    """The recipe counts the epochs that have run, directories from 0."""
    run = whole(metadata.get("epochs_run"))
    return None, run - 1 if part.piece == _RECIPE and run else part.epoch, None


def _lacks(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """The optimizer's state: that of another epoch would be loaded with this model, without a word."""
    if _is_recipe(c):
        yield Flaw("missing-part", "recipe_state.pt holds no model", path=c.path)
    for o in others:
        if o.run == c.run and _is_recipe(o) and not _is_recipe(c) and o.epoch != c.epoch:
            of = "an epoch that it does not tell" if o.epoch is None else f"epoch {o.epoch}"
            text = f"recipe_state.pt is of {of}: nothing holds the optimizer's state of epoch {c.epoch}"
            hint = "to start from this model with a new optimizer, move recipe_state/ away"
            yield Flaw("missing-part", text, path=c.path, hint=hint)


def _is_recipe(c: Checkpoint) -> bool:
    return all(p.piece == _RECIPE for p in c.parts)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """The files by their names below ``output_dir``: otherwise the adapter of the highest epoch is loaded,
    and of a whole model what the configuration names.
    """
    home, _, epoch = checkpoint.path.rpartition("/")
    names = {p.name for p in checkpoint.parts}
    if _ADAPTER in names:
        files = f"checkpointer.adapter_checkpoint={epoch}/{_ADAPTER}"
    else:
        models = sorted(f"{epoch}/{name}" for name in names if _is_model(name))
        files = f"checkpointer.checkpoint_files=[{','.join(models)}]"
    return Resume(checkpoint.path, ("resume_from_checkpoint=True", f"output_dir={home}", files))


def _is_model(name: str) -> bool:
    """By its name alone, which is all that a decision keeps of a file."""
    return name.endswith((".safetensors", ".bin", ".pt")) and not name.startswith(("adapter_", "recipe_"))


_STATE = Piece(_RECIPE, "recipe", "<recipe_state>/recipe_state.pt", TORCH, Kind.RELEASE, required=False)
_SHARD, _ST = "model-{shard:05d}-of-{of:05d}", ("safetensors",)
_TEXTS = "<config|generation_config|adapter_config|tokenizer|tokenizer_config>.json"
_INDEX = "<model.safetensors|pytorch_model.bin>.index.json"
_PIECES = (
    Piece("shard", "model", f"{_SHARD}.safetensors", _ST),
    Piece("bin", "model", f"{_SHARD}.bin", TORCH),
    Piece("old", "model", "<hf|tune>_model_{shard:04d}_{name}.pt", TORCH),
    Piece("index", "index", _INDEX, ("safetensors_index",)),
    Piece("adapter", "adapter", "adapter_model.safetensors", _ST, required=False),
    Piece("adapter_pt", "adapter", "adapter_model.<pt|bin>", TORCH, required=False),
    Piece("config", "config", _TEXTS, ("json_member",), required=False, loaded=False),
)
"""Models are torchtune's where a recipe's state lies beside them; others are sharded safetensors."""
LAYOUT = Layout(
    name="torchtune",
    title="torchtune",
    pieces=(
        replace(_STATE, content=TELLS_STEP),  # no checkpoint by itself
        *nest("epoch_{epoch}", _PIECES, claim=Claim.COMPANION),
    ),
    resume=_resume,
    steps=_steps,
    lacks=_lacks,
    counting=Counting(first_epoch=0),
    reshardable=True,
    reference=(
        "torchtune 0.6.1: training/checkpointing/_checkpointer.py save_checkpoint() (model, adapter, then "
        "recipe_state/, but not after the last epoch), _utils.py get_model_checkpoint_path(), "
        "get_adapter_checkpoint_path(); recipes/full_finetune_single_device.py (epochs_run)"
    ),
    limits=(
        "nothing in a model tells its epoch: only its directory's name does",
        "torchtune itself loads the adapter of the epoch_N of the highest N, unless it is given another",
    ),
)
