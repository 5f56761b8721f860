"""PyTorch Distributed Checkpoint: a directory with ``.metadata`` and ``__R_K.distcp``,
usually one per step (torchtitan's ``step-N``).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import borrowed, last_word, named_steps
from ckpt_tools.layouts.common.layout import Beside, Complete, Counting, Layout, Metadata, Steps, Tracker
from ckpt_tools.layouts.common.lost_files import without_names
from ckpt_tools.layouts.common.piece import TELLS_STEP, Claim, Content, Piece, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

FORMATS = ("dcp",)
STEP = (
    "<step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}"
    "[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]"
)
EPOCH = "<epoch-|epoch_|epoch=>{epoch}"
EPOCH_STEP = f"{EPOCH}<_|-><step-|step_|step=|step>{{step}}"
NUMBERED = ((STEP, ""), ("{step}", "_number"), (EPOCH, "_epoch"))
"""Directories of which each holds one checkpoint, each with a mark for the names of the pieces in it."""
_STATE = b"optim"
"""In the names of an optimizer's entries: ``optimizer.state.…``, ``optim``."""
_WORDS = ("global_step", "step", "iteration", "current_step")


_FILES = "ckpt|pth|pt"
"""Endings of files that directories have whose job saves one file where it is not distributed."""
_OF_FSDP = re.compile(r"pytorch_model_fsdp(?:_[0-9]+)?")
_OPTIMIZER = re.compile(r"optimizer(?:_[0-9]+)?")
"""How Accelerate calls the two directories of a save with FSDP."""


def read_number(data: bytes) -> int | None:
    """A tracker that holds one number, such as DLRover's."""
    text = data.strip()
    return int(text) if text.isdigit() and len(text) <= 18 else None


def step_of(metadata: Metadata) -> int | None:
    """The step that the job saved beside its tensors;
    schedulers and optimizers have counters of their own.
    """
    return last_word({k: v for k, v in metadata.items() if "optim" not in k and "sched" not in k}, _WORDS)


def _steps(part: Part, metadata: Metadata) -> Steps:
    step = step_of(metadata)
    return (part.step if step is None else step), part.epoch, None


