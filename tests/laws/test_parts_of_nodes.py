"""What one node of a job has of its saves where each keeps what its own ranks wrote: neither a save that never
finished nor a first launch. And saves that a copy has left all hidden files out of.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from fixture_trees import TREES, materialise, tree_of
from told_trees import Question, hold, table
from two_nodes import run_each

from ckpt_tools import cli
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.layouts import BUILT_IN, COORDS
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.selection import Selection

FIRST = Selection(allow_none=True)
SETTLED = time.time() - 3600


def later(p: Part) -> bool:
    """Whether a file is of another rank than 0, by its name."""
    if p.rank is not None:
        return p.rank > 0
    return any(at for axis, at in p.coords if axis in COORDS)


def of_later_ranks(c: Checkpoint) -> list[Part]:
    """The files that a node without rank 0 has of a save, where no replica of them is enough."""
    parts = [p for p in c.parts if later(p)]
    readers = [BUILT_IN.piece_of(p).readers for p in parts]
    return parts if all(r.sharded or r.shared or r.survivable for r in readers) else []


def leave(root: Path, kept: Iterable[str]) -> None:
    """Remove all files but those, and the directories that are empty then."""
    left = set(kept)
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif str(path) not in left:
            path.unlink()


def second_node(case: str, target: Path) -> Path:
    """What the second node has of all saves."""
    root = tree_of(case, target)
    leave(root, [p.path for c in scan(str(root)).checkpoints for p in of_later_ranks(c)])
    return root


def told(error: CkptError) -> list[Finding]:
    assert error.plan is not None
    return [*(f for r in error.plan.rejected for f in r.findings), *error.plan.warnings]


@pytest.mark.share(6)
@pytest.mark.parametrize("case", TREES)
def test_files_of_later_ranks_alone_are_another_nodes_save(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    saves = [c for c in scan(str(root)).checkpoints if not (c.unfinished or BUILT_IN.of(c).complete.by_name)]
    kept = next((parts for c in reversed(saves) if (parts := of_later_ranks(c))), [])
    if not kept:
        return
    leave(root, [p.path for p in kept])
    with pytest.raises(NoneUsable) as caught:
        plan(str(root), FIRST)
    errors = [f for f in told(caught.value) if f.severity is Severity.ERROR]
    assert {f.code for f in errors if not f.follows} == {"missing-rank"} and errors[0].ranks[0][0] == 0
    assert "another node's disk" in caught.value.hint
    assert not any("wait if its job" in f"{f.hint} {caught.value.hint}" for f in told(caught.value))
    assert verify([str(root)]).verdict is Verdict.BROKEN


@pytest.mark.parametrize("case", ["verl/ppo", "dcp/two", "hf-trainer/sharded", "deepspeed/zero1"])
def test_what_is_missing_is_said_and_how_all_nodes_decide(case: str, tmp_path: Path) -> None:
    root = second_node(case, tmp_path)
    with pytest.raises(NoneUsable) as caught:
        plan(str(root))
    assert "rank 0" in caught.value.hint and "in one directory that every node sees" in caught.value.hint
    assert ("ckpt run --agree" in caught.value.hint) == (case not in ("dcp/two", "hf-trainer/sharded"))
    assert "--replica-groups" not in caught.value.hint


TABLE = table(
    """
    # The only save may be one that its job died in; without rank 0 it is another node's.
    dcp/two
        only step-10; only step-10/__0_0.distcp -> nothing +unfinished-save
        only step-10; only step-10/__1_0.distcp -> exit 4 choice/none-usable -missing-rank
        rm step-20/.metadata -> step-10 +unfinished-save => suspect unfinished-save
        only step-20; rm step-20/.metadata -> nothing +unfinished-save => broken unfinished-save
    dcp/seed
        rm */.metadata -> nothing +unfinished-save => broken unfinished-save
    # TensorFlow calls its tracker as T5X calls the index of a save.
    t5x/steps
        only checkpoint_20; only checkpoint_20/checkpoint -> exit 2 tree/first-launch-leftovers +missing-part
        only checkpoint_20; only checkpoint_20/checkpoint; put checkpoint_20/checkpoint model_checkpoint_path: "model.ckpt-20"
            -> exit 4 tree/first-launch-leftovers +dangling-tracker
    """,
    "allow_none=yes",
)


@pytest.mark.parametrize(("tree", "asked"), TABLE)
def test_what_is_left_of_a_save(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


def test_two_nodes_with_disks_of_their_own_agree(tmp_path: Path) -> None:
    disks = [tree_of("verl/ppo", tmp_path / "0"), second_node("verl/ppo", tmp_path / "1")]
    saves = scan(str(disks[0])).checkpoints
    second = {p.path for c in saves for p in of_later_ranks(c)}
    for path in second:
        Path(path).unlink()
    for root in disks:
        with pytest.raises(NoneUsable):
            plan(str(root))
    answers = run_each(disks, 2, tmp_path)
    assert [(code, env.get("CKPT_STEP")) for code, env, _ in answers] == [(0, "20")] * 2, answers


@pytest.mark.parametrize("young", [True, False])
def test_only_a_young_save_is_waited_for(
    young: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tree_of("dcp/two", tmp_path)
    (root / "step-20/.metadata").unlink()
    for path in (root / "step-20").iterdir():
        os.utime(path, (time.time() if young else SETTLED,) * 2)
    for command in ("plan", "verify"):
        assert cli.execute([command, str(root), "--settle", "600s"]) == 0
        out = capfd.readouterr().out
        assert "unfinished-save" in out and ("wait if its job" in out) == young


@pytest.mark.share(6)
@pytest.mark.parametrize("case", TREES)
def test_saves_without_all_their_hidden_files_are_neither_chosen_nor_good(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    finished = [c for c in scan(str(root)).checkpoints if not c.unfinished]
    hidden = [p for c in finished for p in c.parts if p.name.startswith(".")]
    if len({p.home for p in hidden}) < max(len(finished), 2):
        return
    for part in hidden:
        Path(part.path).unlink()
    for selection in (Selection(), FIRST):
        with pytest.raises(CkptError) as caught:
            plan(str(root), selection)
        assert caught.value.exit_code in (2, 4)
        assert "--allow none to start from nothing" not in caught.value.hint
        assert not any("wait if its job" in f.hint or f.code == "bad-tracker" for f in told(caught.value))
    assert verify([str(root)]).verdict is Verdict.BROKEN


@pytest.mark.parametrize("case", ["dcp/two", "t5x/steps", "levanter/steps", "torchsnapshot/steps"])
def test_hidden_files_that_a_copy_left_out_are_named(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tree_of(case, tmp_path)
    for path in [p for p in root.rglob(".*") if p.is_file()]:
        path.unlink()
    for command, code in (("plan", 2), ("verify", 1)):
        assert cli.execute([command, str(root)]) == code
        assert "left hidden files out; copy again with 'cp -a'" in "".join(capfd.readouterr())
