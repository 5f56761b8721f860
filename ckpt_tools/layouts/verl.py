"""What verl's workers save: with FSDP ``global_step_N/actor/model_world_size_W_rank_R.pt``, the optimizer and
the other state of each rank, with Megatron ``actor/{model,optimizer,extra}/dist_ckpt``; ``critic/`` beside
it, and the data loader's ``data.pt``, which is written last. A trainer of one model saves its files without a
directory, and ``data_D.pt`` for each data parallel rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.layout import Complete, Layout, Ranks, Tracker
from ckpt_tools.layouts.common.lost_files import without_index, without_names
from ckpt_tools.layouts.common.piece import OWN, SHARDED, Claim, Piece, nest
from ckpt_tools.layouts.hf_trainer import model_pieces
from ckpt_tools.layouts.megatron import read_tracker
from ckpt_tools.layouts.megatron_core import without_metadata
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

FORMATS = ("torch_zip", "torch_legacy")
KINDS = {"model": "model", "optim": "optimizer", "extra_state": "rng"}
"""What the names of FSDP's files begin with, and the role of each."""
_HOME = "global_step_{step}"
_PLACES = ((f"{_HOME}/actor", "", ""), (f"{_HOME}/critic", "critic_", ""), (_HOME, "", "_alone"))
"""Where the files of a model lie, and what their roles begin and the names of their pieces end with."""
_DIST = "dist_ckpt"


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from dcp.without_common(parts)
    yield from without_metadata(parts)


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """What Megatron-core writes last into its directories, which an asynchronous save does after ``data.pt``;
    and files that only the saves ``beside`` it show.
    """
    files = {p.path.removeprefix(f"{c.path}/") for p in c.parts}
    for home in sorted({name.rpartition("/")[0] for name in files if f"{_DIST}/" in name}):
        last = ".metadata", "metadata.json"
        for name in last if f"{home}/common.pt" in files else last[:1]:
            if f"{home}/{name}" not in files:
                text = f"there is no {home}/{name}, which is written last: without it nothing there is loaded"
                yield Flaw("missing-part", text, path=c.path)
    yield from without_index(c, beside)
    yield from without_kinds(c, beside)
    yield from without_names(c, beside, _shown_by_others)


def without_kinds(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """What a worker of a lone save has no file of. It may have been told to save none, so a warning."""
    places = defaultdict[str, set[str]](set)
    for p in c.parts if not beside else ():
        kind, sized, _ = p.name.partition("_world_size_")
        if sized:
            places[p.path.removeprefix(f"{c.path}/").rpartition("/")[0]].add(kind)
    for place, there in places.items():
        if gone := [kind for kind in KINDS if kind not in there]:
            text = (
                f"{place or 'it'} has no {' and no '.join(gone)} file, and no other save tells whether it had"
            )
            yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)


def _shown_by_others(c: Checkpoint) -> frozenset[str]:
    """The places of ranks in their data, and the directories of Megatron-core that hold a state."""
    names = (p.path.removeprefix(f"{c.path}/") for p in c.parts)
    return frozenset(n for n in names if n.startswith("data_") or n.endswith(f"{_DIST}/.metadata"))


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """The trainer's own overrides: a path alone is not looked at without the mode."""
    path = checkpoint.path
    return Resume(path, ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}"))


def of_fsdp(worker: str) -> Iterator[Piece]:
    """What each rank saves of a worker's state."""
    for name, role in KINDS.items():
        template = f"{name}_world_size_{{world}}_rank_{{rank}}.pt"
        own = Piece(f"{worker}{name}", f"{worker}{role}", template, FORMATS, readers=SHARDED)
        yield replace(own, unasked=True)


def config_of(worker: str) -> Piece:
    """What describes these files."""
    described = Piece(f"{worker}config", "config", "fsdp_config.json", ("json_member",), readers=OWN)
    return replace(described, required=False, loaded=False)


def _of_megatron(worker: str) -> Iterator[Piece]:
    """A directory for each kind of state (up to verl 0.7 one for all), and a model of Hugging Face's, which
    may be the only one.
    """
    for kind in ("model/", "optimizer/", "extra/", ""):
        home, mark = f"{kind}{_DIST}", f"_dist_{worker}{kind[:-1]}"
        yield from nest(home, dcp.PIECES, mark, role=f"{worker}{kind[:-1] or 'model'}")
        yield from nest(home, dcp.OF_MEGATRON, mark)
    for piece in nest("model/huggingface", model_pieces()):
        yield replace(piece, name=f"hf_{worker}{piece.name}", role=f"{worker}{piece.role}")


def _pieces() -> Iterator[Piece]:
    for home, worker, mark in _PLACES:
        yield from nest(home, (*of_fsdp(worker), config_of(worker)), mark)
    for home, worker, mark in _PLACES:
        yield from nest(home, _of_megatron(worker), mark)
    data = Piece("data", "data", f"{_HOME}/data.pt", FORMATS, unasked=True)
    data = replace(data, claim=Claim.INSIDE)  # SkyRL's is called so, too
    yield data
    yield replace(data, name="data_rank", template=f"{_HOME}/data_{{dp}}.pt")


LAYOUT = Layout(
    name="verl",
    title="verl workers",
    pieces=tuple(_pieces()),
    resume=_resume,
    check=_check,
    lost=_lost,
    tracker=Tracker(file="latest_checkpointed_iteration.txt", read=read_tracker, always=False),
    complete=Complete(commit="data", first=("model",), needs=("model",)),
    # FSDPCheckpointManager.load_checkpoint: torch.load of its own three, and nothing else
    ranks=Ranks(own_files=True),
    reference=(
        "verl/utils/checkpoint/fsdp_checkpoint_manager.py save_checkpoint; verl/trainer/ppo/ray_trainer.py "
        "_save_checkpoint (actor, critic, data.pt, then the tracker), _load_checkpoint; "
        "verl/utils/checkpoint/checkpoint_manager.py find_latest_ckpt_path, checkpoint_handler.py and "
        "megatron_checkpoint_manager.py save_checkpoint"
    ),
    limits=(
        "no file says the step: only its directory's name does",
        "each rank loads with weights_only=False, and only as many ranks as have saved can load",
        "of Megatron's saves, ckpt_contents.json and transformer_config.json are not read",
    ),
)
