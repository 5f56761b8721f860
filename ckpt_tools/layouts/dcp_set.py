"""Saves in which each kind of state is a directory of PyTorch's Distributed Checkpoint of its own:
``global_step20/model`` and ``global_step20/optimizer``, with the files of ranks beside or below them. So do
lm-engine, prime-rl, XTuner, NeMo AutoModel, Oumi, LLaMA-Factory v1, ROLL and many loops of one's own; Cosmos
and OLMo-core.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import borrowed, named_steps, read_steps
from ckpt_tools.layouts.common.layout import (
    Complete,
    Counting,
    Flaws,
    Found,
    Layout,
    Rows,
    Saves,
    Tracker,
    loss,
    resume_directory,
    whole,
)
from ckpt_tools.layouts.common.lost_files import without_optimizer
from ckpt_tools.layouts.common.piece import (
    JSON,
    SAFETENSORS,
    TELLS_STEP,
    TORCH,
    Changes,
    Claim,
    Piece,
    Readers,
    Stage,
    Where,
    nest,
)
from ckpt_tools.layouts.files import name_saved, read_tracker
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.ranges import ranges, words

_STEP = (
    "<step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-"
    "|ckpt_step_|snapshot-step-|iter_|iteration_>{step}"
)
"""A number alone says too little: below it may lie the directories of a job's runs."""
_MODELS = ("model", "weights", "model_optimizer", "trainer", "policy", "actor", "dcp")
"""Directories of which a save has one at least."""
_OTHERS = ("optimizer", "optim", "critic", "value", "scheduler", "lr_scheduler", "ema")
_TRACKED = "latest_checkpointed_iteration"
_DONE = "CHECKPOINT_COMPLETE"
"""What LLaMA-Factory writes when all else is there, and asks for before it resumes from a save."""
_BEGUN = "num_training_steps"
"""What its ``metadata.json`` tells, which it writes before all else."""
_XTUNER = ("checkpoint_list", "snap_checkpoint_list")


def _check(parts: Rows) -> Found:
    indexes = [row for row in parts if row[0].role.endswith("_index")]
    yield from named_steps(indexes, dcp.step_of, "step")
    counts = [row for row in parts if row[0].piece.startswith(("told", "single_counts"))]
    for key in ("global_step", "cur_step"):
        yield from named_steps(counts, key)
    # NeMo AutoModel names saves after it
    yield from named_steps([row for row in parts if row[0].name == "step_scheduler.pt"], "step")
    yield from borrowed(parts, {p.piece: ("optimizer_step",) for p, _ in parts if p.role != "state"})
    done = {part.home for part, _ in parts if part.role == "complete"}
    for part, report in counts:
        if _BEGUN in report.metadata and part.home not in done:
            yield part.path, loss(f"there is no {_DONE}, which is written last")


def _read_tracked(data: bytes) -> int | None:
    """lm-engine's."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return whole(said.get(_TRACKED)) if isinstance(said, dict) else None


def _write_tracked(said: int | str) -> bytes:
    return json.dumps({_TRACKED: said}).encode()


def _find_lost(c: Checkpoint, beside: Saves) -> Flaws:
    """Also the model, which may be in one of several directories, of which some are for the optimizer too."""
    holding = {"safetensors", "worker_index", *(f"{name}_index" for name in _MODELS)}
    if holding.isdisjoint(p.role for p in c.parts):
        yield loss(f"none of its directories holds a model ({', '.join(_MODELS)})", c.path)
    yield from dcp.lost_beside(c, beside)
    yield from without_optimizer(c, beside, ("model_index", "weights_index", "safetensors"))


def _read_last_number(name: str) -> int | None:
    found = re.search(r"(?<![0-9])[0-9]{1,18}$", name)
    return int(found[0]) if found else None


def _read_latest(data: bytes, _base: str) -> int | None:
    """NeMo AutoModel's ``LATEST.txt``, which it writes where it cannot make a link: a directory's name."""
    return _read_last_number(data[:255].decode(errors="replace").strip())


def _read_xtuner(data: bytes, base: str) -> int | None:
    """The later one of a run's last regular save and its last snapshot."""
    run = base.rpartition("/")[0].rpartition("/")[2]
    try:
        runs = [one for one in json.loads(data)["exps"] if not base or one["exp_dir"].endswith(f"/{run}")]
        last = [path for one in runs for key in _XTUNER for path in one[key][-1:]]
        return max((n for path in last if (n := _read_last_number(path)) is not None), default=None)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _list_directories(*, here: bool) -> Iterator[Piece]:
    """Where no name tells that it is a save (``here``), an optimizer is what makes it one."""
    for role in (*_MODELS, *_OTHERS):
        claim = Claim.COMPANION if here and not role.startswith("optim") else Claim.SURE
        yield from nest(role, dcp.of_role(role), f"_{role}", claim=claim)


