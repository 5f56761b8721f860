"""``--agree``: nodes with disks of their own come to one checkpoint, or all fail. Two real processes, each
with a directory as its disk.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from run_helpers import broken, megatron
from two_nodes import WORLD, Nodes, free_port

from ckpt_tools import job
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.job.decision import Failed
from ckpt_tools.job.meeting import Meeting
from ckpt_tools.model.selection import Selection


def together(answers: list[tuple[int, dict[str, str], str]]) -> dict[str, str]:
    """What both nodes saw, which must be the same checkpoint."""
    assert [code for code, _, _ in answers] == [0, 0], answers
    keys = ("CKPT_STEP", "CKPT_FINGERPRINT", "CKPT_RESUME")
    first, second = ([env[k] for k in keys] for _, env, _ in answers)
    assert first == second
    return answers[0][1]


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_both_disks_are_sound(nodes: Nodes) -> None:
    answers = nodes.run()
    assert together(answers)["CKPT_STEP"] == "20"
    for (_, env, _), disk in zip(answers, nodes.disks, strict=True):
        plan = json.loads(Path(env["CKPT_PLAN"]).read_text())
        assert [r["rank"] for r in plan["ranks"]] == [0, 1, 2, 3] and plan["resume"]["args"][1] == str(disk)
        assert len({f["node"] for r in plan["ranks"] for f in r["files"]}) == 2
        assert plan["ranks"][3]["files"][0]["path"].startswith(str(nodes.disks[1]))


def test_through_torch(nodes: Nodes) -> None:
    broken(nodes.disks[1], 20, 3)
    answers = nodes.run(meet=f"127.0.0.1:{free_port()}")
    assert together(answers)["CKPT_STEP"] == "10"
    # also on the node whose own disk is fine
    assert all("step 20" in err and "truncated" in err for _, _, err in answers)


def test_what_is_broken_on_one_node_is_given_up_by_all(nodes: Nodes) -> None:
    """Where no candidate is left, the decision names each."""
    broken(nodes.disks[0], 20, 1)
    assert together(nodes.run())["CKPT_STEP"] == "10"
    shutil.rmtree(nodes.shared)
    broken(nodes.disks[1], 10, 2)
    assert [code for code, _, _ in nodes.run()] == [4, 4]
    written = [json.loads(p.read_text())["candidates"] for p in nodes.shared.rglob("1.json")]
    told = [[(c["step"], c["outcome"]) for c in candidates] for candidates in written]
    assert told == [[(20, "rejected"), (10, "rejected")]] * 2


def outcomes(answer: tuple[int, dict[str, str], str]) -> tuple[list[tuple[int, str]], list[dict[str, Any]]]:
    """(step, outcome) of every candidate, and the findings of those that were rejected, as one node's
    decision records them.
    """
    plan = json.loads(Path(answer[1]["CKPT_PLAN"]).read_text())
    rejected = [(c["step"], c["path"]) for c in plan["candidates"] if c["outcome"] == "rejected"]
    assert [(r["step"], r["path"]) for r in plan["rejected"]] == rejected
    findings = [f for r in plan["rejected"] for f in r["findings"]]
    return [(c["step"], c["outcome"]) for c in plan["candidates"]], findings


def test_what_is_only_on_one_node_is_no_candidate_and_that_is_said(nodes: Nodes) -> None:
    shutil.rmtree(nodes.disks[1] / "iter_0000020")
    answers = nodes.run()
    assert together(answers)["CKPT_STEP"] == "10"
    for answer, disk in zip(answers, nodes.disks, strict=True):
        steps, (found,) = outcomes(answer)
        assert steps == [(20, "rejected"), (10, "chosen")]
        assert (found["code"], found["path"]) == ("missing-part", str(disk / "iter_0000020"))
        assert "#1 has no file of it" in found["message"] and "#1 has no file of it" in answer[2]
    assert [code for code, _, _ in nodes.run("--no-fallback")] == [6, 6]


def test_outcomes_are_recorded_as_they_were(tmp_path: Path) -> None:
    """Each node finds another candidate broken; the decision of both has both, with the file and the node of
    each.
    """
    nodes = Nodes(tmp_path, steps=(10, 20, 30, 40))
    broken(nodes.disks[0], 40, 1)
    broken(nodes.disks[1], 30, 2)
    answers = nodes.run()
    assert together(answers)["CKPT_STEP"] == "20"
    for answer in answers:
        steps, findings = outcomes(answer)
        assert steps == [(40, "rejected"), (30, "rejected"), (20, "chosen"), (10, "not looked at")]
        assert {(f["code"], f["path"]) for f in findings if f["code"] == "truncated"} == {
            ("truncated", str(nodes.disks[0] / "iter_0000040/mp_rank_01/model_optim_rng.pt")),
            ("truncated", str(nodes.disks[1] / "iter_0000030/mp_rank_02/model_optim_rng.pt")),
        }
        assert all("#0: " in f["message"] or "#1: " in f["message"] for f in findings)


def test_disks_that_are_not_mounted_are_no_first_launch(nodes: Nodes) -> None:
    together(nodes.run())
    for disk in nodes.disks:
        shutil.rmtree(disk)
        disk.mkdir()
    for code, _, err in nodes.run("--allow=none"):
        assert code == 4 and "an earlier start resumed from step 20" in err
    assert together(nodes.run("--allow=fresh"))["CKPT_RESUME"] == "0"


def test_one_disk_is_empty(nodes: Nodes) -> None:
    shutil.rmtree(nodes.disks[1])
    nodes.disks[1].mkdir()
    for code, _, err in nodes.run("--allow=none"):
        assert code == 4 and "no checkpoint at all" in err


def test_all_disks_are_empty(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, steps=())
    assert [code for code, _, _ in nodes.run()] == [3, 3]
    assert together(nodes.run("--allow=none"))["CKPT_RESUME"] == "0"


def test_a_disk_that_cannot_be_looked_at_fails_all(nodes: Nodes) -> None:
    shutil.rmtree(nodes.disks[1])
    nodes.disks[1].symlink_to(nodes.disks[1])
    answers = nodes.run()
    assert [code for code, _, _ in answers] == [5, 5] and "node 1" in answers[0][2]


def test_different_questions(nodes: Nodes) -> None:
    running = [nodes.start(0), nodes.start(1, "--max-step", "10")]
    out = [(p.communicate(timeout=1000), p.returncode) for p in running]
    assert [code for _, code in out] == [2, 2] and all("different options" in err for (_, err), _ in out)


@pytest.mark.parametrize("skew", [-40 * 86400, 3000, 40 * 86400])
def test_clocks_that_are_off(nodes: Nodes, skew: int) -> None:
    """Of each node the order is right; across nodes only differences over the same nodes count."""
    for path in nodes.disks[1].rglob("*.pt"):
        at = path.stat().st_mtime + skew
        os.utime(path, (at, at))
    assert together(nodes.run())["CKPT_STEP"] == "20"


def test_what_an_earlier_start_left_is_not_trusted(nodes: Nodes) -> None:
    assert together(nodes.run())["CKPT_STEP"] == "20"
    with nodes.start(1, "--timeout", "1") as alone:  # comes, and gives up
        _, err = alone.communicate(timeout=1000)
    assert alone.returncode == 5 and "did not hear from the first node" in err, err
    for n, disk in enumerate(nodes.disks):
        megatron(disk, steps=(30,), world=WORLD, ranks=(2 * n, 2 * n + 1))
    assert together(nodes.run())["CKPT_STEP"] == "30"


def test_a_part_on_another_nodes_disk(nodes: Nodes) -> None:
    """Rank 2 was moved to node 1 after a repair; its file stayed on node 0."""
    shutil.move(nodes.disks[1] / "iter_0000020/mp_rank_02", nodes.disks[0] / "iter_0000020/mp_rank_02")
    answers = nodes.run()
    assert together(answers)["CKPT_STEP"] == "10"
    for answer in answers:
        steps, findings = outcomes(answer)
        assert steps == [(20, "rejected"), (10, "chosen")]
        (moved,) = [f["message"] for f in findings if f["code"] == "on-other-node"]
        assert "a file of rank 2 lies on" in moved


def test_a_directory_of_their_own_to_meet_in(nodes: Nodes, tmp_path: Path) -> None:
    """Decisions stay on each node's own disk."""
    answers = nodes.run("--meet", str(tmp_path / "meet"), meet="own")
    assert together(answers)["CKPT_STEP"] == "20"
    assert not nodes.shared.exists() and (tmp_path / "meet/j.meeting").is_dir()


