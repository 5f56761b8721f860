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
from ckpt_tools.layouts.common.layout import Counting, Layout, Metadata, Tracker, resume_directory, whole
from ckpt_tools.layouts.common.lost_files import without_optimizer
from ckpt_tools.layouts.common.piece import Changes, Claim, Piece, Stage, Where
from ckpt_tools.layouts.dcp import STATE_FORMATS, STATES
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.flaw import Flaw
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
        yield from named_steps(counts, partial(_told, key), key)
    # NeMo AutoModel names saves after it
    named = [row for row in parts if row[0].name == "step_scheduler.pt"]
    yield from named_steps(named, partial(_told, "step"), "step")
    yield from borrowed(parts, {p.piece: ("optimizer_step",) for p, _ in parts if p.role != "state"})
    done = {part.home for part, _ in parts if part.role == "complete"}
    for part, report in counts:
        if _BEGUN in report.metadata and part.home not in done:
            yield part.path, Flaw("missing-part", f"there is no {_DONE}, which is written last")


def _told(key: str, metadata: Metadata) -> int | None:
    return whole(metadata.get(key))


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


def _of_dcp(home: str, mark: str) -> Iterator[Piece]:
    """Where no name tells that it is a save (``mark`` is ``_here``), an optimizer is what makes it one."""
    for role in (*MODELS, *OTHERS):
        below = mark == HERE and not role.startswith("optim")
        for piece in dcp.pieces(f"{home}/{role}", f"_{role}{mark}"):
            index = piece.role == "metadata"
            named = replace(piece, role=f"{role}_index" if index else role, required=index)
            yield replace(named, claim=Claim.COMPANION) if below else named


def _rest(home: str, mark: str) -> Iterator[Piece]:
    """What lies beside the directories and below them."""
    beside = partial(Piece, claim=Claim.INSIDE, required=False)
    for below, deep in ((home, ""), (f"{home}/<{'|'.join(MODELS)}>", "_deep")):
        yield from dcp.beside(below, f"{deep}{mark}")
    if mark != HERE:
        yield Piece(
            f"incomplete{mark}",
            "mark",
            f"{home}{UNDER_WAY}",
            required=False,
            stage=Stage.MARKS,
            changes=Changes.MARK,
            loaded=False,
        )
        plain = f"{home}/<{STATES}>"  # XTuner's have no ending
        yield beside(f"plain{mark}", "state", plain, STATE_FORMATS, unasked=True)
        yield Piece(f"complete{mark}", "complete", f"{home}/{_DONE}", required=False, changes=Changes.MARK)
        plain = f"{home}/<optimizer|optim>/state_dict.pt"  # LLaMA-Factory's, of a model that is not cut
        yield Piece(f"single_optimizer{mark}", "optimizer", plain, STATE_FORMATS, required=False)
    single = f"{home}/<step_scheduler|progress|scheduler>.pt"
    yield beside(f"single{mark}", "state", single, STATE_FORMATS, unasked=True)
    counts = f"{home}/metadata.json"
    yield beside(f"single_counts{mark}", "state", counts, ("json_member",))
    orchestrator = f"{home}/orchestrator/progress.pt"
    yield beside(f"orchestrator{mark}", "state", orchestrator, STATE_FORMATS, unasked=True)
    # NeMo AutoModel's models: shards that DCP writes, or an adapter
    weights = f"{home}/model/{{name}}.safetensors"
    yield beside(f"safetensors{mark}", "safetensors", weights, ("safetensors",))
    exported = f"{home}/model/consolidated/{{name}}.safetensors"
    yield replace(beside(f"exported{mark}", "export", exported, ("safetensors",)), loaded=False)
    adapter = f"{home}/model/<adapter_config|automodel_peft_config>.json"
    yield beside(f"adapter{mark}", "config", adapter, ("json_member",))
    index = f"{home}/model/consolidated/model.safetensors.index.json"
    yield replace(beside(f"index{mark}", "export", index, ("safetensors_index",)), loaded=False)
    if mark != HERE:
        yield from _of_workers(home, mark)


def _of_workers(home: str, mark: str) -> Iterator[Piece]:
    """ROLL's: below the directory of each worker one of DCP's, and the model as it is exported."""
    for piece in dcp.pieces(f"{home}/{{name}}/dcp", f"_worker{mark}"):
        yield replace(piece, role="worker_index" if piece.role == "metadata" else "worker")
    beside = partial(Piece, claim=Claim.INSIDE, required=False, loaded=False)
    for name, file, formats in (
        ("weights", "{name}.safetensors", ("safetensors",)),
        ("weights_index", "model.safetensors.index.json", ("safetensors_index",)),
    ):
        yield beside(f"worker_{name}{mark}", "export", f"{home}/{{name}}/{file}", formats)
    pipeline = f"{home}/pipeline/rng_state_pipeline.pth"
    yield replace(beside(f"pipeline{mark}", "state", pipeline, STATE_FORMATS, unasked=True), loaded=True)
    counts = f"{home}/pipeline/worker_state_pipeline.json"
    yield replace(beside(f"pipeline_counts{mark}", "state", counts, ("json_member",)), loaded=True)


HOMES = ((_STEP, ""), (dcp.EPOCH_STEP, "_epoch_step"), (dcp.EPOCH, "_epoch"), ("", HERE))
"""The last is a directory of any name, as of a job that writes one save over the other (Oumi)."""

LAYOUT = Layout(
    name="dcp-set",
    title="Directories of PyTorch Distributed Checkpoint in one save",
    pieces=tuple(
        piece if home else replace(piece, template=piece.template[1:], where=Where.HERE)
        for home, mark in HOMES
        for part in (_of_dcp, _rest)
        for piece in part(home, mark)
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
