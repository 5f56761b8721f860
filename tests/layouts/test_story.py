"""What people read of a plan: the one sentence, what was considered, why each lost, who stands in for whom."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import timed
from fixture_trees import tree_of
from in_process import run
from run_helpers import megatron
from small_files import megatron_state, saved, tensor

from ckpt_tools.api import latest, plan
from ckpt_tools.errors import CkptError
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.output.page import View
from ckpt_tools.output.plan import render
from ckpt_tools.output.sentence import sum_up

LATEST = "latest_checkpointed_iteration.txt"
ALONE = "It holds weights only: the optimizer starts from scratch."


def put(root: Path, name: str, data: bytes | str, at: float) -> None:
    timed.put(root / name, data, at)


def state(step: int, rank: int) -> bytes:
    """What a rank of four with tensor parallel 2 saves: the same as its replica, random numbers apart."""
    return saved(megatron_state(step, rank, 2, 1, 4, {"w": tensor(step, rank % 2)}))


def name_of(step: int, rank: int) -> str:
    return f"iter_{step:07d}/mp_rank_{rank % 2:02d}/model_optim_rng_{rank}.pt"


def everyone(root: Path, *steps: int) -> Path:
    """The files of four ranks, tensor parallel 2: ranks 0 and 2 hold the same state, and so do 1 and 3."""
    for at, step in enumerate(steps):
        for rank in range(4):
            put(root, name_of(step, rank), state(step, rank), at)
    put(root, LATEST, str(steps[-1]), len(steps))
    return root


def steady(text: str, root: Path) -> list[str]:
    """Without the directory, and without sizes: they are those of torch's own files."""
    return re.sub(r"[\d,]+ of [\d,]+ bytes", "N of M bytes", text.replace(str(root), "ROOT")).splitlines()


def failed(root: Path, selection: Selection) -> LoadPlan:
    with pytest.raises(CkptError) as caught:
        plan(str(root), selection)
    assert caught.value.plan is not None
    return caught.value.plan


def page(made: LoadPlan, *, verbose: bool = True) -> str:
    return render(made, View(verbose=verbose))


def told(root: Path, *, verbose: bool = True, **asked: object) -> list[str]:
    made = plan(str(root), Selection(**asked))  # type: ignore[arg-type]
    return steady(page(made, verbose=verbose), root)


TOPOLOGY = """\
How many ranks, and who says so
  tp = 2: args.tensor_model_parallel_size in the files
  pp = 1: args.pipeline_model_parallel_size in the files
  world_size = {}: world_size in the files"""


def test_the_newest_is_chosen(tmp_path: Path) -> None:
    lines = told(megatron(tmp_path, (10, 20)))
    assert lines[0] == f"Resume from step 20, the newest checkpoint. {ALONE}"
    assert "  arguments: --load ROOT --ckpt-step 20" in lines
    expected = f"""\
  1. step 20, iter_0000020: chosen
  2. step 10, iter_0000010: not looked at
{TOPOLOGY.format(2)}""".splitlines()
    assert lines[-len(expected) :] == expected


def test_a_fallback_names_what_was_found(tmp_path: Path) -> None:
    put(megatron(tmp_path, (10, 20)), "iter_0000020/mp_rank_01/model_optim_rng.pt", b"PK", 1)
    lines = told(tmp_path, verbose=False)
    why = "Step 20 was skipped: rank 1 has no good copy. 10 steps of training are lost."
    assert lines[0] == f"Resume from step 10. {ALONE} {why}"
    expected = f"""\
Skipped: step 20 (iter_0000020)

error: iter_0000020/mp_rank_01/model_optim_rng.pt at byte 0
  the file does not begin like torch_zip or torch_legacy [bad-header]
  hint: restore this file from a backup, its download or a replica
so rank 1 has no good model file, and no rank with the same state has one (the same on all dp and cp ranks)

warning: {LATEST}
  it names 20, which is damaged or not complete [dangling-tracker]
  hint: a framework that follows this file alone fails or starts from nothing""".splitlines()
    assert [line.partition(": start it")[0] for line in lines[-len(expected) :]] == expected


@pytest.mark.slow
def test_a_rollback_leaves_out_what_lies_beyond_its_target(tmp_path: Path) -> None:
    """Ranks 0 and 2 failed while iteration 30 was saved, which is no multiple of the save interval. Iteration
    40 is one, but lies beyond the target.
    """
    everyone(tmp_path, 10, 20, 30)
    for rank in range(4):
        put(tmp_path, name_of(40, rank), state(40, rank), 1.5)
    lines = told(tmp_path, save_interval=20, fault_ranks=frozenset({0, 2}), order="mtime")
    why = "Step 30 was skipped: ranks 0 and 2 have no good copy."
    assert lines[0].startswith(f"Resume from step 20. {ALONE} {why}")
    at = lines.index("Checkpoints, best first (4)")
    assert lines[at + 1 : at + 5] == [
        "  1. step 30, iter_0000030: skipped, see above",
        "  2. step 40, iter_0000040: left out by --save-interval",
        "  3. step 20, iter_0000020: chosen",
        "  4. step 10, iter_0000010: not looked at",
    ]
    back = "Rollback: the emergency checkpoint at step 30 is not usable: rank 0 failed"
    assert lines[at + 5].startswith(back)


