"""Directories of tensors with an index: PyTorch's Distributed Checkpoint (``.metadata`` and ``__R_K.distcp``,
usually one per step, torchtitan's ``step-N``), torchsnapshot and PaddlePaddle's distributed checkpoint.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import borrowed, last_word, named_steps
from ckpt_tools.layouts.common.layout import (
    Beside,
    Compared,
    Complete,
    Counting,
    Flaws,
    Found,
    Layout,
    Metadata,
    Rows,
    Saves,
    Steps,
    Tracker,
    loss,
    read_number,
    resume_directory,
)
from ckpt_tools.layouts.common.lost_files import without_names
from ckpt_tools.layouts.common.piece import (
    JSON,
    SAFETENSORS,
    TELLS_STEP,
    TORCH,
    Claim,
    Content,
    Piece,
    nest,
)
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume

FORMATS = ("dcp",)
STEP = (
    "<step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}"
    "[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]"
)
EPOCH = "<epoch-|epoch_|epoch=>{epoch}"
EPOCH_STEP = f"{EPOCH}<_|-><step-|step_|step=|step>{{step}}"
NUMBERED = ((STEP, ""), ("{step}", "_number"), (EPOCH, "_epoch"))
"""Directories of which each holds one checkpoint, each with a mark for the names of the pieces in it."""
_WORDS = ("global_step", "step", "iteration", "current_step")
_FILES = "ckpt|pth|pt"
"""Endings of files that directories have whose job saves one file where it is not distributed."""
_CALLED_ALONE = {
    r"pytorch_model_fsdp(?:_[0-9]+)?": (
        "it holds a model alone, and is called as in a save that has an optimizer's state beside it"
    ),
    r"optimizer(?:_[0-9]+)?": "it is called as an optimizer's state alone, of a model that lies elsewhere",
}
"""How Accelerate calls the two directories of a save with FSDP."""


def _without_states(metadata: Metadata) -> Metadata:
    """Schedulers and optimizers have counters of their own."""
    return {k: v for k, v in metadata.items() if "optim" not in k and "sched" not in k}


def step_of(metadata: Metadata) -> int | None:
    """The step that the job saved beside its tensors."""
    return last_word(_without_states(metadata), _WORDS)


def _read_steps(part: Part, metadata: Metadata) -> Steps:
    step = step_of(metadata)
    return (part.step if step is None else step), part.epoch, None


def without_common(parts: Rows) -> Found:
    """Megatron-core's saves whose ``metadata.json`` says that what ranks have in common is in a file, and
    that have none.
    """
    having = {p.folder.directory for p, _ in parts if p.name == "common.pt"}
    for p, report in parts:
        backend = report.metadata.get("common_backend") if p.name == "metadata.json" else None
        if backend and p.folder.directory not in having:
            text = "common.pt, which it says was saved with it, is not there: it tells the iteration and more"
            yield p.path, loss(text)


def _check(parts: Rows) -> Found:
    yield from without_common(parts)
    # what meta.pt tells has taken the place of the number in the name
    states = {p.piece: _WORDS for p, _ in parts if p.role == "state"}
    yield from borrowed(parts, states, _read_number_in_name, growing=False)
    if all(p.step is None for p, _ in parts):
        yield from _find_odd_steps(parts)
        return
    names = {p.step for p, _ in parts}

    def is_certain(p: Part, told: int | None) -> bool:
        """Whether the step in the name neither may count from the start of its epoch, unlike the one in the
        file, nor counts from 0 and the file from 1, or the other way round (``29`` that tells 30).
        """
        if told is None or p.step is None or told in names:
            return True
        return abs(told - p.step) != 1 and not (p.epoch and told > p.step)

    certain = [(p, r) for p, r in parts if is_certain(p, step_of(r.metadata))]
    yield from named_steps(certain, step_of, "step")
    data = [f"{name}{mark}" for name in ("data", "prefixed") for mark in ("", "_epoch_step", "_any")]
    yield from borrowed(parts, dict.fromkeys(data, ("optimizer_step",)))


def _find_odd_steps(parts: Rows) -> Found:
    """Files of one checkpoint that tell different steps: those that differ from the name, or from most."""
    homes = defaultdict[str, list[tuple[Part, int]]](list)
    for part, report in parts:
        if (said := step_of(report.metadata)) is not None:
            homes[part.home or part.path].append((part, said))
    for rows in homes.values():
        values = [said for _, said in rows]
        usual = max(set(values), key=lambda v: (v == rows[0][0].step, values.count(v)))
        for part, said in rows:
            if said != usual:
                text = f"it is of step {said}, other files of its checkpoint are of step {usual}"
                yield part.path, Flaw("step-mismatch", text)


def _read_number_in_name(p: Part) -> int | None:
    """The last number in the name of a checkpoint's directory."""
    found = re.findall(r"\d+", p.home.rpartition("/")[2])
    return int(found[-1]) if found and len(found[-1]) <= 18 else None


