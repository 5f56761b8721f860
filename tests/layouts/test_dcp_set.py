"""What frameworks note beside saves of several directories of DCP: that one is under way, and which is the
latest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools.api import plan
from ckpt_tools.errors import NoneUsable, NotNewest, UsageError
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.selection import Selection

TRACKER = "latest_checkpointed_iteration.json"


def tree(name: str, tmp_path: Path) -> Path:
    return materialise(LAYOUT_TREES / "dcp-set" / name / "expected.json", tmp_path)


@pytest.mark.slow
def test_a_save_that_is_marked_is_under_way_whatever_is_there_of_it(tmp_path: Path) -> None:
    root = tree("automodel", tmp_path)
    (root / "epoch_1_step_20" / ".incomplete").touch()
    made = plan(str(root))
    assert made.checkpoint is not None
    assert made.checkpoint.step == 10
    assert "unfinished-save" in {f.code for f in made.warnings}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "code"),
    [('{"latest_checkpointed_iteration": 30}', "dangling-tracker"), ('{"lat', "bad-tracker")],
)
def test_a_tracker_in_json_is_read(said: str, code: str, tmp_path: Path) -> None:
    root = tree("lm-engine", tmp_path)
    assert code not in {f.code for f in plan(str(root)).warnings}
    (root / TRACKER).write_text(said)
    made = plan(str(root))
    assert made.checkpoint is not None
    assert made.checkpoint.step == 20
    assert code in {f.code for f in made.warnings}


def at_the_time_of(path: Path, saved: Path) -> None:
    os.utime(path, ns=(saved.stat().st_atime_ns, saved.stat().st_mtime_ns))


def of_llama_factory(tmp_path: Path) -> Path:
    """The same saves as LLaMA-Factory v1 calls the files."""
    root = tree("lm-engine", tmp_path)
    (root / TRACKER).unlink()
    for step in (10, 20):
        home = (root / f"global_step{step}").rename(root / f"checkpoint-{step}")
        (home / "lr_scheduler/lr_scheduler-0.pt").rename(home / "scheduler.pt")
        (home / "lr_scheduler/lr_scheduler-1.pt").unlink()
        (home / "lr_scheduler").rmdir()
        for rank in (0, 1):
            for name in ("dataloader", "rng_state"):
                (home / name / f"{name}-{rank}.pt").rename(home / name / f"rank_{rank}.pt")
        (home / "metadata.json").write_text(json.dumps({"global_step": step, "num_training_steps": 100}))
        (home / "CHECKPOINT_COMPLETE").touch()
        for name in ("metadata.json", "CHECKPOINT_COMPLETE"):
            at_the_time_of(home / name, home / "scheduler.pt")
    return root


def of_skyrl(tmp_path: Path) -> Path:
    """The same models as SkyRL's workers save them with Megatron."""
    root = tree("lm-engine", tmp_path)
    (root / TRACKER).unlink()
    for step in (10, 20):
        saved, home = root / f"global_step{step}", root / f"global_step_{step}"
        home.mkdir()
        policy = (saved / "model").rename(home / "policy")
        (policy / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
        for name, rank in ((policy / "common.pt", 0), (home / "trainer_state.pt", 1)):
            (saved / f"rng_state/rng_state-{rank}.pt").rename(name)
        for name in (policy / "metadata.json", policy / "common.pt", home / "trainer_state.pt"):
            at_the_time_of(name, policy / ".metadata")
        shutil.rmtree(saved)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("left", [("metadata.json",), ("metadata.json", "common.pt", "../trainer_state.pt")])
def test_a_save_that_megatron_could_not_load_is_skyrls_as_well(left: tuple[str, ...], tmp_path: Path) -> None:
    """Its directory alone may be anybody's: the run's other saves, or what else is in it, tell whose it is."""
    root = of_skyrl(tmp_path)
    for name in left:
        (root / "global_step_20/policy" / name).unlink()
    assert plan(str(root)).resume == Resume(
        str(root / "global_step_10"),
        ("trainer.resume_mode=from_path", f"trainer.resume_path={root / 'global_step_10'}"),
    )
    shutil.rmtree(root / "global_step_10")
    if len(left) == 1:
        with pytest.raises(NoneUsable):
            plan(str(root))


@pytest.mark.slow
def test_what_megatron_says_it_has_in_common_is_missed_alone(tmp_path: Path) -> None:
    root = of_skyrl(tmp_path)
    shutil.rmtree(root / "global_step_10")
    policy = root / "global_step_20/policy"
    (policy / "metadata.json").write_text('{"sharded_backend": "torch_dist", "common_backend": "torch"}')
    at_the_time_of(policy / "metadata.json", policy / ".metadata")
    assert plan(str(root)).checkpoint is not None
    (policy / "common.pt").unlink()
    with pytest.raises(NoneUsable, match="missing-part"):
        plan(str(root))


def of_roll(tmp_path: Path) -> Path:
    """The same directories as ROLL's workers call them, beside the models that they export."""
    root = tree("lm-engine", tmp_path)
    (root / TRACKER).unlink()
    for step in (10, 20):
        saved, home = root / f"global_step{step}", root / f"checkpoint-{step}"
        for name, worker in (("model", "actor_train"), ("optimizer", "critic")):
            (home / worker).mkdir(parents=True)
            (saved / name).rename(home / worker / "dcp")
            (home / worker / "config.json").write_text("{}")
        (home / "pipeline").mkdir()
        pipeline = (saved / "rng_state/rng_state-0.pt").rename(home / "pipeline/rng_state_pipeline.pth")
        at_the_time_of(pipeline, home / "critic/dcp/.metadata")
        shutil.rmtree(saved)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("made", [of_llama_factory, of_roll])
def test_saves_of_trainers_are_one_run(made: Callable[[Path], Path], tmp_path: Path) -> None:
    root = made(tmp_path)
    chosen = plan(str(root))
    assert chosen.checkpoint is not None
    assert (chosen.checkpoint.path, chosen.warnings) == (str(root / "checkpoint-20"), ())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "name"),
    [
        (of_llama_factory, "CHECKPOINT_COMPLETE"),
        (of_llama_factory, "scheduler.pt"),
        (of_llama_factory, "model/.metadata"),
        (of_roll, "critic/dcp"),
        (of_roll, "actor_train/dcp/.metadata"),
        (of_roll, "pipeline/rng_state_pipeline.pth"),
    ],
)
def test_what_such_a_save_has_lost_is_missed(made: Callable[[Path], Path], name: str, tmp_path: Path) -> None:
    root = made(tmp_path)
    gone = root / "checkpoint-20" / name
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    chosen = plan(str(root))
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 10
    assert [r.checkpoint.step for r in chosen.rejected] == [20]