def without_common(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Megatron-core's saves whose ``metadata.json`` says that what ranks have in common is in a file, and
    that have none.
    """
    having = {p.path.rpartition("/")[0] for p, _ in parts if p.path.endswith("/common.pt")}
    for part, report in parts:
        home, _, name = part.path.rpartition("/")
        if name == "metadata.json" and report.metadata.get("common_backend") and home not in having:
            text = "common.pt, which it says was saved with it, is not there: it tells the iteration and more"
            yield part.path, Flaw("missing-part", text)


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from without_common(parts)
    # what meta.pt tells has taken the place of the number in the name
    states = {p.piece: _WORDS for p, _ in parts if p.role == "state"}
    yield from borrowed(parts, states, _number_in_name, growing=False)
    if all(p.step is None for p, _ in parts):
        yield from _odd_steps(parts)
    else:
        names = {p.step for p, _ in parts}
        told = [(p, r, step_of(r.metadata)) for p, r in parts]
        certain = [(p, r) for p, r, n in told if not (_in_epoch(p, n, names) or _is_next(p, n, names))]
        yield from named_steps(certain, step_of, "step")
        yield from borrowed(
            parts,
            {
                name + mark: ("optimizer_step",)
                for name in ("data", "prefixed")
                for mark in ("", "_epoch_step", "_any")
            },
        )


def _odd_steps(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Files of one checkpoint that tell different steps: those that differ from the name, or from most."""
    homes: dict[str, list[tuple[Part, int]]] = {}
    for part, report in parts:
        if (said := step_of(report.metadata)) is not None:
            homes.setdefault(part.home or part.path, []).append((part, said))
    for rows in homes.values():
        values = [said for _, said in rows]
        usual = max(set(values), key=lambda v: (v == rows[0][0].step, values.count(v)))
        for part, said in rows:
            if said != usual:
                text = f"it is of step {said}, other files of its checkpoint are of step {usual}"
                yield part.path, Flaw("step-mismatch", text)


def _is_next(p: Part, told: int | None, names: set[int | None]) -> bool:
    """Whether the name counts from 0 and the file from 1, or the other way round (``29`` that tells 30)."""
    return told is not None and p.step is not None and abs(told - p.step) == 1 and told not in names


def _number_in_name(p: Part) -> int | None:
    """The last number in the name of a checkpoint's directory."""
    found = re.findall(r"\d+", p.home.rpartition("/")[2])
    return int(found[-1]) if found and len(found[-1]) <= 18 else None


def _in_epoch(part: Part, said: int | None, names: Container[int | None]) -> bool:
    """Whether the step in the name may count from the start of its epoch, unlike the one in the file."""
    if not part.epoch or part.step is None or said is None:
        return False
    return said > part.step and said not in names


def _lacks(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """A save of the model alone (torchtitan's last_save_model_only) beside those of a whole state."""
    full = [o for o in others if (o.layout, o.run, o.kind) == (c.layout, c.run, Kind.PERIODIC)]
    if c.kind is Kind.RELEASE and full:
        other = max(full, key=lambda o: o.order).path.rpartition("/")[2]
        text = f"{c.path.rpartition('/')[2]} holds no optimizer's state, which {other} beside it holds"
        yield Flaw("missing-part", text, path=c.path, hint="a start from the model alone needs --kind")


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Also all but the model of a lone save of Accelerate's or the Trainer's with FSDP, which is first, and
    the rest of a state beside the tensors of one that is called as a file.
    """
    yield from lost_beside(c, beside)
    name = _directory(c).rpartition("/")[2]
    if not beside and re.search(rf"\.(?:{_FILES})$", name) and all(p.role != "state" for p in c.parts):
        text = f"{name} has no meta.pt, which Lightning and Fabric save last into directories called so"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)
    called = c.path.rpartition("/")[2]
    if not beside and _OF_FSDP.fullmatch(called):
        text = "it holds a model alone, and is called as in a save that has an optimizer's state beside it"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)
    if not beside and _OPTIMIZER.fullmatch(called):
        text = "it is called as an optimizer's state alone, of a model that lies elsewhere"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)


def _directory(c: Checkpoint) -> str:
    """The directory of its files: its own, or one below that."""
    return next((p.path.rpartition("/")[0] for p in c.parts if p.path.endswith("/.metadata")), c.path)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(_directory(checkpoint))  # torch.distributed.checkpoint.load(checkpoint_id=…)


PIECES = (
    Piece("metadata", "metadata", ".metadata", FORMATS),
    Piece("rank_metadata", "metadata", "__{rank}.metadata", FORMATS),
    Piece("data", "model", "__{rank}_{shard}.distcp", FORMATS, required=False),
    Piece("prefixed", "model", "{name}__{rank}_{shard}.distcp", FORMATS, required=False),
)
"""The files of a checkpoint in its directory."""
_OF_STATES = (*(replace(p, content=Content(state_word=_STATE)) for p in PIECES[:2]), *PIECES[2:])


def of_role(role: str, index: str = "") -> Iterator[Piece]:
    """The same of a part of a state, which other parts lie beside: the roles of its files and its index."""
    for p in PIECES:
        yield replace(p, role=(index or f"{role}_index") if p.role == "metadata" else role)


def _spread() -> Iterator[Piece]:
    """Data that s3torchconnector's prefix strategies put into directories: a number backwards with zeros
    behind it, or what a strategy of the user's own gives.
    """
    for name, prefix, claim in (("numbered", "{layer:010d}", Claim.SURE), ("spread", "{name}", Claim.INSIDE)):
        for deep, epoch in (("", ""), ("_deep", "/<epoch_>{name}")):
            template = f"{prefix}{epoch}/__{{rank}}_{{shard}}.distcp"
            yield Piece(f"{name}{deep}", "model", template, FORMATS, required=False, claim=claim)


_INSIDE = Piece("", "", "", required=False, claim=Claim.INSIDE)
_COMMON = replace(_INSIDE, name="common", role="common", template="common.pt", unasked=True)
OF_MEGATRON = (
    replace(_INSIDE, name="core", role="core_metadata", template="metadata.json", formats=("json_member",)),
    replace(_COMMON, formats=("torch_zip", "torch_legacy")),
)
"""What Megatron-core keeps beside them, where its directory was renamed."""
STATES = (
    "extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states"
    "|lr_scheduler|scheduler"
)
"""What frameworks call the files of states beside the tensors, one for each rank or for all."""
STATE_FORMATS = ("torch_zip", "torch_legacy")


_RANK = "[<_global|_dp>][<_|->][rank][<_|->]{shard}"
_SAVED = replace(_INSIDE, role="state", formats=STATE_FORMATS, unasked=True)
_TOLD = replace(_INSIDE, name="told", role="state", template="<train_state|trainer_state>[_{shard}].json")
BESIDE = (
    replace(_SAVED, name="state", template=f"<{STATES}>[{_RANK}].<pt|pth>"),
    replace(_SAVED, name="state_below", template=f"<{STATES}>/[<{STATES}>]{_RANK}.<pt|pth>"),
    replace(_SAVED, name="state_of_loop", template="metadata.pth"),
    replace(_TOLD, formats=("json_member",)),
)
"""The files of states beside the tensors, or in directories called like them."""


def lost_beside(c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """Files of states that all saves of as many ranks have; of the tensors ``.metadata`` tells."""
    yield from without_names(c, [o for o in others if _writers(o) == _writers(c)], _states)


def _states(c: Checkpoint) -> frozenset[str]:
    beside = ("state", "told", "plain", "single", "orchestrator", "safetensors", "adapter")
    own = (*beside, "complete", "pipeline", "metadata_worker")
    return frozenset(p.path.removeprefix(f"{c.path}/") for p in c.parts if p.piece.startswith(own))


def _writers(c: Checkpoint) -> frozenset[int | None]:
    return frozenset(p.rank for p in c.parts if p.path.endswith(".distcp"))


REST = Piece("meta", "state", "meta.pt", STATE_FORMATS, content=TELLS_STEP, unasked=True)
"""What Lightning and Fabric save of a state beside the tensors, last of all; step and epoch are in it."""
_BESIDE = ([replace(REST, claim=Claim.COMPANION)], OF_MEGATRON, BESIDE)
HOMES = (
    (STEP, ""),
    (EPOCH, "_epoch"),
    (EPOCH_STEP, "_epoch_step"),
    (f"{STEP}/{{name}}.<{_FILES}>", "_file"),  # LitGPT's step-00000500/lit_model.pth
    ("{name}", "_any"),
)

LAYOUT = Layout(
    name="dcp",
    title="PyTorch Distributed Checkpoint",
    pieces=(
        *(p for home, mark in HOMES[:-1] for p in nest(home, _spread(), mark)),
        *(p for home, mark in HOMES[:-1] for p in nest(home, _OF_STATES, mark)),
        *nest("{name}", PIECES, "_any"),
        *(p for part in _BESIDE for home, mark in HOMES for p in nest(home, part, mark)),
    ),
    lacks=_lacks,
    lost=_lost,
    resume=_resume,
    steps=_steps,
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