def _find_model_alone(c: Checkpoint, others: Saves) -> Flaws:
    """A save of the model alone (torchtitan's last_save_model_only) beside those of a whole state."""
    full = [o for o in others if (o.layout, o.run, o.kind) == (c.layout, c.run, Kind.PERIODIC)]
    if c.kind is Kind.RELEASE and full:
        other = max(full, key=lambda o: o.order).path.rpartition("/")[2]
        text = f"{c.path.rpartition('/')[2]} holds no optimizer's state, which {other} beside it holds"
        yield loss(text, c.path, hint="a start from the model alone needs --kind")


def _find_lost(c: Checkpoint, beside: Saves) -> Flaws:
    """Also all but the model of a lone save of Accelerate's or the Trainer's with FSDP, which is first, and
    the rest of a state beside the tensors of one that is called as a file.
    """
    yield from lost_beside(c, beside)
    if beside:
        return
    name = _directory(c).rpartition("/")[2]
    if re.search(rf"\.(?:{_FILES})$", name) and all(p.role != "state" for p in c.parts):
        text = f"{name} has no meta.pt, which Lightning and Fabric save last into directories called so"
        yield loss(text, c.path, sure=False)
    for called, text in _CALLED_ALONE.items():
        if re.fullmatch(called, c.path.rpartition("/")[2]):
            yield loss(text, c.path, sure=False)


def _directory(c: Checkpoint) -> str:
    """The directory of its files: its own, or one below that."""
    return next((p.path.rpartition("/")[0] for p in c.parts if p.path.endswith("/.metadata")), c.path)


PIECES = (
    Piece("metadata", "metadata", ".metadata", FORMATS),
    Piece("rank_metadata", "metadata", "__{rank}.metadata", FORMATS),
    Piece("data", "model", "__{rank}_{shard}.distcp", FORMATS, required=False),
    Piece("prefixed", "model", "{name}__{rank}_{shard}.distcp", FORMATS, required=False),
)
"""The files of a checkpoint in its directory."""
_OPTIMIZER = Content(state_word=b"optim")
"""In the names of an optimizer's entries: ``optimizer.state.…``, ``optim``."""
_OF_STATES = (*(replace(p, content=_OPTIMIZER) for p in PIECES[:2]), *PIECES[2:])


def of_role(role: str, index: str = "") -> Iterator[Piece]:
    """The same of a part of a state, which other parts lie beside: the roles of its files and its index."""
    for p in PIECES:
        yield replace(p, role=(index or f"{role}_index") if p.role == "metadata" else role)


def _list_spread() -> Iterator[Piece]:
    """Data that s3torchconnector's prefix strategies put into directories: a number backwards with zeros
    behind it, or what a strategy of the user's own gives.
    """
    for name, prefix, claim in (("numbered", "{layer:010d}", Claim.SURE), ("spread", "{name}", Claim.INSIDE)):
        for deep, epoch in (("", ""), ("_deep", "/<epoch_>{name}")):
            template = f"{prefix}{epoch}/__{{rank}}_{{shard}}.distcp"
            yield Piece(f"{name}{deep}", "model", template, FORMATS, required=False, claim=claim)


STATES = (
    "extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states"
    "|lr_scheduler|scheduler"
)
"""What frameworks call the files of states beside the tensors, one for each rank or for all."""
_RANK = "[<_global|_dp>][<_|->][rank][<_|->]{shard}"
_INSIDE = partial(Piece, required=False, claim=Claim.INSIDE)
_TORCH = partial(_INSIDE, formats=TORCH, unasked=True)
OF_MEGATRON = (
    _INSIDE("core", "core_metadata", "metadata.json", JSON),
    _TORCH("common", "common", "common.pt"),
)
"""What Megatron-core keeps beside them, where its directory was renamed."""
BESIDE = (
    _TORCH("state", "state", f"<{STATES}>[{_RANK}].<pt|pth>"),
    _TORCH("state_below", "state", f"<{STATES}>/[<{STATES}>]{_RANK}.<pt|pth>"),
    _TORCH("state_of_loop", "state", "metadata.pth"),
    _INSIDE("told", "state", "<train_state|trainer_state>[_{shard}].json", JSON),
)
"""The files of states beside the tensors, or in directories called like them."""
_NAMED_BESIDE = (
    *("state", "told", "plain", "single", "orchestrator", "safetensors", "adapter"),
    *("complete", "pipeline", "metadata_worker"),
)
"""How the pieces of files beside the tensors are called, of sets of directories as well."""


