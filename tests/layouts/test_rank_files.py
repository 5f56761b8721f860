"""Files of ranks under names that training loops give: which checkpoint is planned, over random names and over
all trees of named frameworks.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import timed
from fixture_trees import CASES, materialise, one_of_each
from places import FIXTURES
from recorded import TREES
from small_files import adam, saved, tensor

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import NoneUsable, UsageError
from ckpt_tools.model.finding import Verdict

NAMED = [
    case
    for case in CASES
    if case.parent.parent.name != "rank-files" and str((case.parent / "tree").relative_to(FIXTURES)) in TREES
]
"""Of all frameworks, where a plan asks nothing."""


@pytest.mark.share(8)
@pytest.mark.slow
@pytest.mark.parametrize(
    "case", one_of_each([pytest.param(case, id="/".join(case.parts[-3:-1])) for case in NAMED])
)
def test_beside_the_files_of_a_framework_a_rank_of_its_own_is_no_checkpoint(
    case: Path, tmp_path: Path
) -> None:
    root = materialise(case, tmp_path)
    before = plan(str(root))
    assert before.checkpoint is not None
    home = before.checkpoint.parts[0].home
    if not home or before.checkpoint.layout in ("dlrover", "files", "numpy", "torch-checkpointing"):
        return  # names of their own, such as that of an item called rank; files of no framework
    path = Path(home) / "rank_0.pt"
    path.write_bytes(saved({"w": tensor(7)}))
    os.utime(path, ns=(before.checkpoint.mtime_ns,) * 2)
    try:
        after = plan(str(root))
    except (UsageError, NoneUsable):
        return  # torchtune's optimizer is of the epoch that is now nobody's
    assert after.checkpoint is not None
    assert (after.checkpoint.path, after.checkpoint.layout) == (
        before.checkpoint.path,
        before.checkpoint.layout,
    )


# ---- flat in one directory


FLAT = ("step_{n}_rank_{r}.pt", "ckpt-{n}-rank{r}.pth", "rank{r}_step{n}.pt", "model_{n}.rank{r}.pt", "iter_{n:07d}.rank-{r}.bin", "epoch_{n}_rank_{r}.pt")  # fmt: skip


def state(step: int, rank: int) -> bytes:
    return saved({"model": {"w": tensor(step, rank)}, "optimizer": adam(step), "step": step})


def put(root: Path, name: str, data: bytes, at: int) -> None:
    timed.put(root / name, data, 60 * at)


def loads(root: Path) -> dict[int, list[str]]:
    made = plan(str(root))
    shared = [os.path.basename(f.path) for f in made.shared]
    return {r.rank: sorted([*shared, *(os.path.basename(f.path) for f in r.files)]) for r in made.by_rank}


@pytest.mark.parametrize("name", FLAT)
def test_saves_that_lie_in_one_directory(name: str, tmp_path: Path) -> None:
    for n in (10, 20):
        for r in (0, 1):
            put(tmp_path, name.format(n=n, r=r), saved({"w": tensor(n, r)}), n)
    assert loads(tmp_path) == {r: [name.format(n=20, r=r)] for r in (0, 1)}
    (tmp_path / name.format(n=20, r=1)).unlink()
    assert loads(tmp_path) == {r: [name.format(n=10, r=r)] for r in (0, 1)}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "optimizer"), [("model_{n}.pt", "optim_{n}_rank{r}.pt"), ("model_step_{n}.pt", "optim_step_{n}_rank{r}.pt")])  # fmt: skip
def test_a_model_for_all_beside_the_optimizers_of_ranks(model: str, optimizer: str, tmp_path: Path) -> None:
    for n in (10, 20):
        put(tmp_path, model.format(n=n), saved({"w": tensor(n)}), n)
        for r in (0, 1):
            put(tmp_path, optimizer.format(n=n, r=r), saved(adam(n)), n)
    assert loads(tmp_path) == {r: sorted((model.format(n=20), optimizer.format(n=20, r=r))) for r in (0, 1)}
    (tmp_path / model.format(n=20)).unlink()
    assert loads(tmp_path) == {r: sorted((model.format(n=10), optimizer.format(n=10, r=r))) for r in (0, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("home", ["draft-step{}", "run_a_step_{}"])
def test_the_name_of_a_run_may_stand_before_the_step(home: str, tmp_path: Path) -> None:
    for n in (8, 10):  # 10 comes after 8
        for r in (0, 1):
            put(tmp_path, f"{home.format(n)}/training_state_rank{r}.pt", saved(adam(n)), n)
        put(tmp_path, f"{home.format(n)}/training_state.pt", saved({"w": tensor(n), "step": n}), n)
    everyone = "training_state.pt"
    assert loads(tmp_path) == {r: [everyone, f"training_state_rank{r}.pt"] for r in (0, 1)}
    newest = plan(str(tmp_path)).checkpoint
    assert newest is not None and newest.step == 10
    (tmp_path / home.format(10) / everyone).unlink()
    assert verify(str(tmp_path)).verdict is Verdict.BROKEN
    made = plan(str(tmp_path))
    assert made.checkpoint is not None and made.checkpoint.step == 8
    assert {f.code for r in made.rejected for f in r.findings} == {"missing-part"}


@pytest.mark.parametrize("ranks", [1, 2])
def test_numbers_that_count_as_ranks_do_are_ranks(ranks: int, tmp_path: Path) -> None:
    """From 0 without a gap, in directories of later steps than there are ranks."""
    for n, r in itertools.product((10, 20), range(ranks)):
        put(tmp_path, f"step_{n}/checkpoint_{r}.pt", state(n, r), n)
    assert loads(tmp_path) == {r: [f"checkpoint_{r}.pt"] for r in range(ranks)}
    if ranks > 1:
        (tmp_path / "step_20/checkpoint_1.pt").unlink()
        made = plan(str(tmp_path))
        assert made.checkpoint is not None and made.checkpoint.step == 10
        assert {f.code for r in made.rejected for f in r.findings} == {"missing-rank"}


def planned(root: Path) -> set[str]:
    made = plan(str(root))
    files = (*made.shared, *(f for r in made.by_rank for f in r.files))
    return {os.path.relpath(f.path, root) for f in files}


PICOTRON = "{}/weights_tp_rank_world_size={}_2_pp_rank_world_size=0_1.pth"


@pytest.mark.slow
@pytest.mark.parametrize("names", ["rank{1}/step{0}.pt", "rank_{1}/optim_epoch_{0}.pt", PICOTRON])
def test_directories_of_ranks_and_files_of_a_grid_are_one_save(names: str, tmp_path: Path) -> None:
    """One that lacks a file loses, also where it is alone."""
    model = [names.replace("optim", "model")] if "optim" in names else []
    for n, r, name in itertools.product((10, 20), range(2), (names, *model)):
        put(tmp_path, name.format(n, r), state(n, r + 2 * (name != names)), n)
    every = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.p*")]
    assert planned(tmp_path) == {name for name in every if "20" in name}
    (tmp_path / names.format(20, 0)).unlink()
    assert planned(tmp_path) == {name for name in every if "20" not in name}
