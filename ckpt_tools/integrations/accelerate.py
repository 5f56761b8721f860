"""For Accelerate: ``accelerator.load_state(checkpoint("checkpoints"))``.

Do not call ``load_state`` with None: it would take the newest of its own checkpoints, unverified.
"""

from __future__ import annotations

from typing import Any

from ckpt_tools.integrations.fitting import fitting, path_of
from ckpt_tools.storage.paths import Path

LAYOUTS = ("accelerate",)


def checkpoint(root: Path, **asked: Any) -> str | None:
    """The directory that ``save_state`` wrote.

    ``asked`` is as in ``ckpt_tools.integrations.resume``; the result is None only with ``allow_none``, when
    there is no checkpoint.
    """
    return path_of(fitting(root, LAYOUTS, "Accelerator.load_state", asked))
