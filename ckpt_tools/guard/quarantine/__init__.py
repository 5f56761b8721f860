"""Checkpoints out of their framework's sight, and back: renamed below ``.ckpt/quarantine``, never deleted."""

from __future__ import annotations

from ckpt_tools.guard.quarantine.away import quarantine
from ckpt_tools.guard.quarantine.back import listed, restore, undo

__all__ = ["listed", "quarantine", "restore", "undo"]
