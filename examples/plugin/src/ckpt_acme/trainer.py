"""The Acme trainer: ``save-<step>/part-<rank>-of-<ranks>.acme``, and ``DONE``, which is written last."""

from __future__ import annotations

from ckpt_tools import Checkpoint, Resume
from ckpt_tools.layouts import Layout, Piece
from ckpt_tools.layouts.common.layout import Complete
from ckpt_tools.layouts.common.piece import OWN, Changes


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """Each rank finds its own file in the directory."""
    return Resume(checkpoint.path, ("--resume", checkpoint.path))


LAYOUT = Layout(
    name="acme",
    title="Acme trainer",
    pieces=(
        Piece("state", "model", "save-{step}/part-{rank}-of-{world}.acme", ("acme_tensors",), readers=OWN),
        Piece("done", "done", "save-{step}/DONE", loaded=False, changes=Changes.MARK),
    ),
    resume=_resume,
    complete=Complete(commit="done"),
    reference="the Acme trainer, save.c",
    limits=("the optimizer lies in the same file, and is not told apart",),
)
