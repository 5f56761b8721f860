"""Whether what was chosen is what the asking framework loads."""

from __future__ import annotations

from typing import Any

from ckpt_tools.errors import UsageError
from ckpt_tools.integrations.agreement import resume
from ckpt_tools.integrations.resumed import Resumed
from ckpt_tools.storage.paths import Path


def fitting(root: Path, layouts: tuple[str, ...], call: str, asked: dict[str, Any]) -> Resumed | None:
    """As ``resume``, with one of these layouts. Raises UsageError for another, which ``call`` cannot load."""
    found = resume(root, **asked)
    if found is not None and found.layout not in layouts:
        text = f"the checkpoint to resume from is of layout {found.layout}, which {call} does not load"
        known = " or ".join(layouts)
        hint = f"name the directory of its own checkpoints ({known}), or say layout={layouts[0]!r}"
        raise UsageError(text, hint)
    return found


def path_of(found: Resumed | None) -> str | None:
    """What is handed on. Raises UsageError where this rank loads several files that no one path names."""
    if found is None:
        return None
    if found.path is None:
        text = f"this rank loads {len(found.files)} files, and no one path names them alone"
        raise UsageError(text, "build one tree of them with 'ckpt run --view DIR'; resume() lists the files")
    return found.path
