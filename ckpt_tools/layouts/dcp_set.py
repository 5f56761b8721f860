"""Saves in which each kind of state is a directory of PyTorch's Distributed Checkpoint of its own:
``global_step20/model`` and ``global_step20/optimizer``, with the files of ranks beside or below them. So do
lm-engine, prime-rl, XTuner, NeMo AutoModel, Oumi, LLaMA-Factory v1, ROLL and many loops of one's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import borrowed, named_steps
from ckpt_tools.layouts.common.layout import Counting, Layout, Tracker, resume_directory, whole
from ckpt_tools.layouts.common.lost_files import without_optimizer
from ckpt_tools.layouts.common.piece import Changes, Claim, Piece, Stage, Where, nest
from ckpt_tools.layouts.dcp import STATE_FORMATS, STATES
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

_STEP = (
    "<step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-"
    "|ckpt_step_|snapshot-step-|iter_|iteration_>{step}"
)
"""A number alone says too little: below it may lie the directories of a job's runs."""
MODELS = ("model", "weights", "model_optimizer", "trainer", "policy", "actor", "dcp")
"""Directories of which a save has one at least."""
OTHERS = ("optimizer", "optim", "critic", "value", "scheduler", "lr_scheduler", "ema")
_TRACKED = "latest_checkpointed_iteration"
UNDER_WAY = "/.incomplete"
"""What NeMo AutoModel removes when all else is written."""
_DONE = "CHECKPOINT_COMPLETE"
"""What LLaMA-Factory writes when all else is there, and asks for before it resumes from a save."""
_BEGUN = "num_training_steps"
"""What its ``metadata.json`` tells, which it writes before all else."""
_XTUNER = ("checkpoint_list", "snap_checkpoint_list")
HERE = "_here"
"""The end of the names of pieces in a directory that may be called anything."""


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    indexes = [row for row in parts if row[0].role.endswith("_index")]
    yield from named_steps(indexes, dcp.step_of, "step")
    counts = [row for row in parts if row[0].piece.startswith(("told", "single_counts"))]
    for key in ("global_step", "cur_step"):
        yield from named_steps(counts, key)
    # NeMo AutoModel names saves after it
    named = [row for row in parts if row[0].name == "step_scheduler.pt"]
    yield from named_steps(named, "step")
    yield from borrowed(parts, {p.piece: ("optimizer_step",) for p, _ in parts if p.role != "state"})
    done = {part.home for part, _ in parts if part.role == "complete"}
    for part, report in counts:
        if _BEGUN in report.metadata and part.home not in done:
            yield part.path, Flaw("missing-part", f"there is no {_DONE}, which is written last")


def _read_tracker(data: bytes) -> int | None:
    """lm-engine's."""
    import json  # not everybody who asks for a tracker has this one

    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return whole(said.get(_TRACKED)) if isinstance(said, dict) else None


def _write_tracker(said: int | str) -> bytes:
    import json

    return json.dumps({_TRACKED: said}).encode()


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Also the model, which may be in one of several directories, of which some are for the optimizer too."""
    holding = {"safetensors", "worker_index", *(f"{name}_index" for name in MODELS)}
    if holding.isdisjoint(p.role for p in c.parts):
        text = f"none of its directories holds a model ({', '.join(MODELS)})"
        yield Flaw("missing-part", text, path=c.path)
    yield from dcp.lost_beside(c, beside)
    yield from without_optimizer(c, beside, ("model_index", "weights_index", "safetensors"))


def _number_at_the_end(name: str) -> int | None:
    found = re.search(r"(?<![0-9])[0-9]{1,18}$", name)
    return int(found[0]) if found else None


def _read_latest(data: bytes, _base: str) -> int | None:
    """NeMo AutoModel's ``LATEST.txt``, which it writes where it cannot make a link: a directory's name."""
    return _number_at_the_end(data[:255].decode(errors="replace").strip())


def _read_xtuner(data: bytes, base: str) -> int | None:
    """The later one of a run's last regular save and its last snapshot."""
    import json

    run = base.rpartition("/")[0].rpartition("/")[2]
    try:
        runs = [one for one in json.loads(data)["exps"] if not base or one["exp_dir"].endswith(f"/{run}")]
        last = [path for one in runs for key in _XTUNER for path in one[key][-1:]]
        return max((n for path in last if (n := _number_at_the_end(path)) is not None), default=None)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _of_dcp(*, here: bool) -> Iterator[Piece]:
    """Where no name tells that it is a save (``here``), an optimizer is what makes it one."""
    for role in (*MODELS, *OTHERS):
        claim = Claim.COMPANION if here and not role.startswith("optim") else Claim.SURE
        yield from nest(role, dcp.of_role(role), f"_{role}", claim=claim)


