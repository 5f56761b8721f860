"""What only several files together show: MindFormers' records, replicas that stand out, attempts that were
mixed, files pruned rank by rank.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_files import adam, mindspore, sample, saved, tensor
from timed import put
from told_trees import Question, hold, table

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import NoneUsable
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.selection import Selection

T0 = 1_760_000_000


def found(root: Path, code: str) -> list[tuple[str, Severity, str]]:
    result = verify([str(root)])
    rows = [(f.report.path, x) for f in result.files for x in f.report.findings] + [
        (x.path, x) for x in result.findings
    ]
    return [(os.path.relpath(path, root), x.severity, x.message) for path, x in rows if x.code == code]


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
    planted
        # A lone damaged file is not nothing.
        last.ckpt:zeros | allow_none=yes -> exit 4 choice/unplaced-newer +no-layout
        # Without a file to load.
        5/_CHECKPOINT_METADATA:json 5/commit_success.txt -> exit 4 choice/none-usable -missing-part
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_files_say_of_each_other(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


# -- tensors


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
        if step == lacking and what == "optimizer":
            state["optimizer"] = {"state": {}, "param_groups": []}
        elif step == lacking:
            del state["model"]["b"]
        for rank in range(2):
            put(tmp_path / f"step_{step}/rank_{rank}.pt", saved({**state, "rank": rank}), T0 + 100 * step)
    odd = {path for path, _, _ in found(tmp_path, "signature-changed")}
    assert odd == ({f"step_{lacking}/rank_{rank}.pt" for rank in range(2)} if told else set())


# -- replicas


def replicas(root: Path, odd: bytes | None) -> Path:
    for rank in range(4):
        put(root / f"rank_{rank}/checkpoint.pth.tar", odd if odd and rank == 2 else sample(3))
    return root


def test_equal_replicas_are_no_finding(tmp_path: Path) -> None:
    assert not found(replicas(tmp_path, None), "size-outlier") and not found(tmp_path, "signature-changed")


def test_a_replica_of_another_size_stands_out(tmp_path: Path) -> None:
    big = saved(
        {
            "epoch": 3,
            "state_dict": {"w": tensor(3, shape=(3, 4)), "more": tensor(4).repeat(200, 1)},
            "optimizer": {},
        }
    )
    root = replicas(tmp_path, big)
    assert [path for path, _, _ in found(root, "size-outlier")] == ["rank_2/checkpoint.pth.tar"]


def test_replicas_are_not_read_to_compare_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand data parallel ranks hold the same bytes: a few pages of each tell that, and that it is so at
    other steps.
    """
    from ckpt_tools.planning import equal_files

    for i, step in enumerate((10, 20, 30)):
        for rank in range(4):
            put(tmp_path / f"rank_{rank}/net-1_{step}.ckpt", mindspore(True, 0, step_num=step), T0 + 100 * i)
    monkeypatch.setattr(equal_files, "are_equal", lambda a, b: pytest.fail(f"{a} and {b} were compared"))
    assert not found(tmp_path, "same-content")
    assert plan(str(tmp_path)).resume_step == 30


def test_of_two_replicas_none_is_odd(tmp_path: Path) -> None:
    put(tmp_path / "rank_0/checkpoint.pth.tar", sample(3))
    put(
        tmp_path / "rank_1/checkpoint.pth.tar",
        saved({"epoch": 3, "state_dict": {"w": tensor(1).repeat(300, 1)}}),
    )
    assert not found(tmp_path, "size-outlier") and not found(tmp_path, "signature-changed")


def two_tensors(rank: int, step: int) -> tuple[bytes, int]:
    """A MindSpore file without trailer, and where its last record begins."""
    whole = mindspore(False, rank, step_num=step)
    ends, at = [], 0
    while at < len(whole):
        size, shift, i = 0, 0, at + 1
        while True:
            size |= (whole[i] & 127) << shift
            shift, i = shift + 7, i + 1
            if whole[i - 1] < 128:
                break
        at = i + size
        ends.append(at)
    return whole, ends[-2]


def test_a_replica_group_shows_a_file_cut_between_two_records(tmp_path: Path) -> None:
    """Alone of its step and rank, and whole in itself: nothing else can show it."""
    whole, border = two_tensors(0, 10)
    put(tmp_path / "rank_0/net-1_10.ckpt", whole)
    put(tmp_path / "rank_1/net-1_10.ckpt", whole[:border])
    unaware = plan(str(tmp_path))
    assert [r.files[0].source_rank for r in unaware.by_rank] == [0, 1]
    aware = plan(str(tmp_path), Selection(replicas_all=True))
    assert [r.files[0].source_rank for r in aware.by_rank] == [0, 0] and aware.by_rank[1].files[0].substituted
    put(tmp_path / "rank_0/net-1_10.ckpt", whole[:border])  # both: now they agree, and nobody knows
    assert [r.files[0].source_rank for r in plan(str(tmp_path), Selection(replicas_all=True)).by_rank] == [
        0,
        1,
    ]


# -- attempts and pruning


def megatron(root: Path, step: int, rank: int, at: int) -> Path:
    data = saved({"iteration": step, "model": {"w": tensor(step, rank)}})
    return put(root / f"iter_{step:07d}/mp_rank_{rank:02d}/model_optim_rng.pt", data, at)


def test_a_tracker_above_root_is_not_missed(tmp_path: Path) -> None:
    """Asked about one checkpoint, nobody has looked where its tracker would be."""
    for rank in (0, 1):
        megatron(tmp_path, 20, rank, T0)
    assert [path for path, _, _ in found(tmp_path, "missing-tracker")] == ["."]
    inside = tmp_path / "iter_0000020"
    assert not found(inside, "missing-tracker")
    made = plan(str(inside))
    assert made.resume_step == 20 and "missing-tracker" not in {f.code for f in made.warnings}


@pytest.mark.slow
def test_a_number_that_no_rank_has_costs_no_memory(tmp_path: Path) -> None:
    put(tmp_path / "rank_99999999999/net-1_10.ckpt", mindspore(True, 0, step_num=10))
    assert verify([str(tmp_path)]).summary.broken == 0
    assert plan(str(tmp_path)).world_size in (None, 1)
    put(tmp_path / "many/rank_99999/net-1_10.ckpt", mindspore(True, 0, step_num=10))
    with pytest.raises(NoneUsable) as refused:
        plan(str(tmp_path / "many"))
    assert refused.value.plan is not None and len(refused.value.plan.rejected[0].findings) < 200
