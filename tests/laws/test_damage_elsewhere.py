"""Damage in a save that is older than the one that is chosen is no question about that one: whatever happens to
one of its files, the same is chosen and loaded.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
from fixture_trees import TREES, materialise, one_of_each, overwrite

from ckpt_tools.api import plan, scan
from ckpt_tools.errors import CkptError
from ckpt_tools.model.checkpoint import Checkpoint


def answer(root: Path) -> tuple[int, str, frozenset[str]]:
    """The exit code, what is resumed from or why nothing is, and the files that are loaded."""
    try:
        made = plan(root)
    except CkptError as e:
        return e.exit_code, str(e), frozenset()
    loaded = (*made.shared, *(f for r in made.ranks for f in r.files))
    return 0, made.checkpoint.path if made.checkpoint else "", frozenset(f.path for f in loaded)


def files_of_older(root: Path, loaded: frozenset[str], *, each: bool) -> list[Path]:
    """Files of saves that are older than the choice, none of which it loads; unless ``each``, one of a role."""
    chosen = plan(root).checkpoint
    assert chosen is not None

    def is_older(c: Checkpoint) -> bool:
        return not c.unfinished and c.path != chosen.path and c.mtime_ns < chosen.mtime_ns

    taken = loaded | {p.path for p in chosen.parts}
    older = [p for c in scan(root).checkpoints if is_older(c) for p in c.parts if p.path not in taken]
    ones = {p.path if each else (p.layout, p.role): Path(p.path) for p in older}
    return [path for path in ones.values() if path.is_file() and path.stat().st_size]


@pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.share(3)
@pytest.mark.parametrize("case", one_of_each(TREES))
def test_damage_in_an_older_save_leaves_the_choice_as_it_was(case: Path, each: bool, tmp_path: Path) -> None:
    """One file after the other is damaged: each in all ways, or in one of them, which take turns."""
    root = materialise(case, tmp_path)
    code, path, loaded = before = answer(root)
    files = files_of_older(root, loaded, each=each) if code == 0 and path else ()
    for turn, file in enumerate(files, zlib.crc32(case.parent.name.encode())):
        data = file.read_bytes()
        ways = (bytes(len(data)), data[: len(data) // 2], b"")
        for damaged in ways if each else ways[turn % 3 :][:1]:
            overwrite(file, damaged, 0)
            assert answer(root) == before, (os.path.relpath(file, root), len(damaged))
        overwrite(file, data, 0)
