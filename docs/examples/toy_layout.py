"""Toy trainer: ``run/save-<step>/rank-<rank>.toy`` for every rank, and ``run/save-<step>/DONE``, written
last.
"""

from __future__ import annotations

from ckpt_tools.layouts import Layout, Piece
from ckpt_tools.layouts.common.layout import Complete
from ckpt_tools.layouts.common.piece import OWN, Changes
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import Resume


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(checkpoint.path)  # toy.load(directory): each rank finds its own file there


LAYOUT = Layout(
    name="toy",
    title="Toy trainer",
    pieces=(
        Piece("state", "model", "save-{step}/rank-{rank}.toy", ("toy",), readers=OWN),
        Piece("done", "done", "save-{step}/DONE", loaded=False, changes=Changes.MARK),
    ),
    resume=_resume,
    complete=Complete(commit="done"),
    reference="docs/examples/toy_layout.py",
    limits=("how many ranks there were is known by their files alone",),
)
