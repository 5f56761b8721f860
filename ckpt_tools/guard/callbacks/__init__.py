"""Seals made in training: around a save, when an asynchronous one is done, and by callbacks of frameworks."""

from __future__ import annotations

from ckpt_tools.guard.callbacks.saves import saving, seal_when_done

__all__ = ["saving", "seal_when_done"]
