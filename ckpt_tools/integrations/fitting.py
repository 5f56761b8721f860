"""What a framework's own loading call is handed, where what was chosen is what that framework loads."""

from __future__ import annotations

from typing import Any, Protocol

from ckpt_tools.errors import UsageError
from ckpt_tools.integrations.agreement import Resumed, resume
from ckpt_tools.storage.urls import Path


class Checkpoint(Protocol):
    """``asked`` is as in ``ckpt_tools.integrations.resume``; the result is None only with ``allow_none``,
    when there is no checkpoint.
    """

    def __call__(self, root: Path, **asked: Any) -> str | None: ...


def path_for(call: str, *layouts: str) -> Checkpoint:
    """Return the function that finds the path that ``call`` of a framework is given."""

    def checkpoint(root: Path, **asked: Any) -> str | None:
        found = resume_fitting(root, layouts, call, asked)
        if found is not None and found.path is None:
            text = f"this rank loads {len(found.files)} files, and no one path names them alone"
            hint = "build one tree of them with 'ckpt run --view DIR'; resume() lists the files"
            raise UsageError(text, hint)
        return None if found is None else found.path

    checkpoint.__doc__ = f"Return what {call} resumes from. {Checkpoint.__doc__}"
    return checkpoint


def resume_fitting(root: Path, layouts: tuple[str, ...], call: str, asked: dict[str, Any]) -> Resumed | None:
    """As ``resume``, with one of these layouts. Raises UsageError for another, which ``call`` cannot load."""
    found = resume(root, **asked)
    if found is not None and found.layout not in layouts:
        text = f"the checkpoint to resume from is of layout {found.layout}, which {call} does not load"
        known = " or ".join(layouts)
        hint = f"name the directory of its own checkpoints ({known}), or pass layout={layouts[0]!r}"
        raise UsageError(text, hint)
    return found
