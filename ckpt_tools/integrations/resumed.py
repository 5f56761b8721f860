"""What one rank resumes from."""

from __future__ import annotations

from collections.abc import Mapping

from ckpt_tools.job.decision import Decision
from ckpt_tools.model.frozen import frozen


@frozen
class Resumed:
    """The checkpoint that all ranks agreed on, as this rank is to load it.

    ``path`` is what the framework is given: a directory, a prefix, or the one file that this rank loads; None
    where it loads several and no directory holds them alone. ``files`` are all that it loads, verified, and
    ``arguments`` and ``variables`` what its framework's own scripts take.
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
