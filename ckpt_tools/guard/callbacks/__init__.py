"""Seals made in training: around a save, when an asynchronous save is done, and by framework callbacks."""

from __future__ import annotations

from ckpt_tools.guard.callbacks.saves import saving, seal_when_done

__all__ = ["saving", "seal_when_done"]
