"""What SkyRL's workers save: with FSDP ``global_step_N/policy/model_world_size_W_rank_R.pt``, the optimizer
and the other state of each rank, with Megatron ``policy/__R_K.distcp`` and ``policy/metadata.json``;
``critic/`` beside it, ``data.pt`` and ``trainer_state.pt``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Complete, Layout, Tracker
from ckpt_tools.layouts.common.piece import Claim, Piece, nest
from ckpt_tools.layouts.verl import FORMATS, config_of, of_fsdp, without_kinds
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

_HOME = "global_step_{step}"


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from dcp.without_common(parts)
    yield from named_steps(parts, "global_step", role="trainer")


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    """What Megatron-core reads its files by, which an asynchronous save writes after ``trainer_state.pt``."""
    yield from without_kinds(c, beside)
    files = {p.path.removeprefix(f"{c.path}/") for p in c.parts}
    for place in sorted(
        {name.rpartition("/")[0] for name in files if name.endswith(("distcp", "/common.pt"))}
    ):
        for name in (".metadata", "metadata.json"):
            if f"{place}/{name}" not in files:
                text = f"there is no {place}/{name}: it was never finished, or lost it"
                yield Flaw("missing-part", text, path=c.path)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    path = checkpoint.path
    return Resume(path, ("trainer.resume_mode=from_path", f"trainer.resume_path={path}"))


def _pieces() -> Iterator[Piece]:
    """Only ``policy/`` is SkyRL's alone: verl's saves have all other names as well."""
    for place, worker in (("policy", ""), ("critic", "critic_")):
        home, inside = f"{_HOME}/{place}", Claim.INSIDE if worker else Claim.SURE
        yield from nest(home, of_fsdp(worker), claim=inside)
        yield from nest(home, [config_of(worker)], claim=Claim.INSIDE)
        of_dcp = dcp.of_role(f"{worker}model", f"{worker}index")
        # a policy of DCP's alone may be anybody's
        claim = Claim.INSIDE if worker else Claim.COMPANION
        yield from nest(home, of_dcp, f"_{worker}core", claim=claim)
        for piece in nest(home, dcp.OF_MEGATRON, f"_{worker}core", required=True, claim=inside):
            yield replace(piece, role=f"{worker}{piece.role}")
    for name, file in (("data", "data"), ("trainer", "trainer_state"), ("async", "fully_async_state")):
        yield Piece(name, name, f"{_HOME}/{file}.pt", FORMATS, unasked=True, claim=Claim.INSIDE)


LAYOUT = Layout(
    name="skyrl",
    title="SkyRL workers",
    pieces=tuple(_pieces()),
    resume=_resume,
    check=_check,
    lost=_lost,
    tracker=Tracker(file="latest_ckpt_global_step.txt", read=dcp.read_number, always=False),
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
