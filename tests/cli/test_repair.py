"""``ckpt repair``: what is proven is repaired, the rest stays, and nothing is ever lost."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from in_process import executed
from kill_points import files_of
from places import FIXTURES
from run_helpers import ckpt, codes_of, megatron
from timed import put, same_times

from ckpt_tools import guard
from ckpt_tools.api import plan, verify
from ckpt_tools.guard.repair import repair

FILE = "iter_0000020/mp_rank_00/model_optim_rng.pt"
TRACKER = "latest_checkpointed_iteration.txt"
ODDS = ("--accept-odds", "0.001")


def flip(path: Path, *bits: int) -> bytes:
    """Flips bits from the middle of a file on, and leaves its times; what it held before."""
    whole = path.read_bytes()
    data = bytearray(whole)
    for bit in bits or (3,):
        data[len(data) // 2 + bit // 8] ^= 1 << bit % 8
    with same_times(path):
        path.write_bytes(data)
    return whole


def said(root: Path, *words: str, code: int = 0) -> dict:
    ended, out, err = executed(["repair", str(root), "--json", *words])
    assert ended == code, (out, err)
    return json.loads(out) if out else {}


def codes(root: Path) -> set[str]:
    return codes_of(verify(root))


def test_nothing_is_done_without_apply_and_that_is_undone(root: Path) -> None:
    flip(root / FILE)
    before = files_of(root)
    (row,) = said(root, *ODDS)["changes"]
    assert row["state"] == "would-repair" and "one flipped bit in byte" in row["why"]
    assert files_of(root) == before and not (root / ".ckpt").exists()
    said(root, *ODDS, "--apply")
    assert ckpt("undo", root, "--apply").returncode == 0
    assert files_of(root, state=False) == before and "repaired-unwitnessed" not in codes(root)


def test_one_bit_that_only_its_crc_tells(root: Path) -> None:
    (root / FILE).chmod(0o640)
    whole, times = flip(root / FILE), (root / FILE).stat()
    (row,) = said(root, code=1)["changes"]
    assert row["state"] == "stays" and "--accept-odds" in row["why"]
    words = row["why"].split("--accept-odds ")[1].split()[0]
    said(root, "--accept-odds", words, "--apply")  # what it says to say is enough
    assert (root / FILE).read_bytes() == whole
    now = (root / FILE).stat()
    assert (now.st_mtime_ns, now.st_mode) == (times.st_mtime_ns, times.st_mode)
    assert codes(root) == {"repaired-unwitnessed"}
    made = plan(root)
    assert made.checkpoint and made.checkpoint.step == 20
    hints = {f.code: f.hint for f in made.warnings}
    assert "repaired-unwitnessed" in hints
    assert f"'ckpt undo {root}'" in hints["in-quarantine"], "which leads back from a repair"
    megatron(root, steps=(20,))
    os.utime(root / FILE)
    assert codes(root) == {"mixed-attempts"}, "it has been written anew, and alone"


def test_a_seal_is_a_witness(root: Path) -> None:
    guard.seal(root)
    os.setxattr(root / FILE, "user.job", b"42")
    whole = flip(root / FILE)
    said(root, "--apply")
    assert (root / FILE).read_bytes() == whole and not codes(root)
    assert os.getxattr(root / FILE, "user.job") == b"42", "extended attributes are kept"


@pytest.mark.parametrize("bits", [(0, 1, 77), tuple(range(0, 200, 3))], ids=["three bits", "many"])
def test_what_nothing_proves_stays(bits: tuple[int, ...], root: Path) -> None:
    flip(root / FILE, *bits)
    before = files_of(root)
    assert said(root, *ODDS, "--apply", code=1)["changes"][0]["state"] == "stays"
    assert files_of(root, state=False) == before


@pytest.mark.torch
@pytest.mark.parametrize("cut", [1, 22, 98, 150, 400], ids=str)
def test_an_archive_that_has_lost_its_directory(cut: int, tmp_path: Path) -> None:
    import torch

    path = tmp_path / "run/checkpoint-1.pt"
    path.parent.mkdir()
    torch.save({"model": {"w": torch.arange(999.0), "b": torch.ones(3)}, "step": 1}, path)
    whole = path.read_bytes()
    directory = whole.index(b"PK\1\2")
    for left in (len(whole) - cut, directory):
        put(path, whole[:left], 1)
        (row,) = said(path, "--apply")["changes"]
        assert row["state"] == "repaired" and "directory" in row["why"]
        back = torch.load(path, weights_only=True)
        assert torch.equal(back["model"]["w"], torch.arange(999.0)) and back["step"] == 1
    for left in (directory - 1, directory - 200, 80):  # a record is gone
        put(path, whole[:left], 1)
        assert said(path, "--apply", code=1)["changes"][0]["state"] == "stays"


MODEL = FIXTURES / "layouts/sharded-safetensors/transformers/tree"


@pytest.mark.parametrize("data", [None, b"", b'{"metadata": {"total', b"garbage"], ids=repr)
def test_an_index_from_its_shards(data: bytes | None, tmp_path: Path) -> None:
    root = Path(shutil.copytree(MODEL, tmp_path / "run"))
    index = root / "model.safetensors.index.json"
    was = json.loads(index.read_text())
    index.unlink()
    if data is not None:
        put(index, data, 1)
    before = files_of(root)
    (row,) = said(root, "--root", str(root))["changes"]
    assert row["state"] == ("would-write" if data is None else "would-repair") and files_of(root) == before
    said(root, "--root", str(root), "--apply")
    now = json.loads(index.read_text())
    assert now["weight_map"] == was["weight_map"]
    assert now["metadata"]["total_size"] == was["metadata"]["total_size"]
    assert not codes(root) - {"repaired-unwitnessed"}


@pytest.mark.parametrize("what", ["lost", "cut"])
def test_no_index_without_all_its_shards(what: str, tmp_path: Path) -> None:
    root = Path(shutil.copytree(MODEL, tmp_path / "run"))
    (root / "model.safetensors.index.json").unlink()
    shard = max(root.glob("*-of-*.safetensors"))
    if what == "cut":
        put(shard, shard.read_bytes()[:-5], 1)
    else:
        shard.unlink()
    ckpt("repair", str(root), "--root", str(root), "--apply")
    assert not (root / "model.safetensors.index.json").exists()


def test_what_is_being_written_stays(root: Path) -> None:
    flip(root / FILE)
    os.utime(root / FILE)
    (row,) = said(root, *ODDS, "--apply", code=1)["changes"]
    assert "--settle" in row["why"]


@pytest.mark.parametrize("text", [None, "10", "30", "garbage", ""])
def test_a_tracker_names_what_plan_chooses(text: str | None, root: Path) -> None:
    (root / TRACKER).unlink()
    if text is not None:
        put(root / TRACKER, text, 1_000_000_000)  # before the saves
    said(root, "--tracker")
    assert (root / TRACKER).exists() == (text is not None)
    said(root, "--tracker", "--apply")
    assert (root / TRACKER).read_text() == "20"
    assert not said(root, "--tracker", "--apply")["changes"]


def test_no_tracker_is_written_where_plan_has_no_answer(root: Path) -> None:
    for path in root.rglob("*.pt"):
        path.write_bytes(path.read_bytes()[:-40])
    (root / TRACKER).write_text("30")
    assert ckpt("repair", str(root), "--tracker", "--apply").returncode == 4
    assert (root / TRACKER).read_text() == "30"


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"files": 3}', '{"files": [{"path": 3, "size": "x"}]}', "[" * 100_000,
        '{"files": [{"path": "../../x", "size": 1, "mtime_ns": 1, "odds": 1}]}',
        '{"files": [{"path": "a", "size": 1e400, "mtime_ns": 1, "odds": 1}]}',
    ],
)  # fmt: skip
def test_a_list_that_somebody_made_up_does_nothing(text: str, root: Path) -> None:
    (root / ".ckpt").mkdir()
    (root / ".ckpt/repaired.json").write_text(text)
    assert not codes(root)
    assert plan(root).checkpoint


@pytest.mark.parametrize("tries", [5, pytest.param(60, marks=pytest.mark.exhaustive)])
def test_with_a_witness_no_random_damage_is_repaired_wrongly(root: Path, tries: int) -> None:
    guard.seal(root)
    chance, whole = random.Random(1), (root / FILE).read_bytes()
    for _ in range(tries):
        bits = chance.sample(range(8 * len(whole)), chance.randrange(1, 5))
        data = bytearray(whole)
        for bit in bits:
            data[bit // 8] ^= 1 << bit % 8
        put(root / FILE, bytes(data), 1)
        (row,) = repair(str(root), [str(root / FILE)], apply=True).changes
        assert row.state == "stays" or (root / FILE).read_bytes() == whole
        assert row.state == "repaired" or len(bits) > 1
