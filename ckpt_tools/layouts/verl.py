"""What the workers of reinforcement learning save: verl's and SkyRL's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import (
    Complete,
    Flaws,
    Layout,
    Ranks,
    Saves,
    Tracker,
    check_all,
    loss,
    names_in,
    read_number,
    resume_with,
)
from ckpt_tools.layouts.common.lost_files import without_index, without_names
from ckpt_tools.layouts.common.piece import JSON, OWN, SHARDED, TORCH, Claim, Piece, nest
from ckpt_tools.layouts.hf_trainer import model_pieces
from ckpt_tools.layouts.megatron import TRACKER, without_metadata
from ckpt_tools.model.checkpoint import Checkpoint

_KINDS = {"model": "model", "optim": "optimizer", "extra_state": "rng"}
"""What the names of FSDP's files begin with, and the role of each."""
_HOME = "global_step_{step}"


def _list_fsdp(worker: str) -> Iterator[Piece]:
    """What each rank saves of a worker's state."""
    for name, role in _KINDS.items():
        template = f"{name}_world_size_{{world}}_rank_{{rank}}.pt"
        own = Piece(f"{worker}{name}", f"{worker}{role}", template, TORCH, readers=SHARDED)
        yield replace(own, unasked=True)


def _describe_fsdp(worker: str) -> Piece:
    described = Piece(f"{worker}config", "config", "fsdp_config.json", JSON, readers=OWN)
    return replace(described, required=False, loaded=False)


def _find_lost_kinds(c: Checkpoint, beside: Saves) -> Flaws:
    """What a worker of a lone save has no file of. It may have been told to save none, so a warning."""
    places = defaultdict[str, set[str]](set)
    for name in names_in(c) if not beside else ():
        place, _, file = name.rpartition("/")
        kind, sized, _ = file.partition("_world_size_")
        if sized:
            places[place].add(kind)
    for place, there in sorted(places.items()):
        if gone := [kind for kind in _KINDS if kind not in there]:
            text = (
                f"{place or 'it'} has no {' and no '.join(gone)} file, and no other save tells whether it had"
            )
            yield loss(text, c.path, sure=False)


# ---- verl: with FSDP global_step_N/actor/model_world_size_W_rank_R.pt, the optimizer and the other state of
# each rank, with Megatron actor/{model,optimizer,extra}/dist_ckpt; critic/ beside it, and the data loader's
# data.pt, which is written last. A trainer of one model saves its files without a directory, and data_D.pt
# for each data parallel rank.

_PLACES = ((f"{_HOME}/actor", "", ""), (f"{_HOME}/critic", "critic_", ""), (_HOME, "", "_alone"))
"""Where the files of a model lie, and what their roles begin and the names of their pieces end with."""
_DIST = "dist_ckpt"


def _find_lost_of_verl(c: Checkpoint, beside: Saves) -> Flaws:
    """What Megatron-core writes last into its directories, which an asynchronous save does after ``data.pt``;
    and files that only the saves ``beside`` it show: the places of ranks in their data, and the directories
    of Megatron-core that hold a state.
    """
    files = names_in(c)
    for home in sorted({name.rpartition("/")[0] for name in files if f"{_DIST}/" in name}):
        last = ".metadata", "metadata.json"
        for name in last if f"{home}/common.pt" in files else last[:1]:
            if f"{home}/{name}" not in files:
                text = f"there is no {home}/{name}, which is written last: without it nothing there is loaded"
                yield loss(text, c.path)
    yield from without_index(c, beside)
    yield from _find_lost_kinds(c, beside)

    def shown(o: Checkpoint) -> frozenset[str]:
        return frozenset(n for n in names_in(o) if n.startswith("data_") or n.endswith(f"{_DIST}/.metadata"))

    yield from without_names(c, beside, shown)


def _list_megatron(worker: str) -> Iterator[Piece]:
    """A directory for each kind of state (up to verl 0.7 one for all), and a model of Hugging Face's, which
    may be the only one.
    """
    for kind in ("model/", "optimizer/", "extra/", ""):
        home, mark = f"{kind}{_DIST}", f"_dist_{worker}{kind[:-1]}"
        yield from nest(home, dcp.PIECES, mark, role=f"{worker}{kind[:-1] or 'model'}")
        yield from nest(home, dcp.OF_MEGATRON, mark)
    for piece in nest("model/huggingface", model_pieces()):
        yield replace(piece, name=f"hf_{worker}{piece.name}", role=f"{worker}{piece.role}")


