"""What no layout places, and may be a later save than the choice, is one question with two answers."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from in_process import executed
from small_files import adam, saved, tensor

AGO = 1_700_000_000


def tree(root: Path, name: str, later: int = 60, held: bytes = b"") -> Path:
    """Two saves of a declared arrangement, and a file that no layout places, so many seconds later."""
    root.mkdir()
    for n, (path, data) in enumerate(
        {
            "iter_0000100/mp_rank_00/model_optim_rng.pt": saved(state(100)),
            "iter_0000200/mp_rank_00/model_optim_rng.pt": saved(state(200)),
        }.items()
    ):
        put(root / path, data, AGO + 60 * n)
    put(root / name, held or saved(state(300)), AGO + 60 + later)
    return root


def put(path: Path, data: bytes, at: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (at, at))


def state(step: int) -> dict[str, object]:
    return {"model": {"w": tensor(step)}, "optimizer": adam(step), "step": step}


NAMES = ("agent_zero_300.bin", "student300.dat", "dernier", "fertig.state", "policy of 300.pt", "a[1].pt")


@pytest.mark.parametrize("name", NAMES)
def test_whatever_it_is_called_it_is_asked_about(name: str, tmp_path: Path) -> None:
    root = tree(tmp_path / "run", name)
    code, _, err = executed(["plan", str(root)])
    assert code == 2 and name in err and "--exclude" in err


@pytest.mark.parametrize("name", NAMES)
def test_what_is_older_is_none(name: str, tmp_path: Path) -> None:
    code, out, _ = executed(["plan", str(tree(tmp_path / "run", name, later=-1))])
    assert code == 0 and out.startswith("Resume from step 200")


@pytest.mark.parametrize("beside", ["config.yaml", "train.log", None])
def test_a_temporary_file_is_a_warning_whatever_lies_beside_it(beside: str | None, tmp_path: Path) -> None:
    root = tmp_path / "run"
    for n in range(2):
        put(root / f"epoch_{n}.pt", saved(state(n)), AGO + 60 * n)
    put(root / "last.pt.tmp", saved(state(3))[:2000], AGO + 120)
    if beside:
        put(root / beside, b"a line\n", AGO)
    code, out, err = executed(["plan", str(root)])
    assert code == 0 and out.startswith("Resume from step 1"), err
    assert "last.pt.tmp" in out + err and "a temporary file of a save that never finished" in out + err


@pytest.mark.parametrize("name", ["train.log", "curve.png", "events.out.tfevents.1", "notes.txt", "main.py"])
def test_logs_pictures_and_code_are_none(name: str, tmp_path: Path) -> None:
    code, out, _ = executed(["plan", str(tree(tmp_path / "run", name, held=b"a line\n"))])
    assert code == 0 and out.startswith("Resume from step 200")


def test_what_lies_in_the_directory_of_a_save_is_of_that_save(tmp_path: Path) -> None:
    code, out, _ = executed(["plan", str(tree(tmp_path / "run", "iter_0000200/mine/kept"))])
    assert code == 0 and out.startswith("Resume from step 200")


@pytest.mark.parametrize("name", ["dernier.pt", "net-300.state", "a[1] b.pt"])
def test_the_path_that_is_printed_is_left_out(name: str, tmp_path: Path) -> None:
    root = tree(tmp_path / "run", name)
    hint = executed(["plan", str(root)])[2].partition("or add ")[2].partition(" to resume from")[0]
    code, out, _ = executed(["plan", str(root), *shlex.split(hint)])
    assert code == 0 and out.startswith("Resume from step 200")


def test_a_packed_save_is_asked_about(tmp_path: Path) -> None:
    code, _, err = executed(
        ["plan", str(tree(tmp_path / "run", "step_300.pt.zst", held=b"\x28\xb5\x2f\xfd" * 9))]
    )
    assert code == 2 and "step_300.pt.zst" in err
