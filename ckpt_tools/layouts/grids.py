"""Trainers that cut a model along the axes of a grid, each piece in a file: ColossalAI's applications,
nanotron and fairseq2.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import borrowed, named_epochs, named_steps, number
from ckpt_tools.layouts.common.layout import (
    Compared,
    Complete,
    Counting,
    Flaws,
    Found,
    Layout,
    Metadata,
    Rows,
    Saves,
    Tracker,
    check_all,
    loss,
    names_in,
    read_number,
    resume_directory,
    whole,
)
from ckpt_tools.layouts.common.lost_files import lost, without_index, without_names
from ckpt_tools.layouts.common.piece import JSON, SAFETENSORS, TORCH, Changes, Claim, Piece, Stage, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.ranges import ranges, words

# ---- ColossalAI: epoch-E_step-S/ with the booster's shards in modeling/ and optimizer/, lr_scheduler and
# running_states.json, which is written last; Open-Sora's epochE-global_stepN/ and the examples' epochE-stepS/
# with model/ in place of modeling/

_BOOSTER = "epoch-{epoch}_step-{step_in_epoch}"
_SORA = "epoch{epoch}-global_step{step}"
_EXAMPLE = "epoch{epoch}-step{step_in_epoch}"
_SHARD = "[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}]"


def _check_colossalai(parts: Rows) -> Found:
    """running_states.json against the directory's name."""
    yield from named_epochs(parts, "epoch", role="state")
    yield from named_steps(parts, "global_step", role="state")
    for part, report in parts:
        said = whole(report.metadata.get("step")) if part.role == "state" else None
        if None not in (said, part.step_in_epoch) and said != part.step_in_epoch:
            text = f"the name says step {part.step_in_epoch}, the file's step is {said}"
            yield part.path, Flaw("step-mismatch", text)


def _resume_colossalai(checkpoint: Checkpoint, _path: str | None) -> Resume:
    example = any(p.piece.endswith(("_sora", "_example")) for p in checkpoint.parts)
    return Resume(checkpoint.path, ("--load" if example else "--load_checkpoint", checkpoint.path))


def _list_colossalai(modeling: str) -> Iterator[Piece]:
    """The files of a save whose model lies in the directory ``modeling``."""
    torch, index = partial(Piece, formats=TORCH, unasked=True), partial(Piece, formats=("safetensors_index",))
    for role, at, binary, arrays in (
        ("model", modeling, "pytorch_model", "model"),
        ("optimizer", "optimizer", "pytorch_optim", "optimizer"),
    ):
        yield torch(f"{role}_bin", role, f"{at}/{binary}{_SHARD}.bin")
        yield index(f"{role}_bin_index", f"{role}_index", f"{at}/{binary}.bin.index.json")
        shard = f"{at}/{arrays}{_SHARD}.safetensors"
        yield torch(f"{role}_safetensors", role, shard, formats=SAFETENSORS)
        yield index(f"{role}_safetensors_index", f"{role}_index", f"{at}/{arrays}.safetensors.index.json")
    yield torch("groups", "groups", "optimizer/pytorch_optim_group.bin")
    yield torch("adapter", "model", f"{modeling}/adapter_model.safetensors", formats=SAFETENSORS)
    yield torch("adapter_bin", "model", f"{modeling}/adapter_model.bin")
    config = f"{modeling}/<config|generation_config|adapter_config>.json"
    described = Piece("config", "config", config, JSON, claim=Claim.COMPANION)
    yield replace(described, required=False, loaded=False)
    yield torch("scheduler", "scheduler", "lr_scheduler")
    yield Piece("state", "state", "running_states.json", JSON)


_EMA = Piece("ema", "ema", "ema.pt", TORCH)
_OF_SORA = (
    Piece("sampler", "sampler", "sampler", TORCH),
    Piece("ema_arrays", "ema", "ema.safetensors", SAFETENSORS),
    Piece("master_arrays", "master", "master.safetensors", SAFETENSORS),
)
"""What Open-Sora saves of an average, of the sampler and of master weights."""


