"""``cp -r`` writes in the order of names, and ``save_10`` comes before ``save_9``: of saves under names that no
framework gives, no older one is chosen in silence.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from fixture_trees import CASES, materialise

from ckpt_tools.api import plan, scan
from ckpt_tools.errors import CkptError, UsageError

START = 1_760_000_000
OF_RUNS = {"basicsr", "nanochat", "nvrx-local"}
"""Whose saves lie in a directory that is a whole run's."""


def has_directories(case: Path) -> bool:
    """Whether the first question about a tree leads to a directory beside others."""
    asked = json.loads(case.read_text())["plans"][0]
    home = case.parent / "tree" / (asked.get("resume_path") or ".")
    beside = [path for path in home.parent.iterdir() if path.is_dir()]
    return not asked["options"] and home.name != "tree" and home.is_dir() and len(beside) > 1


TREES = {"/".join(case.parts[-3:-1]): case for case in CASES if has_directories(case)}


def renamed(root: Path, word: str) -> list[Path]:
    """The directories of its saves, oldest first, as ``word`` and a number, and with times in the order of
    their names.
    """
    newest = plan(str(root)).checkpoint
    assert newest is not None
    of_run = [c for c in scan(str(root)).checkpoints if c.run == newest.run and not c.unfinished]
    beside = [Path(c.path) for c in of_run if c.path == newest.path or c.order != newest.order]
    homes = [home for home in dict.fromkeys(reversed(beside)) if home.parent == Path(newest.path).parent]
    made = [home.rename(home.with_name(f"{word}{n}")) for n, home in enumerate(homes, 11 - len(homes))]
    for i, home in enumerate(sorted(made, key=str)):
        for path in [*home.rglob("*"), home]:
            os.utime(path, (START + i, START + i), follow_symlinks=False)
    return made


def test_an_older_one_whose_name_tells_its_step_changes_nothing(tmp_path: Path) -> None:
    root = materialise(TREES["paddle-dist/steps"], tmp_path)
    older, _ = renamed(root, "save_")
    shutil.copytree(older, root / "step_5")
    for path in (root / "step_5").iterdir():
        os.utime(path, (START - 9, START - 9))
    with pytest.raises(UsageError, match="a higher number in its name"):
        plan(str(root))


@pytest.mark.share(24)
@pytest.mark.parametrize("word", ["save_", "v"])
@pytest.mark.parametrize("tree", [name for name in sorted(TREES) if name.split("/")[0] not in OF_RUNS])
def test_no_older_one_is_chosen_in_silence(tree: str, word: str, tmp_path: Path) -> None:
    root = materialise(TREES[tree], tmp_path)
    before = {f.code for f in plan(str(root)).warnings}
    saves = renamed(root, word)
    try:
        made = plan(str(root))
    except CkptError:
        return
    assert made.checkpoint is not None
    told = {f.code for f in made.warnings} - before or made.rejected
    assert Path(made.checkpoint.path) == saves[-1] or (told and Path(made.checkpoint.path) in saves)
