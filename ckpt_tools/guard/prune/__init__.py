"""Old checkpoints removed, those that are worth keeping kept: which (policy), and which never go."""

from __future__ import annotations

from ckpt_tools.guard.prune.command import prune
from ckpt_tools.guard.prune.pins import pin
from ckpt_tools.guard.prune.policy import Policy

__all__ = ["Policy", "pin", "prune"]
