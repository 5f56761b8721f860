"""A save whose directory still has the name of one under way is never what a job resumes from."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from fixture_trees import CASES, materialise, tree_of

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError, NotRecognised
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection

OF_RUNS = {"basicsr", "nanochat", "nvrx-local"}
"""Whose saves lie in a directory that is a whole run's, and may have any name."""
ENDS = ("{}.tmp", "{}.incomplete", "{}.tmp-9f3a", "{}.partial")


def has_directories(case: Path) -> bool:
    """Whether the first question about a tree leads to a directory."""
    asked = json.loads(case.read_text())["plans"][0]
    path = asked.get("resume_path") or "."
    return not asked["options"] and path != "." and (case.parent / "tree" / path).is_dir()


LAYOUTS = {case.parts[-3]: case for case in CASES if has_directories(case)}
"""One tree of each layout whose saves are directories."""


def told(made: LoadPlan) -> set[tuple[str, str | None]]:
    found = [*made.warnings, *(f for r in made.rejected for f in r.findings)]
    return {(f.code, f.path) for f in found}


@pytest.mark.share(12)
@pytest.mark.parametrize(("layout", "name"), [*itertools.product(sorted(LAYOUTS.keys() - OF_RUNS), ENDS)])
def test_a_save_that_was_not_renamed_is_not_chosen(layout: str, name: str, tmp_path: Path) -> None:
    root = materialise(LAYOUTS[layout], tmp_path)
    whole = plan(str(root))
    assert whole.checkpoint is not None
    home = Path(whole.checkpoint.path)
    marked = home.rename(home.with_name(name.format(home.name)))
    try:
        made = plan(str(root))
    except CkptError:
        return
    assert made.checkpoint is not None and Path(made.checkpoint.path) != marked
    assert told(made) - told(whole), "an older one is chosen without a word"


@pytest.mark.parametrize("tree", ["dcp/two", "orbax/standard", "torchsnapshot/steps"])
def test_the_only_save_left_is_no_first_launch(tree: str, tmp_path: Path) -> None:
    """Who writes aside and renames may have removed the one before."""
    root = tree_of(tree, tmp_path)
    whole = plan(str(root)).checkpoint
    assert whole is not None
    alone = tmp_path / "alone" / f"{Path(whole.path).name}.tmp"
    alone.parent.mkdir()
    Path(whole.path).rename(alone)
    with pytest.raises(NotRecognised, match="has all files of a save"):
        plan(str(alone.parent), Selection(allow_none=True))
