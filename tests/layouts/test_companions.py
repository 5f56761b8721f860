"""One file that each save writes over beside weights that are kept (``optimizer.pt``, MindCV's ``optim_NAME.ckpt``):
it is loaded with the weights that it was written with, and with no others; what is damaged or gone is named.
"""

from __future__ import annotations

from pathlib import Path

from mindspore_writer import record
from small_files import payload
from timed import put

from ckpt_tools.api import plan, verify
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.plan import LoadPlan


def loaded(made: LoadPlan) -> list[str]:
    return sorted(
        {f.path.rpartition("/")[2] for f in (*made.shared, *(f for r in made.ranks for f in r.files))}
    )


def named(made: LoadPlan) -> set[str]:
    """The files that a warning is about."""
    return {(f.path or "").rpartition("/")[2] for f in made.warnings if f.severity is not Severity.NOTE}


def mindcv(root: Path, *epochs: int, average: bool = False) -> Path:
    """NAME-E_S.ckpt of weights, EMA_NAME-E_S.ckpt beside it, and one optim_NAME.ckpt."""
    for epoch in epochs:
        weights = record("w", (3, 4), "Float32", payload(epoch)) + record(
            "b", (12,), "Float32", payload(epoch, 1)
        )
        moments = record("moments.w", (3, 4), "Float32", payload(epoch, 2))
        done = record("global_step", (1,), "Int32", (100 * epoch).to_bytes(4, "little"))
        put(root / "optim_net.ckpt", done + weights + moments, 600 * epoch)
        put(root / f"net-{epoch}_100.ckpt", weights, 600 * epoch + 1)
        if average:
            put(root / f"EMA_net-{epoch}_100.ckpt", weights, 600 * epoch + 2)
    return root


def test_the_optimizer_of_mindcv_is_of_the_epoch_that_it_tells(tmp_path: Path) -> None:
    made = plan(mindcv(tmp_path, 8, 9, 10, average=True))
    assert loaded(made) == ["net-10_100.ckpt", "optim_net.ckpt"]
    assert made.resume.path == str(tmp_path / "net-10_100.ckpt")
    assert named(made) == set()
    assert verify(tmp_path).verdict is Verdict.OK


def test_an_optimizer_of_mindcv_that_is_cut_is_named(tmp_path: Path) -> None:
    optimizer = mindcv(tmp_path, 8, 9, 10) / "optim_net.ckpt"
    put(optimizer, optimizer.read_bytes()[:-60], 6000)
    made = plan(tmp_path)
    assert loaded(made) == ["net-10_100.ckpt"]
    assert "optim_net.ckpt" in named(made)
    assert any("optimizer" in f.message for f in made.warnings)


def test_an_optimizer_of_mindcv_is_never_loaded_with_older_weights(tmp_path: Path) -> None:
    newest = mindcv(tmp_path, 8, 9, 10) / "net-10_100.ckpt"
    put(newest, newest.read_bytes()[:-30], 6001)
    made = plan(tmp_path)
    assert loaded(made) == ["net-9_100.ckpt"]
    assert [r.checkpoint.epoch for r in made.rejected] == [10]
    assert "optim_net.ckpt" in named(made)
