"""A directory of DeepSpeed's that a smaller job has saved into again, and a tracker that was written last."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest
from small_files import adam, saved, tensor
from timed import put

from ckpt_tools import Selection, plan, verify
from ckpt_tools.errors import UsageError

START, HOUR = 1_760_000_000, 3600
OPTIMIZER = "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"


def save(root: Path, step: int, world: int, at: int) -> None:
    home = root / f"global_step{step}"
    told = {"global_steps": step, "dp_world_size": world, "mp_world_size": 1, "optimizer": None}
    put(home / "mp_rank_00_model_states.pt", saved({"module": {"w": tensor(step, world)}, **told}), at)
    for rank in range(world):
        put(home / OPTIMIZER.format(rank), saved({"optimizer_state_dict": adam(step + rank)}), at + rank)
    put(root / "latest", f"global_step{step}".encode(), at + 10)


@pytest.mark.parametrize("world", [1, 2])
def test_what_a_larger_job_left_makes_no_save_old(world: int, tmp_path: Path) -> None:
    save(tmp_path, 10, 4, START)
    save(tmp_path, 20, 4, START + HOUR)
    save(tmp_path, 10, world, START + 24 * HOUR)
    with pytest.raises(UsageError, match="no save of a lower step was written before it"):
        plan(str(tmp_path))
    made = plan(str(tmp_path), Selection(order="mtime"))
    assert (made.resume_step, made.world_size) == (10, world)
    assert {f.path.rpartition("/")[2] for r in made.by_rank for f in r.files if f.role == "optimizer"} == {
        OPTIMIZER.format(rank) for rank in range(world)
    }
    codes = {f.code for f in made.warnings}
    assert "mixed-attempts" in codes
    assert "stale-tracker" not in codes
    found = [f for f in verify(str(tmp_path)).findings if "left over" in f.message]
    assert [f.path for f in found] == [str(tmp_path / "global_step10")]


@pytest.mark.parametrize("kept", [True, False])
def test_leftovers_of_the_only_save_are_told(kept: bool, tmp_path: Path) -> None:
    save(tmp_path, 10, 4, START)
    save(tmp_path, 10, 1, START + HOUR if kept else START)
    if not kept:
        for path in tmp_path.rglob("*.pt"):
            os.utime(path, (START, START))
    for root in (tmp_path, tmp_path / "global_step10"):
        made = plan(str(root))
        assert (made.resume_step, made.world_size) == (10, 1)
        assert [f.path for f in made.warnings if "ranks 1–3 are left over" in f.message] == [
            str(tmp_path / "global_step10")
        ]
        assert any("left over" in f.message for f in verify(str(root)).findings)


def test_a_save_of_all_its_ranks_has_no_leftovers(tmp_path: Path) -> None:
    save(tmp_path, 10, 4, START)
    assert not plan(str(tmp_path)).warnings
    assert not verify(str(tmp_path)).findings or all(
        f.severity == "note" for f in verify(str(tmp_path)).findings
    )


def flip(path: Path) -> None:
    """One bit in the data of the first tensor."""
    data, at = bytearray(path.read_bytes()), path.stat().st_mtime
    with ZipFile(path) as packed:
        start = packed.getinfo("archive/data/0").header_offset
    name, extra = (int.from_bytes(data[start + i : start + i + 2], "little") for i in (26, 28))
    data[start + 30 + name + extra] ^= 4
    put(path, data, at)


def named(step: int, name: str) -> bytes:
    told: Mapping[str, object] = {"global_step": step, "epoch": 1, "pytorch-lightning_version": "2.6"}
    state = {"model": {"w": tensor(step), "b": tensor(step, 1)}, "optimizer": adam(step)}
    return saved({**state, **(told if name.endswith("ckpt") else {})})


@pytest.mark.parametrize("last_damaged", [True, False])
@pytest.mark.parametrize(
    ("name", "last"),
    [("step_{}.pt", "last.pt"), ("step_{}.pt", "latest.pt"), ("epoch=1-step={}.ckpt", "last.ckpt")],
)
def test_one_bit_in_one_of_two_files_of_a_step_is_no_question(
    name: str, last: str, last_damaged: bool, tmp_path: Path
) -> None:
    for n, step in enumerate((10, 20, 30)):
        put(tmp_path / name.format(step), named(step, name), START + 600 * n)
    put(tmp_path / last, named(30, name), START + 1201)
    good, bad = (name.format(30), last) if last_damaged else (last, name.format(30))
    flip(tmp_path / bad)
    made = plan(str(tmp_path))
    assert made.resume_step == 30
    assert [f.path for f in made.shared] == [str(tmp_path / good)]
    assert last_damaged <= any(
        f.code == "crc-mismatch" and f.path == str(tmp_path / bad) for f in made.warnings
    )
