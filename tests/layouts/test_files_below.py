"""Files below a checkpoint's own directory that its layout does not load, where nothing but names tells the layout:
a job that is told to resume without them would start with a part of a state, and damage in them would go unseen.
"""

from __future__ import annotations

import shlex
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


# --- What no layout recognises, and may be a later save than the choice, is one question with two answers


AGO = 1_700_000_000


def tree(root: Path, name: str, later: int = 60, held: bytes = b"") -> Path:
    """Two saves of a declared arrangement, and a file that no layout recognises, so many seconds later."""
    root.mkdir()
    for n, (path, data) in enumerate(
        {
            "iter_0000100/mp_rank_00/model_optim_rng.pt": saved(state(100)),
            "iter_0000200/mp_rank_00/model_optim_rng.pt": saved(state(200)),
        }.items()
    ):
        put(root / path, data, AGO + 60 * n)
    put(root / name, held or saved(state(300)), AGO + 60 + later)
    return root


def state(step: int) -> dict[str, object]:
    return {"model": {"w": tensor(step)}, "optimizer": adam(step), "step": step}


@pytest.mark.parametrize("name", ["dernier.pt", "net-300.state", "a[1] b.pt"])
def test_the_path_that_is_printed_is_left_out(name: str, tmp_path: Path) -> None:
    root = tree(tmp_path / "run", name)
    hint = executed(["plan", str(root)])[2].partition("or add ")[2].partition(" to resume from")[0]
    code, out, _ = executed(["plan", str(root), *shlex.split(hint)])
    assert code == 0 and out.startswith("Resume from step 200")


def test_a_packed_save_is_asked_about(tmp_path: Path) -> None:
    code, _, err = executed(
        ["plan", str(tree(tmp_path / "run", "step_300.pt.zst", held=b"\x28\xb5\x2f\xfd" * 9))]
    )
    assert code == 2 and "step_300.pt.zst" in err
