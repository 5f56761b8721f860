"""For Lightning: ``trainer.fit(model, ckpt_path=checkpoint("checkpoints", allow_none=True))``."""

from __future__ import annotations

from typing import Any

from ckpt_tools.integrations.fitting import fitting, path_of
from ckpt_tools.storage.paths import Path

LAYOUTS = ("lightning",)


def checkpoint(root: Path, **asked: Any) -> str | None:
    """The file to resume from, or the directory of a sharded checkpoint.

    ``asked`` is as in ``ckpt_tools.integrations.resume``; the result is None only with ``allow_none``, when
    there is no checkpoint.
    """
    return path_of(fitting(root, LAYOUTS, "Trainer.fit", asked))
