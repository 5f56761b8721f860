"""Where to start, which kind to prefer, what proves a substitute: --resume-from, --prefer, --max-step,
--prove-replicas and --fault-file on real trees.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import materialise
from in_process import run
from places import LAYOUT_TREES
from run_helpers import megatron
from small_files import PAYLOAD, mindspore, saved, tensor
from timed import put
from told_trees import Question, hold, table

from ckpt_tools.api import plan
from ckpt_tools.errors import NoneUsable, UsageError
from ckpt_tools.inspection import digests
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.storage.stalls import Rate

SEVERAL = [
    pytest.param(LAYOUT_TREES / case / "expected.json", id=case)
    for case in ("dcp/two_runs", "deepspeed-universal/beside", "keras/callback")
]
LATEST = "latest_checkpointed_iteration.txt"
GROUPS: dict[str, Any] = {"replica_groups": {"": ((0, 2), (1, 3))}}
MADE = {
    # The newest by time is 20, because training went back, and the tracker names 10.
    "gone-back": (
        "planted",
        f"iter_0000010/:megatron iter_0000030/:megatron iter_0000020/:megatron; put {LATEST} 10; at {LATEST} 3000",
    )
}
TREES = table(
    """
    gone-back
        as it is -> iter_0000020 +mtime-disagrees-with-step +stale-tracker
        as it is | resume_from=tracker -> iter_0000010 +stale-tracker
        as it is | resume_from=mtime -> iter_0000020 +stale-tracker
        as it is | resume_from=step -> iter_0000030 +stale-tracker
        # Whoever chose is not warned about the other orders.
        at latest_checkpointed_iteration.txt -9000 | order=tracker -> iter_0000010 +stale-tracker
        at latest_checkpointed_iteration.txt -9000 | order=mtime -> iter_0000020 +stale-tracker
        at latest_checkpointed_iteration.txt -9000 | order=step -> iter_0000030 +stale-tracker
        at latest_checkpointed_iteration.txt -9000 -> iter_0000020 +mtime-disagrees-with-step +stale-tracker
        # Another checkpoint than the one that was asked for would be a guess.
        rm latest_checkpointed_iteration.txt | resume_from=tracker -> exit 2 choice/tracker-stale
        put latest_checkpointed_iteration.txt {garbage,40,release} | resume_from=tracker
            -> exit 2 choice/tracker-stale
        put latest_checkpointed_iteration.txt garbage -> iter_0000020 +bad-tracker +mtime-disagrees-with-step
        put latest_checkpointed_iteration.txt 40
            -> iter_0000020 -missing-part +dangling-tracker +mtime-disagrees-with-step
        put latest_checkpointed_iteration.txt release
            -> iter_0000020 +dangling-tracker +mtime-disagrees-with-step
        iter_0000005/:megatron | resume_from=tracker max_step=5 -> exit 2 choice/tracker-stale
        # The newest is MindIO TTP's, which has none.
        ttp_saved_checkpoints-step_35/rank_0/ttp_rank_0-1_35.ckpt:mindspore | resume_from=tracker
            -> iter_0000010 +stale-tracker
        iter_0000005/:megatron@0; cut iter_0000010/*/* | resume_from=tracker
            -> iter_0000005 -missing-rank -truncated +dangling-tracker +stale-tracker
        then cut iter_0000005/*/* | resume_from=tracker -> exit 4 choice/none-usable -missing-rank -truncated
    planted
        checkpoint-5/:trainer | resume_from=tracker -> exit 2 choice/tracker-stale
        release/:megatron0 iter_0000010/:megatron; put latest_checkpointed_iteration.txt release
            -> iter_0000010
        release/:megatron0 iter_0000010/:megatron;
            put latest_checkpointed_iteration.txt release | resume_from=tracker -> release
    stable-baselines3/ppo
        cp rl_model_128_steps.zip {best_model/best_model.zip,BEST/best_model.zip,old/best_model.zip}
            -> rl_model_192_steps.zip
        mv rl_model_192_steps.zip {best_model,BEST,old}/best_model.zip; rm rl_model_vecnormalize_192_steps.pkl
            -> rl_model_128_steps.zip +passed-over
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_where_to_start(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


@pytest.mark.parametrize("case", SEVERAL)
def test_of_several_runs_the_hint_names_the_flag_that_tells_them_apart(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    with pytest.raises(UsageError, match="holds several runs") as raised:
        plan(root)
    flags = re.findall(r"--(run|layout) ([^\s,]+)", raised.value.hint)
    runs = re.findall(r"(\S+) \((?:ROOT itself, )?layout (\S+)\)", str(raised.value))
    assert raised.value.hint.startswith("choose one: ") and len(flags) == len(runs) > 1
    for (flag, value), (name, layout) in zip(flags, runs, strict=True):
        assert value == (name if flag == "run" else layout)
        chosen = plan(root, Selection(**{flag: value})).checkpoint
        assert chosen and chosen.path.startswith(str(root)) and chosen.layout == layout


def test_runs_that_are_alike_but_for_a_number_may_be_ranks_and_none_is_offered(tmp_path: Path) -> None:
    for n in (0, 2):
        megatron(tmp_path / f"x_{n}")
    with pytest.raises(UsageError, match="holds several runs") as raised:
        plan(tmp_path)
    assert raised.value.hint == "choose one with --run RUN"


# --- --resume-from


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, f"there is no {LATEST} in"),
        ("garbage", f"{LATEST} is empty, unreadable, or not what its framework writes"),
        ("40", f"{LATEST} names 40, which is not there"),
    ],
)
def test_a_tracker_that_names_nothing_is_told_with_what_to_ask_instead(
    text: str | None, says: str, tmp_path: Path
) -> None:
    megatron(tmp_path, (10,), tracker=False)
    if text is not None:
        put(tmp_path / LATEST, text)
    for command in ("plan", "latest"):
        code, out, err = run(command, str(tmp_path), "--order", "tracker")
        assert (code, out) == (2, "")
        assert says in err and "hint: add --order mtime or --order step" in err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--resume-from tracker --order step", "contradict"),
        ("--resume-from step --order mtime", "contradict"),
        ("--resume-from step --order step", None),
        ("--resume-from tracked", "--resume-from"),
    ],
)
def test_it_may_not_contradict_the_order(flags: str, says: str | None, tmp_path: Path) -> None:
    megatron(tmp_path, (10,), tracker=False)
    code, _, err = run("plan", str(tmp_path), *flags.split())
    assert code == (2 if says else 0)
    assert not says or (says in err and "--resume-from" in err and "hint: " in err)


