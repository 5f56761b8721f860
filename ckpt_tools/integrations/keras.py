"""For Keras: ``keras.models.load_model(checkpoint("models"))``; ``model.load_weights`` for weights alone."""

from __future__ import annotations

from typing import Any

from ckpt_tools.integrations.fitting import fitting, path_of
from ckpt_tools.storage.paths import Path

LAYOUTS = ("keras",)


def checkpoint(root: Path, **asked: Any) -> str | None:
    """The file that ``ModelCheckpoint`` or ``model.save`` wrote.

    ``asked`` is as in ``ckpt_tools.integrations.resume``; the result is None only with ``allow_none``, when
    there is no checkpoint.
    """
    return path_of(fitting(root, LAYOUTS, "Keras", asked))
