"""Files below a checkpoint's own directory that its layout does not load, where nothing but names tells the layout:
a job that is told to resume without them would start with a part of a state, and damage in them would go unseen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from fixture_trees import tree_of
from in_process import executed
from pasted_hints import Paste, written
from places import LAYOUT_TREES
from small_files import adam, engine, saved, tensor, trainer
from timed import put
from told_trees import SETS, Question, change, hold, plant, table, verified

from ckpt_tools import CkptError, errors
from ckpt_tools.api import plan
from ckpt_tools.cli import latest
from ckpt_tools.errors import NoneUsable
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.selection import Selection

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


# --- What DeepSpeed saves below a checkpoint of another framework: each file is needed, whatever model lies
# beside it.


STATE = (
    b"\x80\x02cpaddleformers.trainer.trainer_callback\nTrainerState\n)\x81}X\x0b\x00\x00\x00global_stepK%csb."
)


def below_trainer(step: int) -> Mapping[str, bytes]:
    files = {f"global_step{step}/{name}": data for name, data in engine(step).items()}
    files |= {name: data for name, data in trainer(step).items() if name != "optimizer.pt"}
    return {**files, "latest": f"global_step{step}".encode()}


def paddle(step: int) -> Mapping[str, bytes]:
    """PaddleFormers with flex_checkpoint: each part was a run, of which ``--run`` planned one alone."""
    save = LAYOUT_TREES / f"paddle-dist/steps/tree/step_{step}"
    parts = ("model_state", "optimizer_state", "master_weight")
    files = {f"{part}/{path.name}": path.read_bytes() for part in parts for path in save.iterdir()}
    return {**files, "trainer_state.bin": STATE % bytes([step])}


SETS.update(engine=engine, enginebelow=below_trainer, paddle=paddle)
MADE = {
    "trainer": ("planted", "checkpoint-10/:enginebelow checkpoint-20/:enginebelow"),
    "fsdp": (
        "planted",
        ";".join(
            f"checkpoint-{n}/:enginebelow checkpoint-{n}/pytorch_model_fsdp.bin:model{n}=" for n in (10, 20)
        ),
    ),
    "paddle": ("planted", "checkpoint-10/:paddle checkpoint-20/:paddle"),
}
TREES = table(
    """
    trainer slow
        as it is -> checkpoint-20 +missing-rank
        rm checkpoint-20/global_step20/mp_rank_00_model_states.pt -> checkpoint-10 -missing-part +missing-rank
        rm checkpoint-20/global_step20/zero_pp_rank_1_mp_rank_00_optim_states.pt
            -> checkpoint-10 -missing-rank +missing-rank
        cut checkpoint-20/global_step20/{mp_rank_00_model_states,zero_pp_rank_1_mp_rank_00_optim_states}.pt
            -> checkpoint-10 -missing-rank -truncated +missing-rank
    fsdp slow
        # A model for everybody does not replace what the Trainer asks for: the note by which the engine finds its
        # files, and with FSDP the model that is not sharded.
        as it is -> checkpoint-20 +missing-rank
        rm checkpoint-20/{latest,pytorch_model_fsdp.bin} -> checkpoint-10 -missing-part +missing-rank
    planted slow
        # A lone one, at the size that saved it, and at any other.
        checkpoint-10/:enginebelow -> checkpoint-10 +missing-rank
        checkpoint-10/:enginebelow | world_size=2 -> checkpoint-10 +missing-rank
        checkpoint-10/:enginebelow | world_size=1 -> exit 2 save/topology-mismatch
        checkpoint-10/:enginebelow; rm checkpoint-10/global_step10/mp_rank_00_model_states.pt
            -> exit 4 choice/none-usable -missing-part
        then as it is | world_size=1 -> exit 4 choice/none-usable -missing-part
        then as it is | world_size=2 -> exit 4 choice/none-usable -missing-part
        checkpoint-10/:enginebelow; rm checkpoint-10/global_step10/zero_pp_rank_1_mp_rank_00_optim_states.pt
            -> exit 4 choice/none-usable -missing-rank => broken missing-rank
        epoch=0-step=10.ckpt/checkpoint/:engine10 -> epoch=0-step=10.ckpt
        epoch=0-step=10.ckpt/checkpoint/:engine10 | world_size=1 -> exit 2 save/topology-mismatch
        epoch=0-step=10.ckpt/checkpoint/:engine10;
            rm epoch=0-step=10.ckpt/checkpoint/mp_rank_00_model_states.pt
            -> exit 4 choice/none-usable -missing-part
        then as it is | world_size=1 -> exit 4 choice/none-usable -missing-part
        then as it is | world_size=2 -> exit 4 choice/none-usable -missing-part
        step_10/pytorch_model/:engine10 -> step_10/pytorch_model
        step_10/pytorch_model/:engine10; rm step_10/pytorch_model/mp_rank_00_model_states.pt
            -> exit 4 choice/none-usable -missing-part
    paddle slow
        as it is -> checkpoint-20
        rm checkpoint-20/{model_state/0.metadata,optimizer_state/1_0.distcp,master_weight}
            -> checkpoint-10 -missing-part
    """,
    **MADE,
)


SHARDS = {f"w{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
INDEX = json.dumps({"metadata": {"total_size": 96}, "weight_map": SHARDS})
NAME = "model.safetensors.index.json"


TREES += table(
    f"""
    hf-trainer/epochs
        # The Trainer loads a whole model before any index: a stale one is to be removed. Without, it is not passed over.
        rm checkpoint-8/model.safetensors; checkpoint-8/pytorch_model.bin:model8=; put checkpoint-8/{NAME} {INDEX}
            -> checkpoint-8 +missing-part
        rm checkpoint-8/model.safetensors; put checkpoint-8/{NAME} {INDEX} -> checkpoint-6 -missing-part
    planted
        # from_pretrained may take it before pytorch_model.bin.
        pytorch_model.bin:model1; put {NAME} {INDEX} -> loads pytorch_model.bin
        then as it is -> pytorch_model.bin +missing-part
        then rm {NAME} -> pytorch_model.bin
        then put {NAME} {INDEX}; rm pytorch_model.bin -> exit 4 choice/none-usable -missing-part
        model.safetensors:tensors1; put {NAME} {INDEX} -> loads model.safetensors
        then as it is -> model.safetensors +missing-part
        then rm {NAME} -> model.safetensors
        then put {NAME} {INDEX}; rm model.safetensors -> exit 4 choice/none-usable -missing-part
    """
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_each_file_is_needed_or_stands_for_another(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


@pytest.mark.parametrize("case", ["lightning/engine", "lightning/fabric", "accelerate/deepspeed"])
def test_a_shard_that_a_lone_engine_has_lost_is_seen(case: str, tmp_path: Path) -> None:
    """No other save tells of it: its model does."""
    root = tree_of(case, tmp_path)
    lost = max(root.rglob("*zero_pp_rank_1_mp_rank_00_optim_states.pt"))
    change(root, f"only {lost.parent.parent.relative_to(root)}")
    lost.unlink()
    assert "missing-rank" in verified(root)


@pytest.mark.parametrize("home", ["global_step20/:engine", "checkpoint-20/:enginebelow"])
def test_a_node_may_have_the_files_of_its_own_ranks_alone(home: str, tmp_path: Path) -> None:
    """Nodes with disks of their own: what one lacks, another one has."""
    plant(tmp_path, home)
    (lost,) = tmp_path.rglob("zero_pp_rank_1*")
    lost.unlink()
    made = plan(str(tmp_path), Selection(ranks=[0], world_size=2))
    assert made.checkpoint is not None and {rank.rank for rank in made.by_rank} == {0}
    for ranks in ([1], None):
        with pytest.raises(NoneUsable):
            plan(str(tmp_path), Selection(ranks=ranks, world_size=2))


# --- Files of one save of Hugging Face's and PaddleNLP's Trainers and of Accelerate that stand for each
# other, or say that the save has ended, or are one rank's alone.


@pytest.mark.parametrize(
    ("name", "world", "files", "new"),
    [
        ("accelerate/steps", 2, [["random_states_0.pkl"], []], ((1, 1),)),
        ("hf-trainer/sharded", 2, [["rng_state_0.pth"], ["rng_state_1.pth"]], ()),
        ("hf-trainer/sharded", 3, [["rng_state_0.pth"], ["rng_state_1.pth"], []], ((2, 2),)),
        ("hf-trainer/trainer", 1, [["rng_state.pth"]], ()),
        ("hf-trainer/trainer", 2, [[], []], ((0, 1),)),
    ],
)
def test_each_rank_has_its_own_random_numbers(name, world, files, new, tmp_path: Path) -> None:
    made = plan(str(tree_of(name, tmp_path)), Selection(world_size=world))
    assert [[Path(f.path).name for f in r.files] for r in made.by_rank] == files
    assert not any(f.role == "rng" for f in made.shared)
    assert [f.ranks for f in made.warnings if f.code == "missing-rank"] == ([new] if new else [])
    # its framework finds the files of a rank by itself
    assert made.resume.path is not None and latest.list_paths(made) == f"{made.resume.path}\n"


def test_random_numbers_that_are_lost_are_told_once(tmp_path: Path) -> None:
    root = tree_of("hf-trainer/sharded", tmp_path)
    (root / "checkpoint-20/rng_state_1.pth").unlink()
    made = plan(str(root), Selection(world_size=2))
    told = [(f.severity, f.ranks) for f in made.warnings if "random numbers" in f.message]
    assert told == [(Severity.WARNING, ((1, 1),))]
