"""A last save when training fails, and which checkpoint to resume from, as in Ascend's ``mindx_elastic``.

docs/elastic.md says what is reproduced and what differs on purpose. Nothing here imports torch.
"""

from __future__ import annotations

from ckpt_tools.elastic.exception_checkpoint import ExceptionCheckpoint, Terminated

__all__ = ["ExceptionCheckpoint", "Terminated", "exception_checkpoint"]

exception_checkpoint: ExceptionCheckpoint


def __getattr__(name: str) -> object:
    """Make ``exception_checkpoint`` only when it is asked for: the variables that it reads may be wrong."""
    if name != "exception_checkpoint":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made = ExceptionCheckpoint()
    return made
