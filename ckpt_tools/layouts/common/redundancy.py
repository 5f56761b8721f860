"""Files of MindSpore that hold only a part of what their rank had, because other ranks hold the rest."""

from __future__ import annotations

from ckpt_tools.layouts.common.layout import Metadata


def why_partial(metadata: Metadata) -> str:
    """Why a file is no replica of any other, as its own metadata tell; "" where they do not."""
    if metadata.get("remove_redundancy") == "True":
        return "it was saved with remove_redundancy and lacks what other ranks hold"
    return ""
