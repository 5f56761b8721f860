"""For torch.distributed.checkpoint: ``dcp.load(state, checkpoint_id=checkpoint("checkpoints"))``."""

from __future__ import annotations

from typing import Any

from ckpt_tools.integrations.fitting import fitting, path_of
from ckpt_tools.storage.paths import Path

LAYOUTS = ("dcp",)


def checkpoint(root: Path, **asked: Any) -> str | None:
    """The directory that ``dcp.save`` wrote.

    ``asked`` is as in ``ckpt_tools.integrations.resume``; the result is None only with ``allow_none``, when
    there is no checkpoint.
    """
    return path_of(fitting(root, LAYOUTS, "dcp.load", asked))
