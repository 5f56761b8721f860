"""Quarantine over the real trees of all layouts: what lies there is no candidate and exists all the same, and comes
back as it was.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import CASES, NAMED, materialise
from kill_points import files_of

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError, NoCheckpoint, UsageError
from ckpt_tools.guard.quarantine import quarantine, restore, undo
from ckpt_tools.model.selection import Selection

FIRST = {case.parent.parent.name: case for case in reversed(CASES)}
BY_DAY = [*FIRST.values()][1::3]
EACH = [
    pytest.param(c, marks=[] if c in BY_DAY else pytest.mark.exhaustive, id=name) for name, c in NAMED.items()
]
FRESH = Selection(settle=0, allow_none=True)


def answer(root: Path) -> tuple[Any, ...]:
    try:
        made = plan(root, FRESH)
    except CkptError as e:
        return (e.exit_code,)
    wrong = {f.code for f in made.warnings if f.code.endswith("-tracker")}
    return 0, made.checkpoint and made.checkpoint.path, made.checkpoint and made.checkpoint.label, wrong


@pytest.mark.share(6)
@pytest.mark.parametrize("case", EACH)
def test_away_and_back(case: Path) -> None:
    """All checkpoints of a tree, one after the other as they are chosen, and back in the reverse order."""
    with tempfile.TemporaryDirectory() as made:
        root = materialise(case, Path(made))
        before, answers = files_of(root), [answer(root)]
        trackers = answers[0][3] if answers[0][0] == 0 else set()
        while answers[-1][0] == 0 and answers[-1][1] is not None and len(answers) < 4:
            chosen = plan(root, FRESH).checkpoint
            assert chosen
            path = chosen.path if chosen.path != str(root) else chosen.parts[0].path
            if chosen.parts[0].home == str(root):
                with pytest.raises(UsageError, match=r"--root|as a whole"):
                    quarantine(str(root), [path], apply=True, selection=FRESH)
                break
            said = quarantine(str(root), [path], apply=True, selection=FRESH)
            assert any(c.state == "moved" for c in said.changes), said
            answers.append(answer(root))
            assert answers[-1][0] != 3 and answers[-1][:2] != (0, None), "it existed"
            assert answers[-1][:3] not in [one[:3] for one in answers[:-1]], "it was put away"
            assert answers[-1][0] or answers[-1][3] <= trackers
        while len(answers) > 1:
            answers.pop()
            undo(str(root), apply=True)
            assert answer(root) == answers[-1]
        assert files_of(root, state=False) == before


@pytest.mark.parametrize("case", [case for case in FIRST.values() if "megatron" in str(case)])
def test_restored_by_the_name_that_it_had(case: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = materialise(case, Path(made))
        before = files_of(root)
        chosen = plan(root, FRESH).checkpoint
        assert chosen
        quarantine(str(root), [chosen.path], apply=True, selection=FRESH)
        with pytest.raises(NoCheckpoint):
            quarantine(str(root), [chosen.path], apply=True, selection=FRESH)
        restore(str(root), [chosen.path], apply=True)
        after = files_of(root, state=False)
        assert after.keys() == before.keys()
        assert {k for k, v in after.items() if v != before[k]} <= {"latest_checkpointed_iteration.txt"}
