"""For MindSpore: ``mindspore.load_checkpoint(checkpoint("checkpoints"), net)``."""

from __future__ import annotations

from typing import Any

from ckpt_tools.integrations.fitting import fitting, path_of
from ckpt_tools.storage.paths import Path

LAYOUTS = ("mindspore", "mindio-ttp")


def checkpoint(root: Path, **asked: Any) -> str | None:
    """The file that this rank loads: its own, or that of a rank that holds the same state.

    ``asked`` is as in ``ckpt_tools.integrations.resume``; the result is None only with ``allow_none``, when
    there is no checkpoint.
    """
    return path_of(fitting(root, LAYOUTS, "load_checkpoint", asked))
