"""What several ModelCheckpoint callbacks of one Trainer save into one directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from small_files import lightning, saved, tensor
from timed import put

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.model.finding import Verdict

STEPS = (100, 200, 300)
START = 1_700_000_000


def _weights(step: int, name: str) -> Any:
    return {"w": tensor(step, *name.encode()), "b": tensor(step, 1)}


def _write(root: Path, files: Mapping[str, bytes], when: int) -> None:
    for i, (name, data) in enumerate(files.items()):
        put(root / name, data, START + when + i)


def _loaded(root: Path) -> set[str] | None:
    """The files that are loaded; None where nobody is told to start."""
    try:
        made = plan(str(root))
    except CkptError:
        return None
    files = [*made.shared, *(f for r in made.by_rank for f in r.files)]
    return {str(Path(f.path).relative_to(root)) for f in files}


def _weights_only(epoch: int, step: int) -> bytes:
    state = {"epoch": epoch, "global_step": step, "pytorch-lightning_version": "2.6.6"}
    return saved({**state, "state_dict": _weights(step, "w"), "loops": {}})


OFTEN = ("epoch={epoch}-step={step}.ckpt", "run-epoch={epoch}-step={step}.ckpt", "epoch={epoch}-part.ckpt")
OTHER = ("end-epoch={epoch}.ckpt", "best-epoch={epoch}-step={step}.ckpt", "best-val-epoch={epoch}-step={step}.ckpt",
    "last.ckpt")  # fmt: skip


@pytest.mark.parametrize(
    ("often", "other"),
    [*((OFTEN[0], name) for name in OTHER), *zip(OFTEN[1:], OTHER, strict=False), (OFTEN[1], OTHER[3])],
)
def test_two_callbacks_of_one_trainer_save_one_run(often: str, other: str, tmp_path: Path) -> None:
    """Lightning's ModelCheckpoint, twice: by steps, and at the end of an epoch or for the best."""
    for epoch, step in enumerate(STEPS):
        _write(tmp_path, {often.format(epoch=epoch, step=step): lightning(epoch, step)}, step * 60)
    name = other.format(epoch=3, step=350)
    _write(tmp_path, {name: lightning(3, 350)}, 350 * 60)
    assert _loaded(tmp_path) == {name}
    assert verify([str(tmp_path)]).verdict is Verdict.OK
    before = {often.format(epoch=2, step=300)}
    _write(tmp_path, {name: _weights_only(3, 350)}, 350 * 60)
    assert _loaded(tmp_path) in (before, None), "weights alone"
    (tmp_path / next(iter(before))).write_bytes(lightning(2, 300)[:900])
    assert _loaded(tmp_path) in ({often.format(epoch=1, step=200)}, None), "weights alone, and a cut state"
    _write(tmp_path, {next(iter(before)): lightning(2, 300)}, 300 * 60)
    for damaged in (lightning(3, 350)[:900], b""):
        _write(tmp_path, {name: damaged}, 350 * 60)
        assert _loaded(tmp_path) in (before, None), len(damaged)
    (tmp_path / name).unlink()
    assert _loaded(tmp_path) == before


@pytest.mark.parametrize(("put_back", "verdict"), [(False, Verdict.OK), (True, Verdict.SUSPECT)])
def test_last_is_left_behind_only_where_nothing_else_was_renewed(
    put_back: bool, verdict: Verdict, tmp_path: Path
) -> None:
    """A run that starts from scratch in a directory renews ``last-v1.ckpt``; an old one that was put back is seen."""
    for i, (step, last) in enumerate(((100, "last.ckpt"), (200, "last-v1.ckpt"))):
        name = f"epoch={i}-step={step}.ckpt"
        _write(tmp_path, dict.fromkeys((name, last), lightning(i, step)), step * 60)
    if put_back:
        (tmp_path / "last-v1.ckpt").unlink()
        _write(tmp_path, {"last.ckpt": lightning(0, 100)}, 300 * 60)
    found = verify([str(tmp_path)])
    assert found.verdict is verdict
    assert not [f for f in found.findings if f.code == "generation-mismatch"]
