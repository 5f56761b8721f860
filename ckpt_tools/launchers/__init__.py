"""Who started us: LAUNCHERS in the order in which they are asked; the first that recognises its own variables answers."""

from __future__ import annotations

from collections.abc import Mapping

from ckpt_tools.launchers import torchrun
from ckpt_tools.launchers._base import Launcher, Started

LAUNCHERS: tuple[Launcher, ...] = (torchrun.LAUNCHER,)


def detect(env: Mapping[str, str]) -> Started | None:
    """What the launcher's variables say, or None when no launcher is recognised."""
    return next((s for launcher in LAUNCHERS if (s := launcher.detect(env)) is not None), None)


__all__ = ["LAUNCHERS", "Launcher", "Started", "detect"]
