"""What only several files together show: MindFormers' records, replicas that stand out, attempts that were
mixed, files pruned rank by rank.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from small_files import adam, mindspore, sample, saved, tensor
from timed import put

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


def job(root: Path, ranks: int = 2, steps: tuple[int, ...] = (10, 20)) -> Path:
    for i, step in enumerate(steps):
        for rank in range(ranks):
            put(root / f"rank_{rank}/net-1_{step}.ckpt", mindspore(True, rank, step_num=step), T0 + 100 * i)
    return root


def note(root: Path, rank: int, epoch: int, step: int, name: str = "") -> Path:
    text = json.dumps(
        {"last_epoch": epoch, "last_step": step, "last_ckpt_file": name or f"net-{epoch}_{step}.ckpt"}
    )
    return put(root / f"rank_{rank}/meta.json", text.encode())


# -- MindFormers' records


def test_records_that_agree_are_no_finding(tmp_path: Path) -> None:
    root = job(tmp_path)
    for rank in (0, 1):
        note(root, rank, 1, 20)
    put(root / "resume_record/latest_checkpointed_iteration.txt", b"net-1_20.ckpt\n")
    result = verify([str(root)])
    assert not [x for x in result.findings if x.severity] and not result.summary.unrecognised


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "bad-tracker"),
        (b"[1]", "bad-tracker"),
        (b'{"last_epoch": 1, "last_step": "20", "last_ckpt_file": "net-1_20.ckpt"}', "bad-tracker"),
        (b'{"last_epoch": 1, "last_step": 20, "last_ckpt_file": "../net-1_20.ckpt"}', "bad-tracker"),
        (b'{"last_epoch": 1, "last_step": 10, "last_ckpt_file": "net-1_20.ckpt"}', "bad-tracker"),
        (b'{"last_epoch": 1, "last_step": 30, "last_ckpt_file": "net-1_30.ckpt"}', "dangling-tracker"),
        (b"[" * 100_000, "bad-tracker"),
    ],
)
def test_a_rank_s_note_is_a_hint_to_be_checked(tmp_path: Path, text: bytes, code: str) -> None:
    root = job(tmp_path)
    put(root / "rank_1/meta.json", text)
    assert [path for path, _, _ in found(root, code)] == ["rank_1/meta.json"]


def test_ranks_that_note_different_steps_are_named(tmp_path: Path) -> None:
    root = job(tmp_path)
    note(root, 0, 1, 20)
    note(root, 1, 1, 10)
    ((path, severity, message),) = found(root, "step-mismatch")
    assert (path, severity) == ("rank_1/meta.json", Severity.WARNING) and "epoch 1 step 10" in message


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"net-1_30.ckpt", "dangling-tracker"),
        (b"20", None),
        (b"999", "dangling-tracker"),
        (b"?\0?", "bad-tracker"),
        (b"", "bad-tracker"),
    ],
)
def test_the_decision_of_all_ranks_names_what_is_there(tmp_path: Path, text: bytes, code: str | None) -> None:
    root = job(tmp_path)
    for path in root.glob("rank_*/*.ckpt"):  # a MindSpore name has no global step: any number may be right
        os.utime(path, (T0, T0))
    put(root / "resume_record/latest_checkpointed_iteration.txt", text)
    seen = {c for c in ("bad-tracker", "dangling-tracker") if found(root, c)}
    assert seen == ({code} if code and not text.isdigit() else set())


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


def test_what_a_rank_has_pruned_is_no_damage(tmp_path: Path) -> None:
    root = job(tmp_path, ranks=2, steps=(10, 20, 30, 40))
    (root / "rank_1/net-1_10.ckpt").unlink()
    (root / "rank_1/net-1_20.ckpt").unlink()  # rank 1 keeps two, rank 0 has not come to it
    assert {severity for _, severity, _ in found(root, "missing-rank")} == {Severity.WARNING}
    put(root / "rank_1/net-1_10.ckpt", mindspore(True, 1, step_num=10))  # an older one is there: 20 was lost
    assert {severity for _, severity, _ in found(root, "missing-rank")} == {Severity.ERROR}


def test_a_lone_damaged_file_is_not_nothing(tmp_path: Path) -> None:
    """With --allow none a job would start fresh over it."""
    put(tmp_path / "last.ckpt", bytes(4096))
    with pytest.raises(NoneUsable):
        plan(str(tmp_path), Selection(allow_none=True))


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


def test_a_gasp_of_another_layout_beside_a_run_lacks_nothing_of_it(tmp_path: Path) -> None:
    """Two layouts in one job: what is usual for one is unknown to the other."""
    job(tmp_path)
    put(
        tmp_path / "tft_saved_checkpoints-step_30/rank_0/ttp_rank_0-1_30.ckpt",
        mindspore(True, 0, step_num=30, epoch_num=1, cur_rank=0),
        T0 + 900,
    )
    put(
        tmp_path / "tft_saved_checkpoints-step_30/rank_1/ttp_rank_1-1_30.ckpt",
        mindspore(True, 1, step_num=30, epoch_num=1, cur_rank=1),
        T0 + 900,
    )
    assert plan(str(tmp_path)).resume_step == 30


def test_a_checkpoint_without_a_file_to_load_is_none(tmp_path: Path) -> None:
    put(tmp_path / "5/_CHECKPOINT_METADATA", b"{}")
    put(tmp_path / "5/commit_success.txt", b"ok")
    with pytest.raises(NoneUsable):
        plan(str(tmp_path))
