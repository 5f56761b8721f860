"""What Algorithm.save_to_path() of RLlib writes: a tree of small pickles below a directory of any name."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from timed import put

from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import UsageError
from ckpt_tools.model.finding import Verdict

FILES = (
    "rllib_checkpoint.json",
    "algorithm_state.pkl",
    "class_and_ctor_args.pkl",
    "env_runner/state.pkl",
    "learner_group/learner/state.pkl",
    "learner_group/learner/rl_module/default_policy/module_state.pkl",
)


def saved(root: Path) -> Path:
    """Two saves, as ray 2.60 names their files."""
    for number in (1, 2):
        for name in FILES:
            path = root / f"iter_{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            constant = name.endswith(("args.pkl", ".json"))
            told = {"state": [0 if constant else number, name]}
            put(
                path,
                b'{"checkpoint_version": "2.1"}' if name.endswith("json") else pickle.dumps(told),
                1_735_700_000 + 60 * number,
            )
    return root


@pytest.mark.slow
def test_a_directory_of_components_is_one_checkpoint(tmp_path: Path) -> None:
    root = saved(tmp_path / "algo")
    assert verify(root, settle=0).verdict is Verdict.OK
    for asked in (root, root / "iter_2"):
        made = plan(asked)
        assert made.resume.path == str(root / "iter_2")
        assert {f.path for f in made.shared} == {str(root / "iter_2" / name) for name in FILES}


@pytest.mark.parametrize("gone", [*((name,) for name in FILES), *(FILES[:n] for n in range(2, 6))])
def test_components_that_are_gone_are_missed(gone: tuple[str, ...], tmp_path: Path) -> None:
    root = saved(tmp_path / "algo")
    for name in gone:
        (root / "iter_2" / name).unlink()
    made = plan(root)
    assert made.resume.path == str(root / "iter_1")
    assert [(r.checkpoint.path, r.findings[0].code) for r in made.rejected] == [
        (str(root / "iter_2"), "missing-part")
    ]


@pytest.mark.parametrize("counted", [True, False])
def test_times_of_a_copy_do_not_make_an_older_save_the_newest(counted: bool, tmp_path: Path) -> None:
    """The algorithm counts its iterations; where it does not, the names contradict the times."""
    root = saved(tmp_path / "algo")
    for number in (1, 2):
        home = root / f"iter_{number}"
        if counted:
            (home / "algorithm_state.pkl").write_bytes(pickle.dumps({"training_iteration": number}))
        for path in (p for p in home.rglob("*") if p.is_file()):
            os.utime(path, (1_735_700_000 - number,) * 2)
    if counted:
        assert {c.step for c in scan(root).checkpoints} == {1, 2}
        assert plan(root).resume_step == 2
    else:
        with pytest.raises(UsageError, match="it is unclear which checkpoint is the newest"):
            plan(root)


@pytest.mark.parametrize("called", ["iter_{}", "PPO_0_0/checkpoint_00000{}"])
def test_a_policy_is_no_run_of_its_own(called: str, tmp_path: Path) -> None:
    """Before ray 2.40 an algorithm has a directory for each policy, with the mark of a checkpoint in it."""
    names = {"algorithm_state.pkl", "policies/main/policy_state.pkl"}
    marks = {"rllib_checkpoint.json", "policies/main/rllib_checkpoint.json"}
    for number in (1, 2):
        home = tmp_path / called.format(number)
        for name in names | marks:
            put(
                home / name,
                b"{}" if name in marks else pickle.dumps({"state": [number, name]}),
                1_735_700_000 + 60 * number,
            )
    made = plan(tmp_path)
    assert made.resume.path == str(home)
    assert {os.path.relpath(f.path, home) for f in made.shared} == names | marks


def test_what_rllib_makes_its_parts_from_is_known_and_an_empty_state_is_in_every_save(tmp_path: Path) -> None:
    """Its configurations are pickled as objects; a connector without a state as an empty dict."""
    root = saved(tmp_path / "algo")
    names = [
        ("ray.rllib.algorithms.ppo.ppo", "PPOConfig"),
        ("ray.rllib.core.rl_module.multi_rl_module", "MultiRLModuleSpec"),
        ("ray.rllib.algorithms.evil", "run"),
    ]
    made = ["".join(f"c{module}\n{name}\n)\x81" for module, name in some) for some in (names[:2], names)]
    for number, home in enumerate(sorted(root.iterdir())):
        (home / "learner_group/state.pkl").write_bytes(pickle.dumps({}))
        (home / "class_and_ctor_args.pkl").write_bytes(f"\x80\x02({made[0]}t.".encode("latin-1"))
        for path in (p for p in home.rglob("*") if p.is_file()):
            os.utime(path, (1_735_700_000 + 60 * number,) * 2)
    assert not plan(root).warnings
    (args := home / "class_and_ctor_args.pkl").write_bytes(f"\x80\x02({made[1]}t.".encode("latin-1"))
    os.utime(args, (1_735_700_000 + 60,) * 2)
    (told,) = plan(root).warnings
    assert told.code == "suspect-call" and "ray.rllib.algorithms.evil.run" in told.message