@pytest.mark.slow
@pytest.mark.parametrize("left", [6, 4, 3])
def test_a_lone_save_that_is_not_marked_as_complete_is_not_resumed_from(left: int, tmp_path: Path) -> None:
    """However far it came: the note of what it is was written first."""
    root = of_llama_factory(tmp_path)
    shutil.rmtree(root / "checkpoint-20")
    assert plan(str(root)).checkpoint is not None
    (root / "checkpoint-10/CHECKPOINT_COMPLETE").unlink()
    order = ("metadata.json", "model", "optimizer", "scheduler.pt", "dataloader", "rng_state")
    for name in order[left:]:
        later = root / "checkpoint-10" / name
        shutil.rmtree(later) if later.is_dir() else later.unlink()
    with pytest.raises(NoneUsable):
        plan(str(root))


@pytest.mark.slow
def test_a_save_of_which_there_is_nothing_but_a_note_has_been_begun(tmp_path: Path) -> None:
    root = of_llama_factory(tmp_path)
    (root / "checkpoint-30").mkdir()
    (root / "checkpoint-30/metadata.json").write_text('{"global_step": 30, "num_training_steps": 100}')
    chosen = plan(str(root))
    assert chosen.checkpoint is not None
    assert (chosen.checkpoint.step, [f.code for f in chosen.warnings]) == (20, ["unfinished-save"])


def of_automodel(tmp_path: Path) -> Path:
    """Saves of which a text names the latest."""
    root = tree("automodel", tmp_path)
    (root / "LATEST.txt").write_text("epoch_1_step_20")
    return root


def of_xtuner(tmp_path: Path) -> Path:
    """Saves of the second of two runs, of which a note beside the runs tells."""
    root = tree("automodel", tmp_path)
    saves = tmp_path / "work/20260102/checkpoints"
    saves.parent.mkdir(parents=True)
    root.rename(saves)
    for step, epoch in ((10, 0), (20, 1)):
        (saves / f"epoch_{epoch}_step_{step}").rename(saves / f"ckpt-step-{step}")
    exps = [
        {"exp_dir": f"/data/jobs/{run}", "checkpoint_list": [f"/data/jobs/{run}/checkpoints/ckpt-step-{n}"]}
        | {"snap_checkpoint_list": []}
        for run, n in (("20260101", 400), ("20260102", 20))
    ]
    (tmp_path / "work/.xtuner").write_text(json.dumps({"exps": exps}))
    return tmp_path / "work"


