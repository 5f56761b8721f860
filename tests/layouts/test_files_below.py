"""Files below a checkpoint's own directory that its layout does not load, where nothing but names tells the layout:
a job that is told to resume without them would start with a part of a state, and damage in them would go unseen.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_trees import tree_of
from in_process import executed
from pasted_hints import Paste, written
from small_files import adam, saved, tensor
from timed import put

from ckpt_tools import CkptError, Selection, errors, plan

STATES = {
    "optimizer": {"optimizer": adam(20)},
    "states of both": {"model": {"w": tensor(2)}, "optimizer": adam(20)},
}
BELOW = ("policy/weights.bin", "a/b/c/d/e/f.pth")
CASES = ("rank-files/one", "rank-files/two", "rank-files/directories")


def newest(root: Path) -> Path:
    chosen = plan(str(root)).checkpoint
    assert chosen is not None
    return Path(chosen.path)


def pasted_lines(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the plan says once the lines that the question offers are saved."""
    monkeypatch.chdir(place)
    with written(Paste("command", ("layouts", "--guess", str(root)))):
        return executed(["plan", str(root), "--run", "."])[1]


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("below", "what"), tuple(zip(BELOW, STATES, strict=True)))
def test_a_state_below_the_directory_is_asked_about(tmp_path: Path, case: str, below: str, what: str) -> None:
    root = tree_of(case, tmp_path)
    path = put(newest(root) / below, saved(STATES[what]))
    with pytest.raises(CkptError) as asked:
        plan(str(root))
    assert asked.value.exit_code in (2, 4) and str(path.relative_to(root)) in str(asked.value)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_data_below_it_are_no_question(tmp_path: Path, case: str) -> None:
    root = tree_of(case, tmp_path)
    home = newest(root)
    for name, data in {
        "samples/step_10.npy": "\x93NUMPY",
        "logs/train.json": "{}",
        "samples/a.npz": "x",
    }.items():
        put(home / name, data)
    assert newest(root) == home


@pytest.mark.parametrize("named", [None, "."], ids=["any", "named"])
@pytest.mark.parametrize("where", ["engine", "engine/deep"])
def test_what_an_engine_saved_below_a_directory_without_a_model_is_asked_about(
    where: str, named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate's own files are there, and the model in a place that its layout does not know."""
    root = tree_of("accelerate/deepspeed", tmp_path)
    for save in root.iterdir():
        (save / where).parent.mkdir(parents=True, exist_ok=True)
        (save / "pytorch_model").rename(save / where)
    with pytest.raises(errors.UsageError):
        plan(str(root), Selection(run=named))
    assert pasted_lines(root, tmp_path, monkeypatch).startswith("Resume from step 8")


def test_files_of_two_layouts_in_one_directory_are_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree_of("accelerate/deepspeed", tmp_path)
    for path in root.glob("*/pytorch_model/*"):
        path.rename(path.parents[1] / path.name)
    with pytest.raises(errors.UsageError):
        plan(str(root), Selection(run="."))
    assert pasted_lines(root, tmp_path, monkeypatch).startswith("Resume from step 8")