def lost_beside(c: Checkpoint, others: Saves) -> Flaws:
    """Files of states that all saves of as many ranks have; of the tensors ``.metadata`` tells."""

    def states(o: Checkpoint) -> frozenset[str]:
        own = [p.path for p in o.parts if p.piece.startswith(_NAMED_BESIDE)]
        return frozenset(path.removeprefix(f"{o.path}/") for path in own)

    def writers(o: Checkpoint) -> set[int | None]:
        return {p.rank for p in o.parts if p.path.endswith(".distcp")}

    mine = writers(c)
    return without_names(c, [o for o in others if writers(o) == mine], states)


REST = Piece("meta", "state", "meta.pt", TORCH, content=TELLS_STEP, unasked=True)
"""What Lightning and Fabric save of a state beside the tensors, last of all; step and epoch are in it."""
_BESIDE = ([replace(REST, claim=Claim.COMPANION)], OF_MEGATRON, BESIDE)
_HOMES = (
    (STEP, ""),
    (EPOCH, "_epoch"),
    (EPOCH_STEP, "_epoch_step"),
    (f"{STEP}/{{name}}.<{_FILES}>", "_file"),  # LitGPT's step-00000500/lit_model.pth
    ("{name}", "_any"),
)
DCP = Layout(
    name="dcp",
    title="PyTorch Distributed Checkpoint",
    pieces=(
        *(p for home, mark in _HOMES[:-1] for p in nest(home, _list_spread(), mark)),
        *(p for home, mark in _HOMES[:-1] for p in nest(home, _OF_STATES, mark)),
        *nest("{name}", PIECES, "_any"),
        *(p for part in _BESIDE for home, mark in _HOMES for p in nest(home, part, mark)),
    ),
    lacks=_find_model_alone,
    lost=_find_lost,
    resume=lambda c, _path: Resume(_directory(c)),  # torch.distributed.checkpoint.load(checkpoint_id=…)
    steps=_read_steps,
    check=_check,
    counting=Counting(by_epoch=True),
    complete=Complete(commit="metadata"),
    # torchtitan's place of each replica in its data, with torchft
    beside=Beside(shares=re.compile(r"ft-replicat-.+")),
    tracker=Tracker(file="dlrover_latest.txt", read=read_number, always=False),
    reshardable=True,
    reference=(
        "torch/distributed/checkpoint/filesystem.py FileSystemWriter; torchtitan components/checkpoint.py "
        "(step-N); lightning/fabric/strategies/model_parallel.py _save_checkpoint (meta.pt)"
    ),
    limits=(
        (
            "a save of the model alone is told by its entries, where another of its run has those of an"
            " optimizer; a lone one may be meant to start from"
        ),
        (
            "nothing in a data file says which save it is of, unless the job saved its step as a plain"
            " number: a file of the same sizes from another step is seen then, or while that step is there"
        ),
        (
            "a step in a name that also tells the epoch may count from the start of that epoch: a file of a"
            " later step that no name tells is not seen there"
        ),
        (
            "files in directories that s3torchconnector's prefix strategies give to ranks are listed with"
            " their checkpoint where its name tells a step or an epoch; others are found through .metadata"
        ),
        (
            "a rank whose thread had nothing to write leaves an empty file, or none: .metadata says what must"
            " be there"
        ),
    ),
)

# ---- torchsnapshot: a directory for each snapshot, called as the script likes. .snapshot_metadata is written
# last; R/ holds what rank R alone has, batched/ small tensors, beside replicated/ and sharded/.

_SNAPSHOT_WORDS = ("global_step", "step", "iteration", "current_step", "num_steps_completed")
_DEEPEST = 7
"""Components below the directory of a rank, and one: 0/optim/param_groups/0/betas has five."""
_OTHERS = "metrics|params|tags|artifacts|inputs|outputs"
"""Directories that MLflow has below that of its experiment, 0/."""
_UUID = "-".join(["{name}"] * 5)


