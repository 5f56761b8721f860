"""``ckpt quarantine`` and ``ckpt undo``: out of the framework's sight, never out of ours, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kill_points import files_of, step
from run_helpers import broken, ckpt, megatron, one_file_per_rank

from ckpt_tools import guard
from ckpt_tools.api import plan
from ckpt_tools.errors import NoneUsable
from ckpt_tools.model.selection import Selection

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
    done = ckpt(command, str(root), *words, "--plan-dir", str(tmp_path / "plans"), *tail)
    assert done.returncode == 4, (done.stdout, done.stderr)
    assert ".ckpt/quarantine/000001" in done.stderr


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