def test_the_same_path_on_every_node(nodes: Nodes, tmp_path: Path) -> None:
    """As it is in real life: every node mounts its own disk in the same place, here in mount namespaces of
    their own.
    """
    root = tmp_path / "scratch"
    root.mkdir()
    real, nodes.disks = list(nodes.disks), [root, root]
    own = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c"]
    inside = [[*own, f'mount --bind {disk} {root} && exec "$@"', "x"] for disk in real]
    running = [nodes.start(n, inside=inside[n]) for n in range(2)]
    out = [(p.communicate(timeout=1000), p.returncode) for p in running]
    seen = together([(code, json.loads(o)[1] if o else {}, e) for (o, e), code in out])
    assert seen["CKPT_STEP"] == "20"


# -- in this process: what the first node concludes ----------------------------------------------------------


def lie(
    monkeypatch: pytest.MonkeyPatch, number: int, at: Sequence[str | int], value: Any, who: str = "all"
) -> None:
    """Let the first node tell all ``value`` there, in the conclusion of a round; or let node ``who`` tell it."""
    put = Meeting._put

    def change(m: Meeting, key: str, told: Any) -> None:
        if key == f"{number}.{who}" and not isinstance(told, Failed):
            told = json.loads(json.dumps(to_builtins(told)))
            node: Any = told
            for name in at[:-1]:
                node = node[name]
            node[at[-1]] = value
        put(m, key, told)

    monkeypatch.setattr(Meeting, "_put", change)


