"""For DeepSpeed: ``model_engine.load_checkpoint(**checkpoint("out"))``."""

from __future__ import annotations

from typing import Any, TypedDict

from ckpt_tools.integrations.agreement import resume_fitting
from ckpt_tools.storage.paths import Path


class Arguments(TypedDict):
    """The arguments for ``load_checkpoint``. DeepSpeed then follows the tag, and not the file ``latest``."""

    load_dir: str
    tag: str


def checkpoint(root: Path, **asked: Any) -> Arguments | None:
    """Return the directory and the tag to resume from.

    ``asked`` is as in ``ckpt_tools.integrations.resume``; the result is None only with ``allow_none``, when
    there is no checkpoint.
    """
    found = resume_fitting(root, ("deepspeed", "deepspeed-universal"), "load_checkpoint", asked)
    if found is None:
        return None
    variables = found.variables or {}
    return Arguments(load_dir=variables["CKPT_LOAD_DIR"], tag=variables["CKPT_TAG"])
