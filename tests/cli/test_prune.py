"""``ckpt prune`` and ``ckpt pin``: what goes, what never goes, and what a command that dies leaves behind. ``ckpt
quarantine`` and ``ckpt undo``: out of the framework's sight, never out of ours, and back.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import executed
from kill_points import files_of, step
from places import FIXTURES
from run_helpers import broken, ckpt, megatron, one_file_per_rank

from ckpt_tools import guard
from ckpt_tools.api import plan
from ckpt_tools.errors import NoneUsable
from ckpt_tools.guard import prune as command
from ckpt_tools.guard.prune import Policy
from ckpt_tools.model.selection import Selection


def pruned(root: Path, *words: str, code: int = 0) -> dict[str, tuple[str, str]]:
    """Name -> (state, why)."""
    done = ckpt("prune", str(root), "--json", "--settle", "0s", *words)
    assert done.returncode == code, (done.stdout, done.stderr)
    rows = json.loads(done.stdout).get("changes", ())
    return {Path(row["path"]).name: (row["state"], row["why"]) for row in rows}


def gone(said: dict[str, tuple[str, str]]) -> list[str]:
    return sorted(name for name, (state, _) in said.items() if state in ("removed", "would-remove"))


def steps(root: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in root.glob("iter_*"))


def test_what_no_flag_keeps_goes(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30, 40, 50))
    before = files_of(root)
    said = pruned(root, "--keep", "last=2,every=20")
    assert gone(said) == ["iter_0000010", "iter_0000030"] and files_of(root) == before
    assert all(why for _, why in said.values()) and not (root / ".ckpt").exists()
    megatron(tmp_path / "runs/a", steps=(10, 20, 30))
    megatron(tmp_path / "runs/b", steps=(10, 20, 30))
    pruned(tmp_path / "runs", "--keep", "1", "--apply")  # each run has its own
    assert [steps(tmp_path / "runs" / name) for name in ("a", "b")] == [[30], [30]]
    assert gone(pruned(root, "--keep", "last=2,every=20", "--apply")) == gone(said)
    assert steps(root) == [20, 40, 50] and step(root) == 50
    assert not (root / ".ckpt/trash").exists()


@pytest.mark.parametrize("words", [(), ("--damaged",), ("--keep", "0"), ("--keep-kind", "what")])
def test_what_to_keep_must_be_said(words: tuple[str, ...], tmp_path: Path) -> None:
    assert ckpt("prune", str(megatron(tmp_path / "run")), *words).returncode == 2


def test_the_damaged_count_for_nothing_and_stay_unless_they_are_to_go(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30, 40), tracker=False)
    broken(root, 40)
    broken(root, 20)
    said = pruned(root, "--keep", "1", "--apply")
    assert gone(said) == ["iter_0000010"] and steps(root) == [20, 30, 40]
    assert "damaged" in said["iter_0000040"][1]
    pruned(root, "--keep", "1", "--damaged", "--apply")
    assert steps(root) == [30] and step(root) == 30


NEVER: dict[str, Callable[[Path], object]] = {
    "best leads": lambda root: (root / "best").symlink_to("iter_0000010"),
    "results.csv": lambda root: (root / "iter_0000010/results.csv").write_text("1,2\n"),
    "pinned": lambda root: ckpt("pin", str(root / "iter_0000010")),
}


@pytest.mark.parametrize("why", NEVER)
def test_what_never_goes(why: str, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    NEVER[why](root)
    said = pruned(root, "--keep", "1", "--apply")
    assert gone(said) == ["iter_0000020"] and why in said["iter_0000010"][1]
    assert steps(root) == [10, 30]


def test_what_was_just_written_stays(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    done = ckpt("prune", str(root), "--keep", "1", "--json", "--apply")
    rows = json.loads(done.stdout)["changes"]
    assert done.returncode == 0 and [row["state"] for row in rows] == ["stays"] * 3
    assert steps(root) == [10, 20, 30]


def test_what_a_job_has_decided_for_stays(tmp_path: Path) -> None:
    root, plans = megatron(tmp_path / "run", steps=(10,)), tmp_path / "plans"
    started = ckpt("run", str(root), "--plan-dir", str(plans), "--", "true")
    assert started.returncode == 0, started.stderr
    megatron(root, steps=(20, 30))
    said = pruned(root, "--keep", "1", "--plan-dir", str(plans), "--apply")
    assert gone(said) == ["iter_0000020"] and "decision" in said["iter_0000010"][1]
    other = tmp_path / "gone"
    assert pruned(root, "--keep", "1", "--plan-dir", str(other), "--apply", code=5) == {}


def test_nothing_goes_where_plan_does_not_choose(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20))
    for n in (10, 20):
        broken(root, n)
    before = files_of(root)
    pruned(root, "--keep", "1", "--damaged", "--apply", code=4)
    assert files_of(root, state=False) == before


def test_the_same_file_in_all_is_no_reason(tmp_path: Path) -> None:
    """A tokenizer that is saved with each checkpoint: one with other contents stays with its checkpoint."""
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    for n, text in ((10, "a"), (20, "b"), (30, "b")):
        (root / f"iter_{n:07d}/vocabulary.txt").write_text(text)
    assert gone(pruned(root, "--keep", "1", "--apply")) == ["iter_0000020"]


def test_pins(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    path = str(root / "iter_0000010")
    assert ckpt("pin", path, "--dry-run").returncode == 0 and not (root / ".ckpt").exists()
    done = [ckpt("pin", path, *words).returncode for words in (["--undo"], [], [], ["--undo"])]
    assert done == [3, 0, 0, 0] and step(root) == 30
    assert gone(pruned(root, "--keep", "1")) == ["iter_0000010", "iter_0000020"]
    assert ckpt("pin", str(root / "iter_0000099")).returncode == 3
    (root / ".ckpt/pins/broken.json").write_text("{")
    pruned(root, "--keep", "1", "--apply", code=5)
    assert steps(root) == [10, 20, 30]


def test_a_checkpoint_written_while_prune_plans_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was set back saves a step anew, in place, after it was verified."""
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    path = root / "iter_0000010/mp_rank_00/model_optim_rng.pt"
    info, real, asked = path.stat(), command.plan, []

    def planned(*args: object, **kwargs: object) -> object:
        asked.append(args)
        if len(asked) == 2:  # before it is moved
            (tmp_path / "anew").write_bytes(path.read_bytes())
            os.utime(tmp_path / "anew", ns=(info.st_atime_ns, info.st_mtime_ns))
            (tmp_path / "anew").rename(path)
        return real(*args, **kwargs)

    monkeypatch.setattr(command, "plan", planned)
    said = command.prune(str(root), Policy(keep_last=1), apply=True, selection=Selection(settle=0))
    rows = {Path(row.path).name: (row.state, row.why) for row in said.changes}
    assert rows["iter_0000010"] == ("stays", "somebody wrote it while it was looked at")
    assert gone(rows) == ["iter_0000020"] and steps(root) == [10, 30]


