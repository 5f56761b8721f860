"""Stable-Baselines3's CheckpointCallback: ``PREFIX_N_steps.zip``, and beside it the replay buffer and the
statistics of VecNormalize where they are kept; ``best_model.zip`` of EvalCallback.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Compared, Complete, Layout, Metadata, Steps, resume_file, whole
from ckpt_tools.layouts.common.piece import COPIES, Changes, Claim, Content, Piece
from ckpt_tools.model.part import Kind, Part

_COUNT = "num_timesteps"


def _said(metadata: Metadata) -> int | None:
    return whole(metadata.get(_COUNT))


def _steps(part: Part, metadata: Metadata) -> Steps:
    return part.step if part.step is not None else _said(metadata), None, None


def _beside(role: str) -> Piece:
    template = f"{{prefix}}_{role}_{{step}}_steps.pkl"
    return Piece(role, role, template, ("pickle_plain",), readers=COPIES, unasked=True)


_BEST = Piece("best", "model", "best_model.zip", ("zip_archive",), Kind.BEST, COPIES)
LAYOUT = Layout(
    name="stable-baselines3",
    title="Stable-Baselines3 callbacks",
    pieces=(
        Piece("model", "model", "{prefix}_{step}_steps.zip", ("zip_archive",), readers=COPIES),
        replace(_beside("replay_buffer"), changes=Changes.MOVES),
        _beside("vecnormalize"),  # may be frozen
        replace(_BEST, claim=Claim.WEAK, content=Content(step=True, proof=_COUNT)),
    ),
    # what ``PPO.load`` takes; ``load_replay_buffer`` and ``VecNormalize.load`` take the files beside it
    resume=resume_file,
    steps=_steps,
    check=partial(named_steps, read=_said, what=_COUNT),
    complete=Complete(needs=("model",)),
    compared=Compared.BY_PIECE,
    reshardable=True,
    reference="stable_baselines3/common/callbacks.py CheckpointCallback, EvalCallback; common/save_util.py",
    limits=(
        "models under names of the user's own are zip archives of no known arrangement",
        "a replay buffer or statistics of another step look right where that step's are gone",
    ),
)
