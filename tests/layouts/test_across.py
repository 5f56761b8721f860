"""What only several files together show: MindFormers' records, replicas that stand out, attempts that were
mixed, files pruned rank by rank.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from small_files import adam, mindspore, saved, tensor
from timed import put
from told_trees import Question, hold, table

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import NoneUsable
from ckpt_tools.model.finding import Finding
from ckpt_tools.planning import equal_files

JOB = ";".join(f"rank_0/net-1_{n}.ckpt:mindspore rank_1/net-1_{n}.ckpt:mindspore=" for n in (10, 20, 30, 40))
MADE = {"job": ("planted", JOB), "deep": ("planted", f"{JOB};put rank_1/meta.json {'[' * 100_000}")}
TREES = table(
    """
    job
        # --- MindFormers' records
        put rank_0/meta.json {"last_epoch": 1, "last_step": 40, "last_ckpt_file": "net-1_40.ckpt"};
            put rank_1/meta.json {"last_epoch": 1, "last_step": 40, "last_ckpt_file": "net-1_40.ckpt"};
            put resume_record/latest_checkpointed_iteration.txt net-1_40.ckpt
            -> step 40 +world-size-inferred => ok
        put rank_1/meta.json [1] -> step 40 +world-size-inferred => suspect bad-tracker
        put rank_1/meta.json {"last_epoch": 1, "last_step": "40", "last_ckpt_file": "net-1_40.ckpt"}
            -> step 40 +world-size-inferred => suspect bad-tracker
        put rank_1/meta.json {"last_epoch": 1, "last_step": 40, "last_ckpt_file": "../net-1_40.ckpt"}
            -> step 40 +world-size-inferred => suspect bad-tracker
        put rank_1/meta.json {"last_epoch": 1, "last_step": 10, "last_ckpt_file": "net-1_40.ckpt"}
            -> step 40 +world-size-inferred => suspect bad-tracker
        put rank_1/meta.json {"last_epoch": 1, "last_step": 50, "last_ckpt_file": "net-1_50.ckpt"}
            -> step 40 +world-size-inferred => suspect dangling-tracker
        rank_1/meta.json:empty -> step 40 +world-size-inferred => suspect bad-tracker
        # Ranks that note different steps.
        put rank_0/meta.json {"last_epoch": 1, "last_step": 40, "last_ckpt_file": "net-1_40.ckpt"};
            put rank_1/meta.json {"last_epoch": 1, "last_step": 10, "last_ckpt_file": "net-1_10.ckpt"}
            -> step 40 +world-size-inferred => suspect step-mismatch
        # The decision of all ranks; a MindSpore name has no global step: any number may be right.
        put resume_record/latest_checkpointed_iteration.txt net-1_50.ckpt
            -> step 40 +world-size-inferred => suspect dangling-tracker
        put resume_record/latest_checkpointed_iteration.txt {20,999} -> step 40 +world-size-inferred => ok
        resume_record/latest_checkpointed_iteration.txt:empty
            -> step 40 +world-size-inferred => suspect bad-tracker
        # --- What a rank has pruned: it keeps two, and the other has not come to it. Else one was lost.
        rm rank_1/net-1_10.ckpt -> step 40 +world-size-inferred => suspect missing-rank
        rm rank_1/net-1_20.ckpt -> step 40 +world-size-inferred => broken missing-rank
        rm rank_1/net-1_10.ckpt; rm rank_1/net-1_20.ckpt
            -> step 40 +world-size-inferred => suspect missing-rank
        # A gasp of another layout: what is usual for one is unknown to the other.
        tft_saved_checkpoints-step_50/rank_0/ttp_rank_0-1_50.ckpt:mindspore50;
            tft_saved_checkpoints-step_50/rank_1/ttp_rank_1-1_50.ckpt:mindspore50=
            -> tft_saved_checkpoints-step_50 +world-size-inferred
    deep
        as it is -> step 40 +world-size-inferred => suspect bad-tracker
    megatron/tp/iter_0000020
        # Asked about one checkpoint, nobody has looked where its tracker would be.
        as it is -> step 20 => ok
    planted
        # A lone damaged file is not nothing.
        last.ckpt:zeros | allow_none=yes -> exit 4 choice/unplaced-newer +no-layout
        # Of replicas one of another size stands out; of two none does.
        rank_0/checkpoint.pth.tar:epoch3 rank_1/checkpoint.pth.tar:epoch3= rank_2/checkpoint.pth.tar:epoch3=
            -> epoch 3 +world-size-inferred => ok
        rank_0/checkpoint.pth.tar:epoch3 rank_1/checkpoint.pth.tar:epoch3= rank_2/checkpoint.pth.tar:lightning30=
            -> exit 4 choice/none-usable -missing-rank -replica-mismatch +mtime-not-kept +world-size-inferred => ok
        # Without a file to load.
        5/_CHECKPOINT_METADATA:json 5/commit_success.txt -> exit 4 choice/none-usable -missing-part
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_files_say_of_each_other(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lacking", "what", "told"),
    [(1, "optimizer", False), (3, "optimizer", True), (5, "optimizer", True), (1, "model", True)],
)
def test_before_its_first_step_an_optimizer_has_no_state(
    lacking: int, what: str, told: bool, tmp_path: Path
) -> None:
    for step in range(1, 6):
        state = {"step": step, "model": {"w": tensor(step), "b": tensor(-step)}, "optimizer": adam(step)}
        if step == lacking:
            state[what] = {"state": {}, "param_groups": []} if what == "optimizer" else {"w": tensor(step)}
        for rank in range(2):
            put(tmp_path / f"step_{step}/rank_{rank}.pt", saved({**state, "rank": rank}), 100 * step)
    odd = {f.path for f in found(tmp_path) if f.code == "signature-changed"}
    assert odd == ({str(tmp_path / f"step_{lacking}/rank_{rank}.pt") for rank in range(2)} if told else set())


def found(root: Path) -> list[Finding]:
    """Those of files, with the paths of these."""
    return [replace(f, path=r.report.path) for r in verify([str(root)]).files for f in r.report.findings]


def test_replicas_are_not_read_to_compare_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand data parallel ranks hold the same bytes: a few pages of each tell that, and that it is so at
    other steps.
    """
    for i, step in enumerate((10, 20, 30)):
        for rank in range(4):
            put(tmp_path / f"rank_{rank}/net-1_{step}.ckpt", mindspore(True, 0, step_num=step), 100 * i)
    monkeypatch.setattr(equal_files, "are_equal", lambda a, b: pytest.fail(f"{a} and {b} were compared"))
    assert "same-content" not in {f.code for f in found(tmp_path)}
    assert plan(str(tmp_path)).resume_step == 30


@pytest.mark.slow
def test_a_number_that_no_rank_has_costs_no_memory(tmp_path: Path) -> None:
    put(tmp_path / "rank_99999999999/net-1_10.ckpt", mindspore(True, 0, step_num=10))
    assert verify([str(tmp_path)]).summary.broken == 0
    assert plan(str(tmp_path)).world_size in (None, 1)
    put(tmp_path / "many/rank_99999/net-1_10.ckpt", mindspore(True, 0, step_num=10))
    with pytest.raises(NoneUsable) as refused:
        plan(str(tmp_path / "many"))
    assert refused.value.plan is not None and len(refused.value.plan.rejected[0].findings) < 200
