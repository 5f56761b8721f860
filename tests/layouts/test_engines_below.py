"""What DeepSpeed saves below a checkpoint of another framework: each file is needed, whatever model lies beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES
from small_files import deepspeed_model, deepspeed_zero, saved, tensor, trainer

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.selection import Selection

RANKS = 2


def save(root: Path, step: int) -> None:
    home = root / f"checkpoint-{step}"
    engine = home / f"global_step{step}"
    engine.mkdir(parents=True)
    (engine / "mp_rank_00_model_states.pt").write_bytes(deepspeed_model(step, RANKS, 1, 0))
    for rank in range(RANKS):
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        (engine / name).write_bytes(deepspeed_zero(step, RANKS, rank))
    for name, data in trainer(step).items():
        if name != "optimizer.pt":
            (home / name).write_bytes(data)
    (home / "latest").write_text(f"global_step{step}")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.slow
@pytest.mark.parametrize("harm", [Path.unlink, cut], ids=["gone", "cut"])
@pytest.mark.parametrize("name", ["mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"])
def test_a_save_that_has_lost_a_file_of_its_engine_is_passed_over(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    for step in (10, 20):
        save(tmp_path, step)
    harm(tmp_path / "checkpoint-20/global_step20" / name)
    made = plan(str(tmp_path))
    assert made.resume.path == str(tmp_path / "checkpoint-10")
    assert [len(rank.files) for rank in made.by_rank] == [RANKS] * RANKS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["latest", "pytorch_model_fsdp.bin"])
def test_a_model_for_everybody_does_not_replace_what_the_trainer_asks_for(tmp_path: Path, name: str) -> None:
    """The note by which the engine finds its files, and with FSDP the model that is not sharded."""
    for step in (10, 20):
        save(tmp_path, step)
        (tmp_path / f"checkpoint-{step}/pytorch_model_fsdp.bin").write_bytes(saved({"w": tensor(step)}))
    assert plan(str(tmp_path)).resume.path == str(tmp_path / "checkpoint-20")
    (tmp_path / "checkpoint-20" / name).unlink()
    made = plan(str(tmp_path))
    assert made.resume.path == str(tmp_path / "checkpoint-10")
    assert [{f.code for f in r.findings} for r in made.rejected] == [{"missing-part"}]


@pytest.mark.slow
@pytest.mark.parametrize(
    "home", ["checkpoint-10/global_step10", "epoch=0-step=10.ckpt/checkpoint", "step_10/pytorch_model"]
)
def test_a_lone_one_is_not_loaded_without_the_model_of_its_engine(tmp_path: Path, home: str) -> None:
    """Below the Trainer, Lightning and Accelerate; at the size that saved it, and at any other."""
    save(tmp_path / "saved", 10)
    (tmp_path / "run" / home).parent.mkdir(parents=True)
    (tmp_path / "saved/checkpoint-10/global_step10").rename(tmp_path / "run" / home)
    if home.startswith("checkpoint"):
        for file in (tmp_path / "saved/checkpoint-10").iterdir():
            file.rename(tmp_path / "run/checkpoint-10" / file.name)
    for world in (None, 1, RANKS):
        made = None
        with suppress(CkptError):
            made = plan(str(tmp_path / "run"), Selection(world_size=world))
        assert (made is None) is (world == 1)
    (tmp_path / "run" / home / "mp_rank_00_model_states.pt").unlink()
    for world in (None, 1, RANKS):
        with pytest.raises(CkptError, match="missing-part"):
            plan(str(tmp_path / "run"), Selection(world_size=world))


STATE = (
    b"\x80\x02cpaddleformers.trainer.trainer_callback\nTrainerState\n)\x81}X\x0b\x00\x00\x00global_stepK%csb."
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "gone", ["", "model_state/0.metadata", "optimizer_state/1_0.distcp", "master_weight"]
)
def test_a_trainer_of_paddle_has_a_distributed_checkpoint_of_each_part(gone: str, tmp_path: Path) -> None:
    """PaddleFormers with flex_checkpoint: each part was a run, of which ``--run`` planned one alone."""
    for step in (10, 20):
        save = tmp_path / f"checkpoint-{step}"
        for part in ("model_state", "optimizer_state", "master_weight"):
            shutil.copytree(LAYOUT_TREES / f"paddle-dist/steps/tree/step_{step}", save / part)
        (save / "trainer_state.bin").write_bytes(STATE % bytes([step]))
        for path in save.rglob("*"):
            os.utime(path, (1_760_000_000 + step,) * 2)
    if gone:
        lost = tmp_path / "checkpoint-20" / gone
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    made = plan(str(tmp_path))
    assert made.resume_step == (10 if gone else 20)
    assert made.resume.path == str(tmp_path / f"checkpoint-{made.resume_step}")
    assert bool(made.rejected) == bool(gone)


@pytest.mark.parametrize("case", ["lightning/engine", "lightning/fabric", "accelerate/deepspeed"])
def test_a_shard_that_a_lone_engine_has_lost_is_seen(case: str, tmp_path: Path) -> None:
    """No other save tells of it: its model does."""
    root = materialise(LAYOUT_TREES / case / "expected.json", tmp_path)
    lost, *_ = sorted(root.rglob("*zero_pp_rank_1_mp_rank_00_optim_states.pt"), reverse=True)
    home = lost.parent.parent
    for save in root.iterdir():
        if save != home:
            shutil.rmtree(save) if save.is_dir() else save.unlink()
    lost.unlink()
    found = [f.code for file in verify([str(root)]).files for f in file.report.findings]
    assert "missing-rank" in found


def test_a_shard_that_a_lone_trainer_has_lost_is_seen(tmp_path: Path) -> None:
    save(tmp_path, 10)
    (tmp_path / "checkpoint-10/global_step10/zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    for path in tmp_path.rglob("*"):
        os.utime(path, (1.7e9, 1.7e9))  # nobody is at it any more
    assert verify([str(tmp_path)]).verdict is Verdict.BROKEN