def _list_rest(*, here: bool) -> Iterator[Piece]:
    """What lies beside the directories and below them."""
    other = partial(Piece, required=False, claim=Claim.INSIDE)
    state = partial(other, role="state", formats=TORCH, unasked=True)
    told = partial(other, role="state", formats=JSON)
    exported = partial(other, role="export", loaded=False)
    index = "model.safetensors.index.json"
    yield from dcp.BESIDE
    yield from nest(f"<{'|'.join(_MODELS)}>", dcp.BESIDE, "_deep")
    if not here:
        mark = Piece("incomplete", "mark", ".incomplete", required=False, changes=Changes.MARK)
        # what NeMo AutoModel removes when all else is written
        yield replace(mark, stage=Stage.MARKS, loaded=False)
        yield state("plain", template=f"<{dcp.STATES}>")  # XTuner's have no ending
        yield replace(mark, name="complete", role="complete", template=_DONE)
        full = "<optimizer|optim>/state_dict.pt"  # LLaMA-Factory's, of a model that is not cut
        yield Piece("single_optimizer", "optimizer", full, TORCH, required=False)
    yield state("single", template="<step_scheduler|progress|scheduler>.pt")
    yield told("single_counts", template="metadata.json")
    yield state("orchestrator", template="orchestrator/progress.pt")
    # NeMo AutoModel's models: shards that DCP writes, or an adapter
    yield other("safetensors", "safetensors", "model/{name}.safetensors", SAFETENSORS)
    yield exported("exported", template="model/consolidated/{name}.safetensors", formats=SAFETENSORS)
    yield other("adapter", "config", "model/<adapter_config|automodel_peft_config>.json", JSON)
    yield exported("index", template=f"model/consolidated/{index}", formats=("safetensors_index",))
    if not here:  # ROLL's: below the directory of each worker one of DCP's, and the model as it is exported
        yield from nest("{name}/dcp", dcp.of_role("worker"), "_worker")
        yield exported("worker_weights", template="{name}/{name}.safetensors", formats=SAFETENSORS)
        yield exported("worker_weights_index", template=f"{{name}}/{index}", formats=("safetensors_index",))
        yield state("pipeline", template="pipeline/rng_state_pipeline.pth")
        yield told("pipeline_counts", template="pipeline/worker_state_pipeline.json")


