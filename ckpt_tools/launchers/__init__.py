"""Who started us: LAUNCHERS in the order in which they are asked; the first that recognises its own variables
answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from ckpt_tools.launchers import bare, kubernetes, mpi, msrun, slurm, torchrun
from ckpt_tools.launchers.launcher import Launcher, Started

LAUNCHERS: tuple[Launcher, ...] = (
    torchrun.LAUNCHER,
    msrun.LAUNCHER,
    slurm.LAUNCHER,
    mpi.LAUNCHER,
    kubernetes.LAUNCHER,
    bare.LAUNCHER,
)

_PLACES = ("slurm", "kubernetes")
"""They say where a process runs even when they did not start it: a rank that a later one knows for certain
then counts.
"""


def detect(env: Mapping[str, str]) -> Started | None:
    """What the launcher's variables say, or None when no launcher is recognised. Never raises."""
    answers = [s for launcher in LAUNCHERS if (s := launcher.detect(env)) is not None]
    if not answers:
        return None
    first = answers[0]
    if first.rank or first.launcher not in _PLACES:
        return first
    inner = next((s for s in answers[1:] if s.rank), None)
    if inner is None:
        return first
    return (
        inner if inner.job else replace(inner, job=first.job, job_from=first.job_from, restart=first.restart)
    )


def current() -> Started | None:
    """What the launcher of this process says, or None when no launcher is recognised."""
    return detect(os.environ)


__all__ = ["LAUNCHERS", "Launcher", "Started", "current", "detect"]
