"""Stable-Baselines3's CheckpointCallback: ``PREFIX_N_steps.zip``, and beside it the replay buffer and the
statistics of VecNormalize where they are kept; ``best_model.zip`` of EvalCallback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Layout, Metadata, Piece, Steps, whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.flaw import Flaw
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

_COUNT = "num_timesteps"


def _said(metadata: Metadata) -> int | None:
    return whole(metadata.get(_COUNT))


def _steps(part: Part, metadata: Metadata) -> Steps:
    return part.step if part.step is not None else _said(metadata), None, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from named_steps(parts, _said, _COUNT)


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    """What ``PPO.load`` takes; ``load_replay_buffer`` and ``VecNormalize.load`` take the files beside it."""
    return Resume(path or checkpoint.path)


def _beside(role: str) -> Piece:
    template = f"{{prefix}}_{role}_{{step}}_steps.pkl"
    return Piece(role, role, template, ("pickle_plain",), shared=True, single=True, unasked=True)


LAYOUT = Layout(
    name="stable-baselines3",
    title="Stable-Baselines3 callbacks",
    pieces=(
        Piece("model", "model", "{prefix}_{step}_steps.zip", ("zip_archive",), shared=True, single=True),
        replace(_beside("replay_buffer"), moves=True),
        _beside("vecnormalize"),  # may be frozen
        Piece(
            "best",
            "model",
            "best_model.zip",
            ("zip_archive",),
            kind=Kind.BEST,
            shared=True,
            single=True,
            weak=True,
            proof=_COUNT,
            step_from="content",
        ),
    ),
    resume=_resume,
    steps=_steps,
    check=_check,
    needs=("model",),
    reshardable=True,
    reference="stable_baselines3/common/callbacks.py CheckpointCallback, EvalCallback; common/save_util.py",
    limits=(
        "models under names of the user's own are zip archives of no known arrangement",
        "a replay buffer or statistics of another step look right where that step's are gone",
    ),
)