def test_a_substitute_and_its_proof(tmp_path: Path) -> None:
    everyone(tmp_path, 10)
    put(tmp_path, "iter_0000010/mp_rank_01/model_optim_rng_3.pt", state(10, 3)[:-1], 0)
    asked = {"replica_groups": {"": ((0, 2), (1, 3))}, "prove_replicas": True, "fault_ranks": frozenset({2})}
    text = "\n".join(told(tmp_path, **asked))
    assert (
        "rank 0's file: --replica-groups; its tensors have the names, types and shapes of rank 2's own file"
        " iter_0000010/mp_rank_00/model_optim_rng_2.pt; its tensors are bit for bit those of rank 2's file"
    ) in text
    assert "rank 1's file: --replica-groups; nothing in the files proves or contradicts it" in text


def test_none_usable_is_told_too(tmp_path: Path) -> None:
    megatron(tmp_path, (10, 20))
    for step in (10, 20):
        put(tmp_path, f"iter_{step:07d}/mp_rank_01/model_optim_rng.pt", b"PK", step)
    lines = steady(page(failed(tmp_path, Selection())), tmp_path)
    why = "No checkpoint can be used: without one, training starts from scratch. Step 20 was skipped"
    assert lines[0].startswith(why)
    skipped = [line for line in lines if line.startswith("Skipped: ")]
    assert skipped == ["Skipped: step 20 (iter_0000020)", "Skipped: step 10 (iter_0000010)"]
    lines = steady(page(failed(tmp_path, Selection(max_attempts=1))), tmp_path)
    assert "  2. step 10, iter_0000010: not looked at" in lines
    assert any("CKPT_MAX_ATTEMPTS=1 stopped the search [attempts-exhausted" in line for line in lines)


def test_nothing_there(tmp_path: Path) -> None:
    expected = (
        "There is no checkpoint to resume from: without one, training starts from scratch.\n\n"
        "Checkpoints, best first (0)\n  none\n"
    )
    assert page(failed(tmp_path, Selection())) == expected
    assert page(plan(str(tmp_path), Selection(allow_none=True))) == expected


@pytest.mark.slow
def test_every_candidate_is_listed(tmp_path: Path) -> None:
    megatron(tmp_path, range(1, 15))
    for step in range(3, 15):
        put(tmp_path, f"iter_{step:07d}/mp_rank_00/model_optim_rng.pt", b"PK", step)
    lines = told(tmp_path, max_attempts=20)
    why = "12 better checkpoints were skipped. Step 14 was skipped: rank 0"
    assert lines[0].startswith(f"Resume from step 2. {ALONE} {why}")
    assert sum(line.endswith(": skipped, see above") for line in lines) == 12
    assert {"  13. step 2, iter_0000002: chosen", "  14. step 1, iter_0000001: not looked at"} <= {*lines}


def test_latest_tells_only_of_its_own_rank(tmp_path: Path) -> None:
    megatron(tmp_path, (10,))
    lines = steady(page(latest(str(tmp_path), Selection(rank=1))), tmp_path)
    assert sum("model_optim_rng.pt" in line for line in lines) == 1


# --- the command line


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # whether a file is old enough for its verdict to be kept is a matter of time
    monkeypatch.setenv("CKPT_NO_CACHE", "1")
    return megatron(tmp_path / "run", (10, 20))


@pytest.mark.slow
def test_plan_and_latest_tell_it_where_it_does_not_disturb(tree: Path) -> None:
    assert run("plan", str(tree), "-v") == (0, page(plan(str(tree))), "")
    expected = f"Resume from step 20, the newest checkpoint. {ALONE}\n"
    assert run("plan", str(tree), "-q") == (0, expected, "")
    for form in ("json", "shell"):
        assert (
            run("plan", str(tree), "-v", "--format", form)[:2] == run("plan", str(tree), "--format", form)[:2]
        )
    code, out, err = run("latest", str(tree), "--rank", "0", "-v")
    assert (code, out) == (0, f"{tree}/iter_0000020/mp_rank_00/model_optim_rng.pt\n")
    assert err == page(latest(str(tree), Selection(rank=0)))
    assert run("latest", str(tree), "--rank", "0") == (0, out, f"ckpt: note: {ALONE}\n")


@pytest.mark.slow
def test_a_failure_tells_it_as_well(tree: Path) -> None:
    for step in (10, 20):
        put(tree, f"iter_{step:07d}/mp_rank_01/model_optim_rng.pt", b"PK", step)
    expected = page(failed(tree, Selection()))
    assert "skipped" in expected
    code, out, err = run("plan", str(tree), "-v")
    assert (code, out) == (4, expected)
    assert "none is usable" in err
    code, out, err = run("latest", str(tree), "--rank", "0", "-v")
    assert (code, out) == (4, "")
    assert err.startswith(expected)
    code, out, _ = run("plan", str(tree), "-v", "--json")
    assert (code, json.loads(out)["checkpoint"]) == (4, None)


@pytest.mark.parametrize(
    ("case", "state"),
    [("hf-trainer/trainer", "resumable"), ("mindspore/flat", "resumable"), ("files/bare", "weights-only"), ("orbax/zarr", "")],
)  # fmt: skip
def test_a_plan_says_whether_it_loads_a_state_of_training(case: str, state: str, tmp_path: Path) -> None:
    made = plan(str(tree_of(case, tmp_path)), Selection(order="step"))
    assert made.state == state
    assert ("weights only" in sum_up(made)) is (state == "weights-only")