_HOMES = ((_STEP, ""), (dcp.EPOCH_STEP, "_epoch_step"), (dcp.EPOCH, "_epoch"))
_LISTED = (_list_directories, _list_rest)
DCP_SET = Layout(
    name="dcp-set",
    title="Directories of PyTorch Distributed Checkpoint in one save",
    pieces=(
        *(p for home, mark in _HOMES for part in _LISTED for p in nest(home, part(here=False), mark)),
        # a directory of any name, as of a job that writes one save over the other (Oumi)
        *(p for part in _LISTED for p in nest("", part(here=True), "_here", where=Where.HERE)),
    ),
    resume=resume_directory,
    check=_check,
    lost=_find_lost,
    tracker=Tracker(
        file=f"{_TRACKED}.json",
        read=_read_tracked,
        write=_write_tracked,
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

# ---- Cosmos and others on Imaginaire: iter_N/ with a DCP directory each for model, optim, scheduler and
# trainer; latest_checkpoint.txt, written last, names the newest. Jobs with several networks have an optimizer
# and a scheduler for each: optim_net …

_OF_COSMOS = {"model": "", "optim": "[_{name}]", "scheduler": "[_{name}]", "trainer": ""}
COSMOS = Layout(
    name="cosmos",
    title="Cosmos (Imaginaire)",
    pieces=tuple(
        p
        for role, several in _OF_COSMOS.items()
        for p in nest(f"iter_{{step:09d}}/{role}{several}", dcp.of_role(role), f"_{role}")
    ),
    resume=resume_directory,  # checkpoint.load_path, with load_training_state
    check=partial(named_steps, read=dcp.step_of, what="iteration", role="trainer_index"),
    complete=Complete(needs=("model_index", "optim_index", "trainer_index")),
    tracker=Tracker(file="latest_checkpoint.txt", read=read_tracker, name=name_saved, always=False),
    reshardable=True,
    reference=(
        "cosmos-predict2 imaginaire/checkpointer/dcp.py DistributedCheckpointer.save(), "
        "_write_latest_checkpoint_file(), keys_to_resume_during_load()"
    ),
    limits=(
        "a job that finds latest_checkpoint.txt resumes from what it names, and not from the plan",
        "of iter_N.pt, which its other checkpointers write, see the layout files",
    ),
)

# ---- OLMo-core's Checkpointer: stepN/ with a distributed checkpoint in model_and_optim/, a file of each rank
# in train/, and .metadata.json, which is written last; stepN-tmp/ until the tensors are saved

_WORLD = 1 << 20
"""No job has more ranks."""


def _check_ranks(parts: Rows) -> Found:
    """What each rank counted against the directory's name; and ranks without a file of their own, where the
    others tell how many ranks there were: each would go on with the random numbers of rank 0.
    """
    yield from named_steps(parts, "global_step", "step", role="trainer")
    rows = [(part, report) for part, report in parts if part.role == "trainer"]
    saved = defaultdict[str, set[int]](set)
    for part, _ in rows:
        saved[part.home].add(part.rank or 0)
    for part, report in rows:
        size = whole(report.metadata.get("world_size")) or 0
        held = saved.pop(part.home, None) if 0 < size <= _WORLD else None
        if held is not None and (gone := sorted(set(range(size)) - held)):
            text = f"its world_size is {size}, but there is no file of rank {words(ranges(gone))}"
            yield part.path, Flaw("missing-rank", text, severity=Severity.WARNING)


def _find_lost_first(c: Checkpoint, _beside: Saves) -> Flaws:
    """Without the file of rank 0 the directory is no checkpoint for OLMo-core, whatever else is in it."""
    if not any(p.role == "trainer" and p.rank == 0 for p in c.parts):
        text = "there is no train/rank0.pt, without which OLMo-core does not take it for a checkpoint"
        yield loss(text, c.path)


_MODEL = tuple(nest("model_and_optim", dcp.of_role("model", "index")))
_OF_RANKS = Readers(shared=True, sharded=True, survivable=True)
"""A rank without a file loads that of rank 0."""
_TRAINER = Piece("trainer", "trainer", "train/rank{rank}.pt", TORCH, readers=_OF_RANKS, unasked=True)
_BESIDE = replace(_TRAINER, claim=Claim.COMPANION)
"""Where nothing else is there, the ranks' files are those of some other loop: OLMo's own, before OLMo-core,
had them beside ``model/rank0.pt``.
"""
_WRITTEN = Piece("done", "done", ".metadata.json", JSON)
_CONFIG = Piece("config", "config", "config.json", JSON, required=False, loaded=False, claim=Claim.INSIDE)
"""What a callback adds; of a directory of any name it would be anybody's."""
OLMO_CORE = Layout(
    name="olmo-core",
    title="OLMo-core",
    pieces=(
        *nest("step{step}", (*_MODEL, _BESIDE, _WRITTEN, _CONFIG)),
        *nest("step{step}-tmp", (*_MODEL, _TRAINER, _WRITTEN, _CONFIG), "_tmp", stage=Stage.UNDER_WAY),
        # one that was renamed, of which each rank tells the step
        *nest("{name}", (*_MODEL, replace(_BESIDE, content=TELLS_STEP), _WRITTEN), "_any"),
    ),
    resume=resume_directory,  # Trainer.load_checkpoint(dir)
    steps=partial(read_steps, step=("global_step",)),
    check=_check_ranks,
    lost=_find_lost_first,
    complete=Complete(commit="done", needs=("index",)),
    reshardable=True,
    reference=(
        "ai2-olmo-core 3.0.0: olmo_core/train/checkpoint.py Checkpointer.save(), load(), "
        "dir_is_checkpoint(), latest_checkpoint(); train/trainer.py Trainer.state_dict()"
    ),
    limits=(
        "latest_checkpoint() takes the highest stepN there is: move a damaged one away, or name the choice",
        "model_and_optim tells no step: one of another save with the same sizes is not seen",
    ),
)