@pytest.mark.slow
@pytest.mark.parametrize("made", [of_automodel, of_xtuner])
def test_a_save_that_its_framework_names_is_missed(made: Callable[[Path], Path], tmp_path: Path) -> None:
    root = made(tmp_path)
    chosen = plan(str(root))
    assert chosen.checkpoint is not None
    assert (chosen.checkpoint.step, chosen.warnings) == (20, ())
    shutil.rmtree(chosen.checkpoint.path)
    chosen = plan(str(root))
    assert chosen.checkpoint is not None
    assert (chosen.checkpoint.step, [r.checkpoint.step for r in chosen.rejected]) == (10, [20])
    shutil.rmtree(chosen.checkpoint.path)
    with pytest.raises(NoneUsable):
        plan(str(root), Selection(allow_none=True))


def test_a_note_that_names_no_save_yet_is_no_trace_of_one(tmp_path: Path) -> None:
    (tmp_path / "20260101/checkpoints").mkdir(parents=True)
    run = {"exp_dir": "/data/jobs/20260101", "checkpoint_list": [], "snap_checkpoint_list": []}
    (tmp_path / ".xtuner").write_text(json.dumps({"exps": [run]}))
    assert plan(str(tmp_path), Selection(allow_none=True)).checkpoint is None


@pytest.mark.slow
def test_models_exported_beside_the_saves_are_no_runs(tmp_path: Path) -> None:
    root = of_xtuner(tmp_path)
    model = next((LAYOUT_TREES / "sharded-safetensors/steps/tree").glob("*/*.index.json")).parent
    for step in (10, 20, 30):
        shutil.copytree(model, root / f"20260102/hf-{step}")
    chosen = plan(str(root))
    assert chosen.checkpoint is not None
    assert (chosen.checkpoint.step, chosen.warnings) == (20, ())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LATEST", "epoch_2_step_30"])
def test_what_a_link_led_to_may_be_the_newest(name: str, tmp_path: Path) -> None:
    root = tree("automodel", tmp_path)
    (root / name).symlink_to("gone/epoch_2_step_30")
    made = plan(str(root))
    assert made.checkpoint is not None
    assert (made.checkpoint.step, [f.code for f in made.warnings]) == (20, ["dangling-link"])
    with pytest.raises(NotNewest, match=name):
        plan(str(root), Selection(no_fallback=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "older", "name"),
    [
        ("automodel", "epoch_0_step_10", "epoch_1_step_20/step_scheduler.pt"),
        ("lm-engine", "global_step10", "global_step20/optimizer/__0_0.distcp"),
    ],
)
def test_a_file_of_an_older_save_that_counts_is_told_by_it(
    case: str, older: str, name: str, tmp_path: Path
) -> None:
    root = tree(case, tmp_path)
    was = (root / name).stat()
    (root / name).write_bytes((root / older / name.partition("/")[2]).read_bytes())
    os.utime(root / name, ns=(was.st_atime_ns, was.st_mtime_ns))
    made = plan(str(root))
    assert made.checkpoint is not None
    assert made.checkpoint.step == 10
    assert {f.code for r in made.rejected for f in r.findings} == {"step-mismatch"}


@pytest.mark.slow
def test_the_first_half_of_a_later_save_is_said(tmp_path: Path) -> None:
    """A copy of it that stopped early has the model, and not yet the optimizer by which the save is known."""
    root = tree("automodel", tmp_path)
    for name in ("optim", "rng"):
        shutil.rmtree(root / "epoch_1_step_20" / name)
    (root / "epoch_1_step_20/step_scheduler.pt").unlink()
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 10
    assert [(f.code, f.path) for f in made.warnings] == [("passed-over", str(root / "epoch_1_step_20/model"))]


@pytest.mark.slow
def test_half_of_a_state_is_no_checkpoint(tmp_path: Path) -> None:
    """What a first save of Accelerate's with FSDP has left, which was killed before it wrote the rest."""
    saved, home = tree("lm-engine", tmp_path) / "global_step10", tmp_path / "checkpoints/checkpoint_0"
    home.mkdir(parents=True)
    for name, called in (("model", "pytorch_model_fsdp_0"), ("optimizer", "optimizer_0")):
        (saved / name).rename(home / called)
    for root in (home, home.parent):
        with pytest.raises(UsageError, match="which checkpoint is the newest is in doubt"):
            plan(str(root))
    alone = plan(str(home / "pytorch_model_fsdp_0"))
    assert alone.resume == Resume(str(home / "pytorch_model_fsdp_0"))
    assert plan(str(home / "optimizer_0")).checkpoint is not None
    shutil.rmtree(home / "optimizer_0")
    assert {f.code for f in plan(str(home.parent)).warnings} == {"missing-part"}
