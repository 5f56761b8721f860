"""ms-swift's saves with Megatron, each of which lies in a directory that counts the step as well."""

from __future__ import annotations

from pathlib import Path

from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.planning.equal_files import place
from ckpt_tools.reading.session import Session


def tree(tmp_path: Path) -> Path:
    return materialise(LAYOUT_TREES / "ms-swift/exported/expected.json", tmp_path)


def test_files_are_compared_with_those_of_the_save_before(tmp_path: Path) -> None:
    """Although the directory that they lie in is called after the step, too."""
    session = Session(str(tree(tmp_path)), ReadOptions())
    assert len(session.parts) == 12
    assert len({place(p) for p in session.parts}) == 6
