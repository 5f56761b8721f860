"""A file of a layout that tells its step, in whose place lies that of an older save: no job resumes with it in
silence.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from asked_plan import loads
from fixture_trees import TREES, materialise, overwrite
from memory import brief_directory
from places import LAYOUT_TREES

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level

_TELLS = ("last_epoch", "step", "global_step", "current_step", "optimizer_step", "iteration")
"""What files call the step that their name tells as well."""
_MAY_SKIP = ("last_epoch", "optimizer_step")
"""What of these is one less in a save of its own as well: an optimizer may have skipped a step."""


def _told(root: Path) -> tuple[str | None, frozenset[tuple[str, str | None]], frozenset[str]]:
    """What is resumed from, what is said, and what is loaded; nothing where nobody is told to start."""
    try:
        made = plan(str(root))
    except CkptError:
        return None, frozenset(), frozenset()
    said = frozenset((f.code, f.path) for f in made.warnings)
    return made.checkpoint and made.checkpoint.path, said, frozenset(f.path for f in loads(made))


def _pairs(root: Path, loaded: frozenset[str]) -> Iterator[tuple[Path, bytes]]:
    """Files that are loaded, and tell the step in their name, and what those of the save before hold that do so."""
    tells = dict[str, frozenset[str]]()
    for f in verify(str(root), level=Level.STRUCTURE).files:
        step = f.part and f.part.step
        name = f.report.path if f.part is None else f.part.home.rpartition("/")[2]
        numbers = [int(n) for n in re.findall(r"\d+", name)]
        told = frozenset(key for key in _TELLS if step and f.report.metadata.get(key) == step)
        tells[f.report.path] = told if step in numbers else frozenset()
    saves = sorted((c for c in scan(str(root)).checkpoints if c.kind is Kind.PERIODIC), key=lambda c: c.order)
    for older, newer in pairwise(saves):
        doubtful = frozenset(_MAY_SKIP if newer.step == (older.step or 0) + 1 else ())
        there = {(p.piece, p.rank, p.coords, p.path.removeprefix(p.home)): p for p in older.parts if p.home}
        for p in newer.parts:
            twin = there.get((p.piece, p.rank, p.coords, p.path.removeprefix(p.home)))
            if twin and p.path in loaded and tells.get(p.path, doubtful) - doubtful and tells.get(twin.path):
                yield Path(p.path), Path(twin.path).read_bytes()


def _exchanged(case: Path, most: int) -> list[str]:
    """Files of a case that were exchanged, and of which nothing was said."""
    silent = list[str]()
    with brief_directory() as top:
        root = materialise(case, top)
        before = _told(root)
        pairs = {mine.suffix: (mine, older) for mine, older in _pairs(root, before[2])} if before[0] else {}
        for mine, older in [*pairs.values()][:most]:
            data = mine.read_bytes()
            overwrite(mine, older, 0)
            after = _told(root)
            if str(mine) in after[2] and after[0] == before[0] and after[1] <= before[1]:
                silent.append(str(mine.relative_to(root)))
            overwrite(mine, data, 0)
    return silent


@pytest.mark.parametrize("most", [2, pytest.param(99, marks=pytest.mark.exhaustive)])
@pytest.mark.share(32)
@pytest.mark.parametrize("case", TREES)
def test_a_file_that_tells_its_step_is_not_exchanged_in_silence(case: Path, most: int) -> None:
    assert not _exchanged(case, most)


@pytest.mark.parametrize(
    ("tag", "as_tag"), [("global_step8", "global_step12"), ("global_step4", "global_step12")]
)
def test_a_tag_of_another_step_than_its_files_is_told(tag: str, as_tag: str, tmp_path: Path) -> None:
    """Engines call tags after their own count of steps; that of a copied or renamed one is another."""
    shutil.copytree(LAYOUT_TREES / "deepspeed/zero1/tree", tmp_path / "run")
    assert not _of_another_step(tmp_path / "run")
    (tmp_path / "run" / tag).rename(tmp_path / "run" / as_tag)
    assert _of_another_step(tmp_path / "run") == [as_tag]


def _of_another_step(run: Path) -> list[str]:
    """The directories in which files tell another step than their names."""
    files = verify(str(run)).files
    told = [f.report.path for f in files if any(x.code == "step-mismatch" for x in f.report.findings)]
    return [os.path.relpath(path, run).split("/")[0] for path in told]
