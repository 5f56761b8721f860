"""Quarantine over the real trees of all layouts: what lies there is no candidate and exists all the same, and comes
back as it was.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from fixture_trees import CASES, materialise
from kill_points import files_of

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError, NoCheckpoint, UsageError
from ckpt_tools.guard.quarantine import quarantine, restore, undo
from ckpt_tools.model.selection import Selection

FIRST = {case.parent.parent.name: case for case in reversed(CASES)}
EACH = [
    pytest.param(
        case,
        marks=[] if case in [*FIRST.values()][1::3] else pytest.mark.exhaustive,
        id=f"{case.parent.parent.name}/{case.parent.name}",
    )
    for case in CASES
]
FRESH = Selection(settle=0, allow_none=True)


def answer(root: Path) -> tuple[object, ...]:
    try:
        made = plan(root, FRESH)
    except CkptError as e:
        return (e.exit_code,)
    return 0, made.checkpoint.path if made.checkpoint else None, made.checkpoint and made.checkpoint.label


def wrong_trackers(root: Path) -> set[str]:
    """What is wrong with trackers, where a checkpoint is chosen."""
    try:
        found = plan(root, FRESH)
    except CkptError:
        return set()
    return {f.code for f in found.warnings if f.code.endswith("-tracker")} if found.checkpoint else set()


@pytest.mark.share(6)
@pytest.mark.parametrize("case", EACH)
def test_away_and_back(case: Path) -> None:
    """All checkpoints of a tree, one after the other as they are chosen, and back in the reverse order."""
    with tempfile.TemporaryDirectory() as made:
        root = materialise(case, Path(made))
        before, answers, trackers = files_of(root), [answer(root)], wrong_trackers(root)
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
            assert answers[-1][0] != 3 and answers[-1] != (0, None, None), "it existed"
            assert answers[-1] not in answers[:-1], "it was put away"
            assert wrong_trackers(root) <= trackers
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
        assert {k: v for k, v in after.items() if k in before and v != before[k]}.keys() <= {
            "latest_checkpointed_iteration.txt"
        }
        assert after.keys() == before.keys()