def test_a_link_to_a_directory_keeps_its_checkpoint_alone(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    (root / "iter_0000010/logs").symlink_to("../../logs")
    (tmp_path / "logs").mkdir()
    said = pruned(root, "--keep", "1", "--apply")
    assert gone(said) == ["iter_0000020"] and said["iter_0000010"][1].startswith("iter_0000010/logs is not")


@pytest.mark.parametrize("line", [["prune", "--keep", "1"], ["undo"], ["quarantine", "--damaged"]])
def test_no_command_makes_a_root_or_writes_for_a_prefix(line: list[str], tmp_path: Path) -> None:
    megatron(tmp_path / "out/ckpt_0", steps=(10, 20))
    before = files_of(tmp_path)
    command, *flags = line
    where = ["--root"] * (command == "quarantine") + [str(tmp_path / "out/ckpt")]
    assert ckpt(command, *where, *flags, "--apply").returncode in (2, 5)
    assert files_of(tmp_path) == before and not (tmp_path / "out/ckpt").exists()


@pytest.mark.parametrize(("pin", "prune"), [("above", "run"), ("run", "above"), ("run", "run")])
def test_a_pin_counts_whichever_directory_it_was_set_with(pin: str, prune: str, tmp_path: Path) -> None:
    root = megatron(tmp_path / "above/run", steps=(10, 20, 30))
    places = {"above": tmp_path / "above", "run": root}
    assert ckpt("pin", str(root / "iter_0000010"), "--root", str(places[pin])).returncode == 0
    assert gone(pruned(places[prune], "--keep", "1", "--apply")) == ["iter_0000020"]


def test_the_base_model_of_an_adapter_that_stays_stays(tmp_path: Path) -> None:
    """``base_model_name_or_path`` of peft names a save of another run, here by the path that it had before a move."""
    for name, case in {"base": "trainer", "lora": "adapters"}.items():
        shutil.copytree(FIXTURES / f"layouts/hf-trainer/{case}/tree", tmp_path / "runs" / name)
    for config in (tmp_path / "runs/lora").rglob("adapter_config.json"):
        body = json.loads(config.read_text())
        config.write_text(json.dumps({**body, "base_model_name_or_path": "/old/runs/base/checkpoint-15"}))
    for path in sorted((tmp_path / "runs").rglob("*"), reverse=True):
        number = next((int(p[11:]) for p in path.parts if p.startswith("checkpoint-")), 0)
        os.utime(path, (1_700_000_000 + number,) * 2)
    rows = json.loads(ckpt("prune", str(tmp_path / "runs"), "--json", "--settle", "0s", "--keep", "1").stdout)
    whys = {str(Path(row["path"]).relative_to(tmp_path / "runs")): row["why"] for row in rows["changes"]}
    assert whys["base/checkpoint-15"].endswith("names it as its base model")
    assert whys["lora/checkpoint-2"] == whys["lora/checkpoint-4"] == "nothing says to keep it"


TRACKER = "latest_checkpointed_iteration.txt"


def put_away(path: Path, *words: str) -> dict:
    done = ckpt("quarantine", str(path), "--json", "--settle", "0s", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nothing_is_done_without_apply(root: Path) -> None:
    before = files_of(root)
    said = put_away(root / "iter_0000020")
    assert [c["state"] for c in said["changes"]] == ["would-move", "would-point"] and not said["applied"]
    ckpt("quarantine", str(root / "iter_0000020"), "--restore")
    ckpt("undo", str(root))
    assert files_of(root) == before and not (root / ".ckpt").exists()


def test_a_run_is_put_away_into_itself_or_not_at_all(tmp_path: Path) -> None:
    """Else its next job would find an empty directory, and begin anew."""
    root = megatron(tmp_path / "run", steps=(10, 20))
    (root / TRACKER).unlink()
    line = ["quarantine", str(root), "--apply", "--settle", "0s"]
    refused = ckpt(*line)
    assert refused.returncode == 2 and f"add --root {root} to put all of them away" in refused.stderr
    assert ckpt(*line, "--root", str(root)).returncode == 0
    assert ckpt("plan", str(root), "--allow", "none").returncode == 4
    assert ckpt("undo", str(root), "--apply").returncode == 0 and step(root) == 20


def test_away_and_back(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    before, seen = files_of(root), step(root)
    put_away(root / "iter_0000030", "--apply")
    assert (root / TRACKER).read_text() == "20" and not (root / "iter_0000030").exists()
    assert step(root) == 20
    warned = {f.code for f in plan(root).warnings}
    assert "in-quarantine" in warned and not warned & {"dangling-tracker", "stale-tracker"}
    done = ckpt("undo", str(root), "--apply")
    assert done.returncode == 0, done.stderr
    assert files_of(root, state=False) == before and step(root) == seen
    assert "in-quarantine" not in {f.code for f in plan(root).warnings}
    assert ckpt("undo", str(root), "--apply").returncode == 3


@pytest.mark.parametrize("words", [[], ["--allow=none"], ["--allow=none", "--allow=missing"]])
@pytest.mark.parametrize("command", ["plan", "latest", "run", "hook"])
def test_what_lies_there_exists(command: str, words: list[str], tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10,), tracker=False)
    put_away(root / "iter_0000010", "--apply")
    tail = ["--rank", "0"] if command == "latest" else ["--", "true"] if command == "run" else []
    code, _, err = executed([command, str(root), *words, "--plan-dir", str(tmp_path / "plans"), *tail])
    assert code == 4 and ".ckpt/quarantine/000001" in err, err


def test_it_exists_for_its_own_run_alone(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for name in ("a", "b"):
        megatron(root / name, steps=(10,), tracker=False)
    put_away(root / "a/iter_0000010", "--root", str(root), "--apply")
    with pytest.raises(NoneUsable):
        plan(root, Selection(run="a", allow_none=True, allow_missing=True))
    assert plan(root, Selection(run="c", allow_none=True, allow_missing=True)).checkpoint is None
    assert step(root) == 10  # that of b


def test_damaged(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    broken(root, 30)
    said = put_away(root, "--damaged", "--apply")
    assert [Path(c["path"]).name for c in said["changes"]] == ["iter_0000030", TRACKER]
    assert step(root) == 20 and (root / TRACKER).read_text() == "20"


def test_files_of_a_checkpoint_without_a_directory_go_together(tmp_path: Path) -> None:
    root = one_file_per_rank(tmp_path / "run")
    guard.seal(root)
    before = files_of(root)
    put_away(root / "rank_0/net-1_20.ckpt", "--root", str(root), "--apply")
    left = {path for path in files_of(root, state=False) if "_20" in path}
    assert not left and step(root) == 10
    said = ckpt("quarantine", str(root / "rank_0/net-1_20.ckpt"), "--restore", "--root", str(root), "--apply")
    assert said.returncode == 0
    put = ckpt("quarantine", str(root / ".ckpt/quarantine/000001"), "--restore", "--apply")
    assert put.returncode == 0, put.stderr
    assert files_of(root, state=False) == before and step(root) == 20


def test_what_stays(root: Path) -> None:
    """A part goes with its checkpoint or not at all, and nothing that was just written."""
    part = root / "iter_0000020/mp_rank_00/model_optim_rng.pt"
    done = ckpt("quarantine", str(part), "--root", str(root), "--apply", "--settle", "0s")
    assert done.returncode == 2 and "iter_0000020" in done.stderr
    part.touch()
    done = ckpt("quarantine", str(root / "iter_0000020"), "--apply", "--json")
    (row,) = json.loads(done.stdout)["changes"]
    assert row["state"] == "stays" and "--settle" in row["why"] and part.exists()


def test_all_that_was_put_away_comes_back(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    for name in ("iter_0000010", "iter_0000020"):
        put_away(root / name, "--apply")
    assert ckpt("quarantine", str(root / ".ckpt/quarantine"), "--undo", "--apply").returncode == 0
    assert steps(root) == [10, 20, 30]


def test_what_has_its_name_by_now_is_not_replaced(root: Path) -> None:
    put_away(root / "iter_0000020", "--apply")
    megatron(root, steps=(20,))
    before = files_of(root)
    done = ckpt("quarantine", str(root / "iter_0000020"), "--restore", "--apply")
    assert done.returncode == 2 and "is not replaced" in done.stderr
    assert ckpt("undo", str(root), "--apply").returncode == 2
    assert files_of(root, state=False) == {k: v for k, v in before.items() if not k.startswith(".ckpt")}


def test_what_lies_there_is_listed(root: Path, tmp_path: Path) -> None:
    assert ckpt("quarantine", str(root / "iter_0000040")).returncode == 3  # no such checkpoint
    assert ckpt("quarantine", str(tmp_path / "gone/iter_0000040")).returncode == 5
    assert ckpt("ls", str(root), "--quarantine").returncode == 3
    put_away(root / "iter_0000020", "--apply")
    done = ckpt("ls", str(root), "--quarantine", "--json")
    (row,) = json.loads(done.stdout)["changes"]
    assert done.returncode == 0 and row["to"] == str(root / "iter_0000020")
    assert Path(row["path"]).is_dir() and row["state"] == "in-quarantine"