def _rest(*, here: bool) -> Iterator[Piece]:
    """What lies beside the directories and below them."""
    state = partial(
        replace, Piece("", "state", "", STATE_FORMATS, required=False, claim=Claim.INSIDE, unasked=True)
    )
    other = partial(Piece, required=False, claim=Claim.INSIDE)
    yield from dcp.BESIDE
    yield from nest(f"<{'|'.join(MODELS)}>", dcp.BESIDE, "_deep")
    if not here:
        mark = Piece("incomplete", "mark", UNDER_WAY[1:], required=False, changes=Changes.MARK)
        yield replace(mark, stage=Stage.MARKS, loaded=False)
        yield state(name="plain", template=f"<{STATES}>")  # XTuner's have no ending
        yield replace(mark, name="complete", role="complete", template=_DONE)
        whole = "<optimizer|optim>/state_dict.pt"  # LLaMA-Factory's, of a model that is not cut
        yield Piece("single_optimizer", "optimizer", whole, STATE_FORMATS, required=False)
    yield state(name="single", template="<step_scheduler|progress|scheduler>.pt")
    yield other("single_counts", "state", "metadata.json", ("json_member",))
    yield state(name="orchestrator", template="orchestrator/progress.pt")
    # NeMo AutoModel's models: shards that DCP writes, or an adapter
    yield other("safetensors", "safetensors", "model/{name}.safetensors", ("safetensors",))
    exported = "model/consolidated/{name}.safetensors"
    yield other("exported", "export", exported, ("safetensors",), loaded=False)
    yield other("adapter", "config", "model/<adapter_config|automodel_peft_config>.json", ("json_member",))
    index = "model/consolidated/model.safetensors.index.json"
    yield other("index", "export", index, ("safetensors_index",), loaded=False)
    if not here:  # ROLL's: below the directory of each worker one of DCP's, and the model as it is exported
        yield from nest("{name}/dcp", dcp.of_role("worker"), "_worker")
        yield other("worker_weights", "export", "{name}/{name}.safetensors", ("safetensors",), loaded=False)
        index = "{name}/model.safetensors.index.json"
        yield other("worker_weights_index", "export", index, ("safetensors_index",), loaded=False)
        yield state(name="pipeline", template="pipeline/rng_state_pipeline.pth")
        counts = "pipeline/worker_state_pipeline.json"
        yield other("pipeline_counts", "state", counts, ("json_member",))


_HOMES = ((_STEP, ""), (dcp.EPOCH_STEP, "_epoch_step"), (dcp.EPOCH, "_epoch"))

LAYOUT = Layout(
    name="dcp-set",
    title="Directories of PyTorch Distributed Checkpoint in one save",
    pieces=(
        *(
            p
            for home, mark in _HOMES
            for part in (_of_dcp, _rest)
            for p in nest(home, part(here=False), mark)
        ),
        # a directory of any name, as of a job that writes one save over the other (Oumi)
        *(p for part in (_of_dcp, _rest) for p in nest("", part(here=True), HERE, where=Where.HERE)),
    ),
    resume=resume_directory,
    check=_check,
    lost=_lost,
    tracker=Tracker(
        file=f"{_TRACKED}.json",
        read=_read_tracker,
        write=_write_tracker,
        others=(("LATEST.txt", _read_latest), ("../../.xtuner", _read_xtuner)),
        always=False,
    ),
    counting=Counting(by_epoch=True),
    reshardable=True,
    reference=(
        "lm-engine lm_engine/checkpointing/__init__.py save_checkpoint; prime-rl prime_rl/trainer/ckpt.py; "
        "XTuner xtuner/v1/train/trainer.py _maybe_save; NeMo AutoModel "
        "nemo_automodel/components/checkpoint/checkpointing.py, recipes/base_recipe.py save_checkpoint;"
        " oumi/core/trainers/oumi_trainer.py save_state; LLaMA-Factory v1/core/utils/checkpoint.py;"
        " ROLL roll/distributed/strategy/fsdp2_strategy.py save_checkpoint, roll/utils/upload_utils.py"
    ),
    limits=(
        "a run that another of XTuner's runs goes on from is not known as such",
        (
            "in a directory whose name tells no step (model and optimizer in the run's own), the optimizer is"
            " what shows that all is one save"
        ),
        (
            "a file of a rank that is gone is missed only where another save of as many ranks has it, and"
            " what lies beside the directories only by its usual names"
        ),
    ),
)