# --- --prefer and --max-step


@pytest.fixture
def gasps(tmp_path: Path) -> Path:
    """Every rank saves: iterations 20 and 30 whole, and 45, which is no multiple of 10."""
    for at, number in enumerate((20, 30, 45)):
        for rank in range(2):
            state = saved({"model": {"w": tensor(number)}, "iteration": number})
            put(tmp_path / f"iter_{number:07d}/mp_rank_00/model_optim_rng_{rank}.pt", state, 600 * at)
    put(tmp_path / LATEST, "45")
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "expected", "ahead"),
    [
        ({}, 45, set()),
        ({"prefer": Kind.PERIODIC}, 30, {45}),
        ({"prefer": Kind.DYING_GASP}, 45, set()),
        ({"prefer": Kind.PERIODIC, "max_step": 29}, 20, {30, 45}),
        ({"prefer": Kind.PERIODIC, "kind": Kind.DYING_GASP}, 45, set()),
        ({"max_step": 45}, 45, set()),
        ({"max_step": 44}, 30, {45}),
        ({"max_step": 29}, 20, {30, 45}),
    ],
)
def test_prefer_and_max_step(gasps: Path, asked: dict[str, Any], expected: int, ahead: set[int]) -> None:
    made = plan(str(gasps), Selection(save_interval=10, **asked))
    assert (made.resume_step, {c.step for c in made.ahead}) == (expected, ahead)
    assert (made.rejected, made.rollback) == ((), None)
    if asked == {"prefer": Kind.PERIODIC}:  # what is not preferred is still better than nothing
        for file in gasps.glob("iter_00000[23]0/*/*.pt"):
            put(file, b"PK")
        made = plan(str(gasps), Selection(save_interval=10, **asked))
        assert (made.resume_step, [r.checkpoint.step for r in made.rejected]) == (45, [30, 20])


# --- --prove-replicas


def shard(number: int, half: int, odd: bool = False, **more: Any) -> bytes:
    """The state of one half of the model; the odd one has other numbers in one tensor, of the same shape."""
    model = {"w": tensor(number, half), "b": tensor(number, half, 9 if odd else 1)}
    return saved({"model": model, "iteration": number, **more})


def of_rank(root: Path, number: int, rank: int) -> Path:
    return root / f"iter_{number:07d}/mp_rank_{rank % 2:02d}/model_optim_rng_{rank}.pt"


@pytest.fixture
def replicas(tmp_path: Path) -> Path:
    """Iterations 10 and 20 of four ranks; 0 and 2 hold the same state, as do 1 and 3. Rank 3's file of
    iteration 20 is cut off.
    """
    for at, number in enumerate((10, 20)):
        for rank in range(4):
            cut = -30 if (number, rank) == (20, 3) else None
            data = shard(number, rank % 2, rng_state=tensor(rank))
            put(of_rank(tmp_path, number, rank), data[:cut], 600 * at)
    put(tmp_path / LATEST, "20")
    return tmp_path


def source(made: LoadPlan, rank: int) -> tuple[int | None, str]:
    (load,) = made.by_rank[rank].files
    return load.source_rank, load.reason


FAILED_2: dict[str, Any] = {"fault_ranks": frozenset({2}), **GROUPS}


@pytest.mark.slow
def test_equal_tensors_are_the_proof(replicas: Path) -> None:
    """Random numbers are each rank's own, and do not count."""
    made = plan(str(replicas), Selection(prove_replicas=True, **FAILED_2))
    whose, why = source(made, 2)
    assert (made.resume_step, whose) == (20, 0)
    assert why.endswith("; its tensors are bit for bit those of rank 2's file")
    # not asked, not said
    assert source(plan(str(replicas), Selection(**FAILED_2)), 2)[1].endswith("model_optim_rng_2.pt")