def _read_snapshot(part: Part, metadata: Metadata) -> Steps:
    """The name's, else what the script saved beside its tensors; optimizers count for themselves."""
    told = _without_states(metadata)
    step = last_word(told, _SNAPSHOT_WORDS) if part.step is None else part.step
    return step, last_word(told, ("epoch",)) if part.epoch is None and step is None else part.epoch, None


def _check_snapshots(parts: Rows) -> Found:
    keys = [f"progress.{word}" for word in _SNAPSHOT_WORDS]
    return borrowed(parts, {f"metadata{mark}": keys for _, mark in _HOMES}, growing=False)


def _list_snapshot(*, named: bool) -> Iterator[Piece]:
    """The index, and what it describes; a slab of small tensors, or the files of rank 0 beside finished
    snapshots, are of a save under way without it.
    """
    content = Content(step=not named)
    yield Piece("metadata", "metadata", ".snapshot_metadata", ("torchsnapshot",), content=content)
    data = partial(Piece, role="data", required=False)
    yield data("slab", template=f"batched/{_UUID}")
    for depth in range(1, _DEEPEST):
        path = "/".join(["{name}"] * depth)
        if named:  # else any file three directories down has such a name
            template = f"<0|replicated|sharded>/{path}"
            yield data(f"data{depth}", template=template, claim=Claim.COMPANION)
        yield data(f"other{depth}", template=f"{{name}}/{path}", claim=Claim.DESCRIBED)


TORCHSNAPSHOT = Layout(
    name="torchsnapshot",
    title="torchsnapshot",
    pieces=tuple(p for home, mark in _HOMES for p in nest(home, _list_snapshot(named=mark != "_any"), mark)),
    resume=resume_directory,  # Snapshot(path).restore(app_state)
    steps=_read_snapshot,
    check=_check_snapshots,
    complete=Complete(commit="metadata"),
    beside=Beside(
        traces=(re.compile(rf"(?:^|/)(?:0|replicated|sharded)/(?!(?:.+/)?(?:{_OTHERS})/)(?:[^/]+/)+[^/.]+$"),)
    ),
    reshardable=True,
    reference=(
        "torchsnapshot 0.1.0: snapshot.py take() (.snapshot_metadata after all ranks have written), "
        "io_preparer.py get_storage_path(), batcher.py; torchtnt callbacks (epoch_E_step_S)"
    ),
    limits=(
        "of a lone save that was killed names in batched/ and those without a dot tell whose it is",
        "without batching a save that was killed is seen where the directory's name tells a step or an epoch",
        "values that only one rank has are there for jobs of as many ranks: restore() refuses others",
    ),
)

# ---- PaddlePaddle: a directory with <id>.metadata and <rank>_<id>.distcp, usually one per step. Several ids
# in one directory are several saves, of which the loader takes the highest.


def _resume_paddle(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """The arguments of ``paddle.distributed.load_state_dict``: a path alone means the highest id in it."""
    directory = checkpoint.parts[0].path.rpartition("/")[0]
    return Resume(directory, (f"path={directory}", f"unique_id={checkpoint.generation}"))


_OF_PADDLE = (
    Piece("metadata", "metadata", "{generation}.metadata", ("paddle_dist",)),
    Piece("distcp", "model", "{rank}_{generation}.distcp", ("pickle_plain",)),
    Piece("safetensors", "model", "{rank}_{generation}.safetensors", SAFETENSORS, claim=Claim.COMPANION),
)
PADDLE_DIST = Layout(
    name="paddle-dist",
    title="PaddlePaddle distributed checkpoint",
    pieces=tuple(
        p
        for home, mark in (*NUMBERED, ("{name}", "_any"))
        for p in nest(home, _OF_PADDLE, mark, unasked=True)
    ),
    resume=_resume_paddle,
    complete=Complete(needs=("metadata", "model")),
    compared=Compared.BY_PIECE,
    reshardable=True,
    reference="paddle/distributed/flex_checkpoint/dcp/save_state_dict.py, load_state_dict.py of Paddle 3.3",
    limits=(
        "the step is told by the directory's name alone",
        "load_state_dict without unique_id loads the highest id of a directory, and not the plan's",
    ),
)
