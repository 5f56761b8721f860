"""For transformers: ``trainer.train(resume_from_checkpoint=checkpoint("out", allow_none=True))``."""

from __future__ import annotations

from typing import Any

from ckpt_tools.integrations.fitting import fitting, path_of
from ckpt_tools.storage.paths import Path

LAYOUTS = ("hf-trainer",)


def checkpoint(root: Path, **asked: Any) -> str | None:
    """The directory to resume from, below the trainer's ``output_dir``.

    ``asked`` is as in ``ckpt_tools.integrations.resume``; the result is None only with ``allow_none``, when
    there is no checkpoint.
    """
    return path_of(fitting(root, LAYOUTS, "Trainer.train", asked))
