"""A save with no other one beside it that has lost a file, or holds one of another step: what is left of it often shows
that. What one node of a job has of its saves where each keeps what its own ranks wrote is neither a save that never
finished nor a first launch; and saves that a copy has left all hidden files out of.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import small_files
from described_layouts import described_tree, put
from fixture_trees import TREES, materialise, overwrite, tree_of
from own_pickles import setting
from told_trees import Question, answer, change, hold, of_steps, table
from two_nodes import run_each

from ckpt_tools import cli, errors
from ckpt_tools.api import plan, scan, verify
from ckpt_tools.errors import CkptError, NoneUsable
from ckpt_tools.layouts import BUILT_IN, COORDS
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.selection import Selection

LAYER = "global_step8/layer_0@-model"
RANKED, UNRANKED = "global_step@/layer_0{}-model_00-model_states.pt", "global_step@/layer_0{}-model_states.pt"
ONE = "only checkpoints/checkpoint_3; mv checkpoints/checkpoint_3 3; cp 3/model.safetensors 3/model_1.safetensors;"
HALVES = of_steps("optimizer scheduler", "cp 3/@.bin 3/@_1.bin")
LAYERS = of_steps("0 1 2 3", f"cp {LAYER}_00-model_states.pt {LAYER}_01-model_states.pt")
NO_RANKS = of_steps("4 8", "\n".join(f"mv {RANKED.format(n)} {UNRANKED.format(n)}" for n in range(4)))
DECODERS = of_steps("1 2", "cp 20/model/model/decoder/0 20/model/model/decoder/@")
MADE = {
    # Saves of a larger model, and a second model that is trained beside its own.
    "pipeline": ("deepspeed/pipeline", f"only global_step8;{LAYERS}"),
    "unranked": ("deepspeed/pipeline", NO_RANKS),
    "nanotron": ("nanotron/zero", f"{DECODERS};rm 10"),
    "two-models": ("accelerate/auto", f"{ONE}{HALVES};mv 3 checkpoints/checkpoint_3"),
}
LOST = table(
    """
    # --- Others of the save show that it was there
    colossalai/booster
        only epoch-1_step-4; rm epoch-1_step-4/modeling/pytorch_model.bin.index.json -> exit 4 choice/none-usable -missing-part
        only epoch-1_step-4; rm epoch-1_step-4/optimizer/{pytorch_optim.bin.index.json,pytorch_optim_group.bin}
            -> exit 4 choice/none-usable -missing-part
    fairseq2/sharded/checkpoints
        only step_30 -> step_30
        only step_30; rm step_30/model/pp_00/tp_00/sdp_{00,01}.pt -> exit 4 choice/none-usable -missing-part
        only step_30; rm step_30/{optimizer/pp_00/tp_00/sdp_01,trainer/rank_01,data_reader/dp_01}.pt
            -> exit 4 choice/none-usable -missing-part
    hf-trainer/sharded
        only checkpoint-20; rm checkpoint-20/model.safetensors.index.json -> exit 4 choice/none-usable -missing-part
    hf-trainer/paddlenlp-unified
        only checkpoint-10; rm checkpoint-10/{model.safetensors.index.json,optimizer.safetensors.index.json}
            -> exit 4 choice/none-usable -missing-part
    lerobot/optimizers/outputs/checkpoints
        only 000300; rm 000300/pretrained_model/policy_preprocessor{.json,_step_3_normalizer_processor.safetensors}
            -> exit 4 choice/none-usable -missing-part
        only 000300; rm 000300/training_state/{actor/optimizer_state.safetensors,critic/optimizer_param_groups.json}
            -> exit 4 choice/none-usable -missing-part
    levanter/steps
        only step-20 -> step-20
        only step-20; rm step-20/{model/decoder/kernel/.zarray,_step/0} -> exit 4 choice/none-usable -missing-part
    megatron/layer_wise
        rm iter_0000010; rm iter_0000020/mp_rank_00/model_optim_rng.pt -> exit 4 choice/none-usable -missing-part
    megatron-core/bridge
        rm iter_0000010; rm iter_0000020/train_state.pt -> exit 4 choice/none-usable -missing-part
    megatron-core/fsdp_dtensor
        rm iter_0000010; rm iter_0000020/train_state.pt -> exit 4 choice/none-usable -missing-part
    megatron-core/zarr
        rm iter_0000010; rm iter_0000020/{model.bias/.zarray,model.weight/0.0} -> exit 4 choice/none-usable -missing-part
    nemo-rl/megatron
        only step_4; rm step_4/policy/weights/iter_0000000/metadata.json -> exit 4 choice/none-usable -missing-part
    openrlhf/ppo
        only _actor/global_step20; only _critic/global_step20 -> step 20
        rm */global_step10; rm {_critic,_actor}/global_step20/mp_rank_00_model_states.pt -> exit 4 choice/none-usable -missing-part
    t5x/steps
        only checkpoint_20; rm checkpoint_20/target.decoder.bias/.zarray -> exit 4 choice/none-usable -missing-part
    pipeline
        as it is -> global_step8 +missing-tracker
        rm global_step8/layer_{02-model_00,03-model_01}-model_states.pt -> exit 4 choice/none-usable -missing-part
    deepspeed/pipeline
        rm global_step8/layer_03-model_00-model_states.pt -> global_step4 -missing-part +dangling-tracker
    unranked
        as it is -> global_step8
        rm global_step8/layer_03-model_states.pt -> global_step4 -missing-part +dangling-tracker
    nanotron
        as it is -> 20
        rm 20/model/model/decoder/{0,1} -> exit 4 choice/none-usable -missing-part
    # --- A warning: a job of another kind may have done without
    accelerate/kohya-steps
        rm at-step00000100*; rm at-step00000200-state/scheduler.bin -> at-step00000200-state +missing-part
    lerobot/steps/outputs/checkpoints
        only 000300; rm 000300/training_state/scheduler_state.json -> 000300 +missing-part
    nemo-rl/dtensor
        only step_4; rm step_4/train_dataloader.pt -> step_4 +missing-part
    olmo-core/steps/run
        only step200; rm step200/train/rank1.pt -> step200 +missing-rank
    two-models
        as it is -> checkpoints/checkpoint_3
        rm checkpoints/checkpoint_3/{optimizer,scheduler}_1.bin -> checkpoints/checkpoint_3 +missing-part
    accelerate/auto
        # Only the second loader draws at random: the first has no sampler to save.
        cp checkpoints/checkpoint_2/scheduler.bin checkpoints/checkpoint_2/sampler_1.bin;
            cp checkpoints/checkpoint_3/scheduler.bin checkpoints/checkpoint_3/sampler_1.bin -> checkpoints/checkpoint_3
    # A file that no rank has: of which its name tells.
    dcp-hf/two
        mv step-10/shard-00001* step-10/shard-00001-model-00001-of-00002.safetensors;
            mv step-10/shard-00002* step-10/shard-00002-model-00002-of-00002.safetensors -> step-10
        mv step-10/shard-00001* step-10/shard-00001-model-00001-of-00003.safetensors;
            mv step-10/shard-00002* step-10/shard-00002-model-00002-of-00003.safetensors -> step-10 +missing-part
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), LOST)
def test_what_the_others_show(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


STAGES = ("layer_0{}-model_00-model_states.pt", "layer_0{}-model_states.pt")
"""Files of layers in a job with model parallel ranks, and without."""


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("lost", [0, 3])
def test_a_layer_of_which_its_stage_names_parameters_is_missed(name: str, lost: int, tmp_path: Path) -> None:
    save = tree_of("deepspeed/pipeline", tmp_path) / "global_step8"
    change(save.parent, "rm global_step4")
    for n in range(4):
        (save / STAGES[0].format(n)).rename(save / name.format(n))
    for stage, layers in enumerate(((0, 1), (2, 3))):
        shapes = {f"{n}.weight": (4, 6) for n in layers} | {"tied_modules.e.w": ()}
        setting(save / f"mp_rank_0{stage}_model_states.pt", "param_shapes", [shapes])
    assert "missing" not in answer(save.parent)
    (save / name.format(lost)).unlink()
    assert "-missing-part" in answer(save.parent)


def test_chunks_in_directories_for_each_axis_are_described(tmp_path: Path) -> None:
    """``dimension_separator`` "/": what describes the chunks lies above their directory."""
    root = tree_of("levanter/steps", tmp_path)
    change(root, "only step-20; mv step-20/model/decoder/kernel/0.0 step-20/model/decoder/kernel/0/0")
    kernel = root / "step-20/model/decoder/kernel"
    described = json.loads((kernel / ".zarray").read_text()) | {"dimension_separator": "/"}
    overwrite(kernel / ".zarray", json.dumps(described).encode(), 0)
    assert answer(root) == "step-20"
    (kernel / ".zarray").unlink()
    assert answer(root).endswith("-missing-part")


AT = 1_760_000_000


@pytest.mark.parametrize("layout", ["megatron", "ascend", "mindspore", "mindio"])
def test_a_file_of_another_step_is_not_loaded_with_the_others(layout: str, tmp_path: Path) -> None:
    """Every file of these tells its step; of two that disagree nobody knows which is the other save's."""
    saves = described_tree(layout, tmp_path / "all", several=True)
    older, newest = list(saves[0].files.values()), saves[-1].files
    assert len(newest) > 1
    for at, path in enumerate(newest):
        root = tmp_path / "one"
        for i, (other, data) in enumerate(newest.items()):
            put(root / other, older[i] if i == at else data, AT)
        assert verify(str(root)).verdict is Verdict.BROKEN, path
        try:
            made = plan(str(root))
        except errors.NoneUsable:
            pass
        else:  # of one that has replicas
            assert not any(load.path.endswith(path) for rank in made.by_rank for load in rank.files)
        shutil.rmtree(root)


@pytest.mark.parametrize("epoch", [1, 3])
def test_files_of_dying_ranks_that_count_differently_are_not_loaded(epoch: int, tmp_path: Path) -> None:
    """A breakpoint file counts from the start of the run or of its epoch, which in the first is the same."""
    for counted, expected in (((38, 38), Verdict.OK), ((30, 38), Verdict.BROKEN)):
        for rank, step in enumerate(counted):
            data = small_files.mindspore(True, rank, epoch_num=epoch, step_num=step)
            put(tmp_path / f"rank_{rank}" / f"net-{epoch}_38_breakpoint.ckpt", data, AT)
        assert verify(str(tmp_path)).verdict is expected
    with pytest.raises(errors.NoneUsable):
        plan(str(tmp_path))


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
    assert "rank 0" in str(caught.value) and "in one place" in caught.value.hint
    assert ("ckpt run --agree" in caught.value.hint) == (case not in ("dcp/two", "hf-trainer/sharded"))
    assert "--replica-groups" not in caught.value.hint


LEFT = table(
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


@pytest.mark.parametrize(("tree", "asked"), LEFT)
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
