"""Megatron's formats torch_dcp, fsdp_dtensor and zarr, and torch_dist without its last file: the commit of a save is
what its own writer writes last.
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import small_files
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import NoneUsable, Selection, plan, scan, verify

NEWEST = "iter_0000020"
TRACKER = "latest_checkpointed_iteration.txt"
DCP = ("torch_dcp", "fsdp_dtensor")


def tree(style: str, target: Path) -> Path:
    return materialise(LAYOUT_TREES / "megatron-core" / style / "expected.json", target)


def rejected(root: Path) -> set[str]:
    """The findings for which the newest lost to the one before it."""
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 10
    assert {r.checkpoint.step for r in made.rejected} == {20}
    return {f.code for r in made.rejected for f in r.findings}


@pytest.mark.parametrize("style", [*DCP, "zarr"])
@pytest.mark.parametrize("tracked", [True, False])
def test_what_it_saved_is_whole(tmp_path: Path, style: str, tracked: bool) -> None:
    root = tree(style, tmp_path)
    if not tracked:
        for path in root.glob("latest_*"):
            path.unlink()
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 20 and not made.rejected
    assert not any(c.unfinished for c in scan(str(root)).checkpoints)
    assert {f.code for f in verify(str(root)).findings if f.severity != "note"} <= {"missing-tracker"}


@pytest.mark.parametrize("style", DCP)
def test_a_save_without_its_index_never_finished(tmp_path: Path, style: str) -> None:
    root = tree(style, tmp_path)
    (root / NEWEST / ".metadata").unlink()
    assert rejected(root) == {"missing-part"}  # a tracker names it
    for path in root.glob("latest_*"):
        path.unlink()
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 10
    assert "unfinished-save" in {f.code for f in made.warnings}


@pytest.mark.parametrize("style", DCP)
def test_data_of_another_step_are_seen(tmp_path: Path, style: str) -> None:
    root = tree(style, tmp_path)
    shutil.copy2(root / "iter_0000010/__0_0.distcp", root / NEWEST)
    assert "step-mismatch" in rejected(root)


@pytest.mark.parametrize("lone", [True, False])
def test_torch_dist_is_not_taken_for_one_of_them(tmp_path: Path, lone: bool) -> None:
    """All of its saves lost metadata.json, without which its loader takes them for something else."""
    root = tree("common_state", tmp_path)
    for path in root.glob("iter_*/metadata.json"):
        path.unlink()
    if lone:
        shutil.rmtree(root / "iter_0000010")
    with pytest.raises(NoneUsable):
        plan(str(root))
    said = [f.message for file in verify(str(root)).files for f in file.report.findings]
    assert any(text.startswith("metadata.json") for text in said)


@pytest.mark.parametrize("gone", ["common.pt", "metadata.json", "model.weight", "model.weight/0.0"])
def test_a_part_of_zarr_that_is_gone_is_missed(tmp_path: Path, gone: str) -> None:
    root = tree("zarr", tmp_path)
    path = root / NEWEST / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert rejected(root) == {"missing-part"}


def of_experts(root: Path, tp: int, ep: int, dp: int, *, optimizers: bool) -> None:
    """A legacy save of one stage: the last number of its directories counts experts."""
    args = Namespace(
        world_size=tp * dp,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=1,
        expert_model_parallel_size=ep,
    )
    for t in range(tp):
        for e in range(ep):
            home = root / f"iter_0000010/mp_rank_{t:02d}_{e:03d}"
            home.mkdir(parents=True)
            model = {"args": args, "iteration": 10, "model": {"w": small_files.tensor(10, t, e)}}
            (home / "model_optim_rng.pt").write_bytes(small_files.saved(model))
            if optimizers:
                (home / "distrib_optim.pt").write_bytes(small_files.megatron_optimizer(10, 8 * t + e))


@pytest.mark.parametrize("optimizers", [False, True])
@pytest.mark.parametrize(("tp", "ep", "dp"), [(1, 2, 4), (2, 2, 2), (2, 4, 4)])
def test_each_rank_loads_the_experts_of_its_place(
    tmp_path: Path, tp: int, ep: int, dp: int, optimizers: bool
) -> None:
    """Whatever files lie beside those that tell the parallel sizes."""
    of_experts(tmp_path, tp, ep, dp, optimizers=optimizers)
    made = plan(str(tmp_path), Selection(world_size=tp * dp))
    homes = {r.rank: {Path(f.path).parent.name for f in r.files} for r in made.ranks}
    assert homes == {r: {f"mp_rank_{r % tp:02d}_{r // tp % ep:03d}"} for r in range(tp * dp)}