def _list_verl() -> Iterator[Piece]:
    for home, worker, mark in _PLACES:
        yield from nest(home, (*_list_fsdp(worker), _describe_fsdp(worker)), mark)
    for home, worker, mark in _PLACES:
        yield from nest(home, _list_megatron(worker), mark)
    data = Piece("data", "data", f"{_HOME}/data.pt", TORCH, unasked=True, claim=Claim.INSIDE)  # SkyRL's, too
    yield data
    yield replace(data, name="data_rank", template=f"{_HOME}/data_{{dp}}.pt")


VERL = Layout(
    name="verl",
    title="verl workers",
    pieces=tuple(_list_verl()),
    # the trainer's own overrides: a path alone is not looked at without the mode
    resume=resume_with("trainer.resume_mode=resume_path", "trainer.resume_from_path={path}"),
    check=check_all(dcp.without_common, without_metadata),
    lost=_find_lost_of_verl,
    tracker=replace(TRACKER, always=False),
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

# ---- SkyRL: with FSDP global_step_N/policy/model_world_size_W_rank_R.pt, the optimizer and the other state
# of each rank, with Megatron policy/__R_K.distcp and policy/metadata.json; critic/ beside it, data.pt and
# trainer_state.pt


def _find_lost_of_skyrl(c: Checkpoint, beside: Saves) -> Flaws:
    """What Megatron-core reads its files by, which an asynchronous save writes after ``trainer_state.pt``."""
    yield from _find_lost_kinds(c, beside)
    files = names_in(c)
    ends = ("distcp", "/common.pt")
    for place in sorted({name.rpartition("/")[0] for name in files if name.endswith(ends)}):
        for name in (".metadata", "metadata.json"):
            if f"{place}/{name}" not in files:
                yield loss(f"there is no {place}/{name}: it was never finished, or lost it", c.path)


def _list_skyrl() -> Iterator[Piece]:
    """Only ``policy/`` is SkyRL's alone: verl's saves have all other names as well."""
    for place, worker in (("policy", ""), ("critic", "critic_")):
        home, inside = f"{_HOME}/{place}", Claim.INSIDE if worker else Claim.SURE
        yield from nest(home, _list_fsdp(worker), claim=inside)
        yield from nest(home, [_describe_fsdp(worker)], claim=Claim.INSIDE)
        of_dcp = dcp.of_role(f"{worker}model", f"{worker}index")
        # a policy of DCP's alone may be anybody's
        claim = Claim.INSIDE if worker else Claim.COMPANION
        yield from nest(home, of_dcp, f"_{worker}core", claim=claim)
        for piece in nest(home, dcp.OF_MEGATRON, f"_{worker}core", required=True, claim=inside):
            yield replace(piece, role=f"{worker}{piece.role}")
    for name, file in (("data", "data"), ("trainer", "trainer_state"), ("async", "fully_async_state")):
        yield Piece(name, name, f"{_HOME}/{file}.pt", TORCH, unasked=True, claim=Claim.INSIDE)


SKYRL = Layout(
    name="skyrl",
    title="SkyRL workers",
    pieces=tuple(_list_skyrl()),
    resume=resume_with("trainer.resume_mode=from_path", "trainer.resume_path={path}"),
    check=check_all(dcp.without_common, partial(named_steps, read="global_step", role="trainer")),
    lost=_find_lost_of_skyrl,
    tracker=Tracker(file="latest_ckpt_global_step.txt", read=read_number, always=False),
    complete=Complete(commit="trainer", first=("model",), needs=("model",)),
    reference=(
        "skyrl/train/trainer.py save_checkpoints (policy, critic, data.pt, trainer_state.pt, the tracker), "
        "load_checkpoints; skyrl/backends/skyrl_train/distributed/fsdp_strategy.py, megatron/"
        "megatron_strategy.py save_checkpoint; skyrl/train/fully_async_trainer.py save_checkpoints"
    ),
    limits=(
        "of the files only trainer_state.pt says the step",
        "each rank loads with weights_only=False, and only as many ranks as have saved can load",
        "data.pt is written where the loader has a state: it is missed only beside saves that have it",
    ),
)
