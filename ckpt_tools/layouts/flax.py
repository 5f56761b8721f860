"""Flax' own checkpoints, before Orbax: ``checkpoint_N`` is a file, and ``checkpoint_N_gda`` beside it holds
the arrays that lie on several hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.counters import named_steps
from ckpt_tools.layouts.common.layout import Layout, Metadata, Piece, whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.flaw import Flaw
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report


def _step(metadata: Metadata) -> int | None:
    return whole(metadata.get("step"))


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    yield from named_steps(parts, _step, "step")


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    return Resume(path or checkpoint.path)  # restore_checkpoint(path, target)


def _piece(name: str, template: str, *, unfinished: bool = False) -> Piece:
    """A file of which the name alone says little: Ray's and Orbax' directories are called so as well."""
    step_from = "name" if unfinished else "content"
    return Piece(
        name,
        "model",
        template,
        ("msgpack",),
        shared=True,
        weak=True,
        step_from=step_from,
        unfinished=unfinished,
    )


LAYOUT = Layout(
    name="flax",
    title="flax checkpoint_N",
    pieces=(_piece("file", "checkpoint_{step}"), _piece("temporary", "checkpoint_tmp", unfinished=True)),
    resume=_resume,
    check=_check,
    reshardable=True,
    compare_steps=False,
    reference=(
        "flax/training/checkpoints.py save_checkpoint(), save_checkpoint_multiprocess(), "
        "latest_checkpoint(): the highest; checkpoint_tmp is renamed when it is written"
    ),
    limits=(
        "a prefix of the script's own, and steps with a fraction, are files of no known arrangement",
        "a checkpoint_N that is gone is asked about only where an optimizer's arrays are left beside it",
    ),
)
