"""What one rank resumes from."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ckpt_tools.job.decision import Decision


class Resumed(Struct, frozen=True):
    """The checkpoint that all ranks agreed on, and what this rank loads of it.

    ``path`` is what the framework is given: a directory, a prefix, or the one file that this rank loads; None
    if the rank loads several files and no directory holds only them. ``files`` are all files that it loads,
    verified. ``arguments`` and ``variables`` are for the framework's own scripts.
    """

    path: str | None
    files: tuple[str, ...]
    layout: str
    step: int | None = None
    epoch: int | None = None
    step_in_epoch: int | None = None
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] | None = None


def resumed_by(decision: Decision, rank: int | None) -> Resumed | None:
    """What a decision means for one rank; None where there is nothing to resume from."""
    if not decision.found:
        return None
    checkpoint, resume = decision.body["checkpoint"], decision.body.get("resume") or {}
    return Resumed(
        path=decision.path_of(rank),
        files=tuple(dict.fromkeys(decision.links(rank))),
        layout=str(checkpoint["layout"]),
        step=decision.step,
        epoch=checkpoint.get("epoch"),
        step_in_epoch=checkpoint.get("step_in_epoch"),
        arguments=tuple(resume.get("args") or ()),
        variables=dict(resume.get("env") or {}),
    )