@pytest.mark.slow
def test_the_proof_is_read_as_slowly_as_asked_and_in_the_way_asked(
    replicas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took: list[int] = []
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Rate, "took", lambda self, n: took.append(n))
    real = digests.tensor_digests

    def spied(path: str, anatomy: Any, progress: Any, *, jobs: int, io: str) -> dict[str, str]:
        before, size = len(took), sum(t.nbytes for t in anatomy.tensors)
        found = real(path, anatomy, progress, jobs=jobs, io=io)
        seen.append((os.path.basename(path), sum(took[before:]) == size > 0, jobs, io))
        return found

    monkeypatch.setattr(digests, "tensor_digests", spied)
    plan(str(replicas), Selection(prove_replicas=True, jobs=3, io="direct", limit_rate=1e9, **FAILED_2))
    assert {name for name, *_ in seen} >= {"model_optim_rng_0.pt", "model_optim_rng_2.pt"}
    assert {row[1:] for row in seen} == {(True, 3, "direct")}


@pytest.mark.slow
def test_a_tensor_that_differs_is_named_and_the_checkpoint_is_passed_over(replicas: Path) -> None:
    """Two files that should hold the same state do not: nobody knows which is right."""
    put(of_rank(replicas, 20, 2), shard(20, 0, odd=True, rng_state=tensor(2)), 600)
    made = plan(str(replicas), Selection(prove_replicas=True, **FAILED_2))
    (lost,) = made.rejected
    assert (made.resume_step, lost.checkpoint.step) == (10, 20)
    why = "rank 0's file and rank 2's file should hold the same state, but differ in model.b"
    told = [(f.message, f.path) for f in lost.findings if f.code == "replica-mismatch"]
    assert told == [(why, str(of_rank(replicas, 20, 0)))]
    lax = plan(str(replicas), Selection(**FAILED_2))
    assert (lax.resume_step, source(lax, 2)[0]) == (20, 0)


def test_where_replicas_differ_a_cut_file_has_no_substitute(replicas: Path) -> None:
    """Groups of four: rank 3 could take rank 1's file, but the next member of the group holds something else."""
    for rank in range(3):
        put(of_rank(replicas, 20, rank), shard(20, 0, odd=rank == 1, rng_state=tensor(rank)), 600)
    made = plan(str(replicas), Selection(prove_replicas=True, replica_groups={"": ((0, 1, 2, 3),)}))
    (lost,) = made.rejected
    assert made.resume_step == 10
    assert {"truncated", "replica-mismatch", "missing-rank"} <= {f.code for f in lost.findings}
    assert any("differ in model.b" in f.message for f in lost.findings if f.code == "replica-mismatch")


@pytest.mark.slow
def test_the_only_good_member_is_a_note_and_with_strict_no_substitute(replicas: Path) -> None:
    made = plan(str(replicas), Selection(prove_replicas=True, **GROUPS))
    assert (made.resume_step, source(made, 3)[0]) == (20, 1)
    why = "model_optim_rng_1.pt is the only good member of its group: there is nothing to compare it with"
    told = [(f.message, str(f.severity)) for f in made.warnings if f.code == "replica-unproven"]
    assert told == [(why, "note")]
    strict = plan(str(replicas), Selection(prove_replicas=True, strict=True, **GROUPS))
    assert (strict.resume_step, [r.checkpoint.step for r in strict.rejected]) == (10, [20])
    assert ("replica-unproven", "warning") in {(f.code, str(f.severity)) for f in strict.rejected[0].findings}


def test_files_without_a_checksum_are_compared_too(tmp_path: Path) -> None:
    """MindSpore without crc_check: nothing else would show that two replicas differ in a bit."""
    whole = mindspore(False, 0, step_num=10, epoch_num=1)
    at = whole.index(PAYLOAD) + 2
    other = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
    for rank, data in enumerate((whole, other, b"")):
        put(tmp_path / f"rank_{rank}/net-1_10.ckpt", data)
    trio: dict[str, Any] = {"replica_groups": {"": ((0, 1, 2),)}}
    assert source(plan(str(tmp_path), Selection(**trio)), 2)[0] == 1
    with pytest.raises(NoneUsable, match="replica-mismatch") as caught:
        plan(str(tmp_path), Selection(prove_replicas=True, **trio))
    assert "replica-mismatch" in {f.code for f in caught.value.plan.rejected[0].findings}  # type: ignore[union-attr]


# --- --fault-file


def test_the_ranks_of_a_fault_file_get_a_replica(replicas: Path) -> None:
    faults = put(replicas.parent / "elsewhere/f.json", '{"version": 1, "fault_ranks": [3, 2]}')
    flags = ("--max-step", "10", "--replica-groups", "0,2;1,3", "--fault-file", str(faults))
    code, out, _ = run("plan", str(replicas), *flags, "--json")
    taken = {r["rank"] for r in json.loads(out)["ranks"] if r["files"][0]["substituted"]}
    assert (code, taken) == (0, {2, 3})