def _list_examples(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Anybody may call directories as the examples do: what only the booster saves tells theirs."""
    for p in pieces:
        own = p.name.startswith(("optimizer_bin", "groups", "state"))
        yield p if own else replace(p, claim=Claim.COMPANION)


COLOSSALAI = Layout(
    name="colossalai",
    title="ColossalAI applications",
    pieces=(
        *nest(_BOOSTER, _list_colossalai("modeling")),
        *nest(_SORA, _list_colossalai("model"), "_sora"),
        *_list_examples(nest(_EXAMPLE, _list_colossalai("model"), "_example")),
        *nest(_SORA, [_EMA], "_sora", unasked=True),
        # before it counted steps of all epochs
        *_list_examples(nest(_EXAMPLE, [_EMA], "_example", unasked=True)),
        *nest(_SORA, _OF_SORA, "_sora", unasked=True),
    ),
    resume=_resume_colossalai,
    check=_check_colossalai,
    complete=Complete(commit="state", needs=("model", "optimizer", "scheduler")),
    counting=Counting(first_epoch=0),
    lost=without_index,
    reshardable=True,
    reference=(
        "ColossalAI 0.5: applications/Colossal-LLaMA/colossal_llama/utils/ckpt_io.py and "
        "applications/ColossalChat/coati/utils/ckpt_io.py save_checkpoint(), load_checkpoint(); "
        "colossalai/checkpoint_io/general_checkpoint_io.py, utils.py get_shard_filename(); "
        "examples/community/llama/pretrain.py save() (as Open-Sora 1.0, Grok-1); "
        "Open-Sora opensora/utils/ckpt.py CheckpointIO.save(), load()"
    ),
    limits=(
        "S counts batches: in some trainers (SFT, DPO) of the whole training, in others of the epoch",
        "Open-Sora saves master weights while running_states.json is written: one that is cut off is damaged",
        "ColossalChat's scripts call the flag --checkpoint_path",
        "nothing but its directory tells of which save a model or an optimizer is",
    ),
)

# ---- nanotron: <step>/ with a file for each tensor or each rank's slice of it, optimizer and scheduler of
# each rank, checkpoint_metadata.json and, last, model_config.json

_DEEPEST = 10
"""Directories of a tensor: model/model/decoder/0/pp_block/mlp/experts/0/up_proj."""
_RANKS = re.compile(r"(tp|pp|dp|exp)(?:-rank)?-(\d+)-of-(\d+)")


def _check_nanotron(parts: Rows) -> Found:
    yield from named_steps(parts, "metas.last_train_step", "last_train_step")
    for path, text in _find_lost_ranks([part for part, _ in parts if part.role != "random"]):
        yield path, loss(text)


def _find_lost_of_nanotron(c: Checkpoint, beside: Saves) -> Flaws:
    def tensors(o: Checkpoint) -> frozenset[str]:
        """Return the names of the model's tensors, whoever holds them."""
        names = (p.path.removeprefix(f"{o.path}/model/") for p in o.parts if p.role == "model")
        return frozenset(_RANKS.sub("", name).removesuffix(".safetensors").rstrip("_") for name in names)

    for tensor in lost(c, beside, tensors):
        yield loss(f"there is no tensor {tensor!r}, which the run's other checkpoints have", c.path)
    found = (re.search(r"(?:^|/)decoder/([0-9]{1,5})/", name) for name in tensors(c))
    blocks = {int(m[1]) for m in found if m}
    if gone := set(range(max(blocks, default=0))) - blocks:
        missing = words(ranges(sorted(gone)))
        text = f"there is a block of number {max(blocks)}, and no tensor of block {missing}"
        yield loss(text, c.path)
    for path, text in _find_lost_ranks([part for part in c.parts if part.role == "random"]):
        yield loss(f"{text}: of random numbers, which nanotron does not load again", path, sure=False)


def _find_lost_ranks(parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Ranks whose files are gone, as the names of the others tell. A tensor is of one pipeline stage."""
    sets = defaultdict[str, list[Part]](list)
    for part in parts:
        sets[_RANKS.sub(r"\1\3", part.path)].append(part)
    for files in sets.values():
        axes = _RANKS.findall(files[0].name)
        wanted = prod(int(n) for axis, _, n in axes if axis != "pp" or files[0].role != "model")
        if (gone := wanted - len(files)) > 0:
            text = f"{gone} of the {wanted} files of this name are not there, one for each rank"
            yield min(p.path for p in files), text


def _list_nanotron() -> Iterator[Piece]:
    for depth in range(_DEEPEST + 1):
        path = "/".join(["model", *["{name}"] * depth, "model_{name}.safetensors"])
        yield Piece(f"model{depth}", "model", path, SAFETENSORS)
    yield Piece("optimizer", "optimizer", "optimizer/optimizer_{name}.pt", TORCH, unasked=True)
    yield Piece("lr_scheduler", "lr_scheduler", "lr_scheduler/lr_scheduler_{name}.pt", TORCH, unasked=True)
    yield Piece("random", "random", "random/tp-{name}.pt", TORCH, loaded=False, required=False)
    config = partial(Piece, formats=JSON, claim=Claim.COMPANION)
    yield config("metadata", "metadata", "checkpoint_metadata.json")
    yield config("optimizer_config", "optimizer_config", "optimizer/optimizer_config.json")
    yield config("model_config", "model_config", "model_config.json")
    mark = Piece("config", "config", "config.yaml", claim=Claim.COMPANION, changes=Changes.MARK)
    yield replace(mark, required=False, loaded=False)


NANOTRON = Layout(
    name="nanotron",
    title="nanotron",
    pieces=tuple(nest("{step}", _list_nanotron())),
    resume=resume_directory,  # checkpoints.resume_checkpoint_path of the YAML file
    check=_check_nanotron,
    lost=_find_lost_of_nanotron,
    tracker=Tracker(file="latest.txt", read=read_number),
    complete=Complete(
        commit="model_config", needs=("model", "metadata", "optimizer", "optimizer_config", "lr_scheduler")
    ),
    reshardable=True,
    reference=(
        "nanotron/trainer.py save_checkpoint(); nanotron/serialize/main.py save(), parse_ckpt_path(); "
        "weights.py, optimizer.py, random.py, metadata.py there"
    ),
    limits=(
        "a tensor whose files are all lost is missed where the run has another checkpoint",
        "random numbers are saved, and not loaded again",
        "whether the optimizer can be loaded on other numbers of ranks is for nanotron to say",
        "nothing but its directory tells of which save a tensor or an optimizer is",
    ),
)

# ---- fairseq2: step_N/trainer/rank_R.pt, model/pp_P/tp_T/sdp_S.pt and the like. It is step_N.tmp until the
# save is done; a directory with the model alone is an export.

_GRID = "pp_{name}/tp_{name}/sdp_{shard:02d}.pt"


def _read_step_of_fairseq2(metadata: Metadata) -> int | None:
    return number(metadata, ("step_nr", "_step_nr"))


def _find_lost_of_fairseq2(c: Checkpoint, beside: Saves) -> Flaws:
    """What the rest of the save shows to have been there, and what the saves ``beside`` it have."""
    gone = sorted(_show_others(c) - names_in(c))
    for name in gone:
        yield loss(f"there is no {name}, which the other files of the save belong to", c.path)
    if not gone:
        yield from without_names(c, beside, names_in)


def _show_others(c: Checkpoint) -> set[str]:
    """Files of places and ranks that others tell: each place of the model has one of the optimizer, and a
    rank that trains it.
    """
    files = names_in(c)
    if not any(name.startswith("trainer/") for name in files):  # an export
        return set()
    places = {name.partition("/")[2] for name in files if name.startswith(("model/", "optimizer/"))}
    shards = len({place.rpartition("/")[2] for place in places})
    shown = {f"{role}/{place}" for role in ("model", "optimizer") for place in places}
    for role, name, least in (("trainer", "rank", len(places)), ("data_reader", "dp", shards)):
        ranks = [at for p in c.parts if p.role == role for axis, at in p.coords if axis == "shard"]
        if ranks:
            shown |= {f"{role}/{name}_{rank:02d}.pt" for rank in range(max(least, *ranks))}
    return shown


_OF_FAIRSEQ2 = (
    Piece("model", "model", f"model/{_GRID}", TORCH),
    Piece("optimizer", "optimizer", f"optimizer/{_GRID}", TORCH),
    Piece("data_reader", "data_reader", "data_reader/dp_{shard:02d}.pt", TORCH, unasked=True),
    Piece("trainer", "trainer", "trainer/rank_{shard:02d}.pt", TORCH, unasked=True, claim=Claim.INSIDE),
)
FAIRSEQ2 = Layout(
    name="fairseq2",
    title="fairseq2",
    pieces=(
        *nest("step_{step}", _OF_FAIRSEQ2),
        *nest("step_{step}.tmp", _OF_FAIRSEQ2, "_tmp", stage=Stage.UNDER_WAY),
    ),
    resume=resume_directory,
    check=check_all(
        partial(named_steps, read=_read_step_of_fairseq2, what="step_nr", role="trainer"),
        partial(borrowed, keys={"optimizer": ("optimizer_step",)}),
    ),
    lost=_find_lost_of_fairseq2,
    complete=Complete(needs=("model", "optimizer", "trainer")),
    compared=Compared.NONE,
    reference=(
        "fairseq2 src/fairseq2/checkpoint/manager.py StandardCheckpointManager (0.5 and later): "
        "save_checkpoint(), _commit_checkpoint(), maybe_get_last_step_number(exclude_model_only=True)"
    ),
    limits=(
        "the framework takes the highest step_N with a trainer/: move a damaged one away, or give a view",
        "how many places and ranks a save has is known from its own files and from the saves beside it",
        "of 0.4 and before, trainer/ and data_reader/ have other names: such a step is asked about",
    ),
)
