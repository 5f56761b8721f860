"""What no layout recognises, and may be a later save than the choice, is one question with two answers."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from in_process import executed
from small_files import adam, saved, tensor
from timed import put

AGO = 1_700_000_000


def tree(root: Path, name: str, later: int = 60, held: bytes = b"") -> Path:
    """Two saves of a declared arrangement, and a file that no layout recognises, so many seconds later."""
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


def state(step: int) -> dict[str, object]:
    return {"model": {"w": tensor(step)}, "optimizer": adam(step), "step": step}


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