def both(decide: Callable[[int], Any]) -> list[Any]:
    """What two nodes came to: the decision, or its error."""

    def one(n: int) -> Any:
        try:
            return decide(n)
        except CkptError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def decided(nodes: Nodes, **more: Any) -> list[Any]:
    """What both come to in this process."""

    def decide(n: int) -> Any:
        mine = job.Options(agree=True, plan_dir=str(nodes.shared), job="j", node=n, nodes=2)
        return job.decide(str(nodes.disks[n]), Selection(world_size=WORLD, **more), mine)

    return both(decide)


def test_what_our_ranks_load_is_what_we_have_found(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    lie(monkeypatch, 3, ["ranks", 2, "files", 0, "path"], "/etc/passwd")
    ours = str(nodes.disks[1] / "iter_0000020/mp_rank_02/model_optim_rng.pt")
    assert [f.path for f in decided(nodes)[1].decision.document.files(2)] == [ours]


@pytest.mark.parametrize(("at", "value"), [(["order"], []), (["order", 0, "without"], [1])])
def test_what_a_node_has_is_not_left_out(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, at: Sequence[str | int], value: Any
) -> None:
    """Neither an older checkpoint nor nothing by what the first node tells, also where nothing is allowed."""
    lie(monkeypatch, 1, at, value)
    for error in decided(nodes, allow_none=True):
        assert isinstance(error, CannotLook) and "leaves out" in str(error), error


@pytest.mark.parametrize(
    ("number", "who", "at", "value"),
    [
        (1, "1", ["candidates"], None), (1, "1", ["candidates", 0, "checkpoint"], "step 20"),
        (1, "1", ["candidates", 0, "checkpoint", "layout"], 20), (1, "1", ["candidates", 0, "checkpoint", "kind"], "weekly"),
        (1, "1", ["candidates", 0, "checkpoint", "mtime_ns"], "now"), (1, "1", ["ranks"], [2]), (1, "1", ["earlier"], {"step": 20}),
        (1, "all", ["order"], {}), (1, "all", ["order", 0, "checkpoint", "layout"], "of another world"), (1, "all", ["order", 0, "without"], [7]),
        (1, "all", ["hosts"], []), (2, "1", ["findings"], [{"code": "x"}]), (2, "all", ["ok"], "yes"),
        (3, "1", ["ranks", 0, "files"], [["model"]]), (3, "all", ["fingerprint"], 5),
    ],
)  # fmt: skip
def test_what_no_node_says_ends_the_start_of_all(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, number: int, who: str, at: Sequence[str | int], value: Any
) -> None:
    """Of another version, say, or of somebody else: exit 5 on each node, with the name of the one that said it."""
    lie(monkeypatch, number, at, value, who)
    for error in decided(nodes):
        assert isinstance(error, CannotLook), error
        assert f"node {who.replace('all', '0')} " in str(error), error


def test_a_decision_of_the_first_node_sets_no_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that share ROOT, and meet because their id may come back: the first one decides, the others check
    what they are told.
    """
    root = megatron(tmp_path / "run")

    def decide(n: int) -> Any:
        line = ["torchrun", "--nnodes=2", "--nproc-per-node=1", "--rdzv-id=same", f"--node-rank={n}", "x.py"]
        return job.decide(str(root), Selection(), job.Options(plan_dir=str(tmp_path / "plans")), line)

    assert [t.decision.step for t in both(decide)] == [20, 20]
    for at, value in (
        (["resume", "env"], {"LD_PRELOAD": "/tmp/evil.so"}), (["resume", "env"], {"PATH": "/tmp"}), (["resume", "args"], "--load"),
        (["resume", "args"], ["--load", "/etc"]), (["resume", "path"], "/etc"), (["ranks"], []), (["ranks", 0, "files"], []),
        (["checkpoint"], None),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            lie(patch, 1, at, value)
            error = both(decide)[1]
            assert isinstance(error, UsageError) and "no decision that ckpt makes" in str(error), (at, error)
