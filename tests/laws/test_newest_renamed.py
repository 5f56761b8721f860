"""A newest save under a name that its writer gives what it sets aside, or has not finished, and nothing beside
it that it was: what is planned instead is told, and nothing is started afresh without a word.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fixture_trees import CASES, TREES, materialise, selection

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection

ENDINGS = ("_old", ".old", ".bak", ".1", ".partial", ".part", ".incomplete", ".prev", ".tmp", "_backup", "~")
UNSEEN = {
    "easylm/streams": "the other one is of the same step",
    "lightning/versions": "so it is here",
    "keras/callback": "the caller asks for another prefix",
    "openrlhf/ppo": "all files in it were renamed, and not the directory of the save",
    "paddle-dist/ids": "they begin as pickles do, under a name of other files",
    "stable-baselines3/dqn": "an archive that only its name tells",
    "stable-baselines3/ppo": "so it is here",
}
"""Fixture -> why a newest save of another name is not told."""


def newest(root: Path, asked: Selection) -> list[Path]:
    """What the newest save consists of in the directories of its run: its own directory, or its files; none
    where it is all that ROOT leads to.
    """
    try:
        chosen = plan(str(root), asked).checkpoint
    except CkptError:
        return []
    found = {p.home or p.path for p in chosen.parts} if chosen else set()
    return [] if str(root) in found else [Path(path) for path in sorted(found)]


def says(made: LoadPlan) -> set[str]:
    findings = (*made.warnings, *(f for r in made.rejected for f in r.findings))
    return {text for f in findings for text in (f.path, f.message) if text}


@pytest.mark.share(24)
@pytest.mark.parametrize("case", TREES)
def test_it_is_named_where_an_older_one_is_planned(case: Path, tmp_path: Path) -> None:
    question = next((q for q in json.loads(case.read_text())["plans"] if "error" not in q), {})
    root = materialise(case, tmp_path) / question.get("root", ".")
    asked = selection(question.get("options", {}) | {"allow_none": True})
    found = newest(root, asked)
    if "/".join(case.parts[-3:-1]) in UNSEEN or not all(map(os.path.lexists, found)):
        return
    ending = ENDINGS[CASES.index(case) % len(ENDINGS)]
    renamed = [path.rename(path.with_name(path.name + ending)) for path in found]
    try:
        made = plan(str(root), asked)
    except CkptError:
        return
    loaded = [p.path for p in made.checkpoint.parts] if made.checkpoint else []
    itself = any(p.startswith(str(path)) for p in loaded for path in renamed)
    assert itself or not renamed or any(path.name in text for text in says(made) for path in renamed), says(
        made
    )
