"""``latest_checkpoint.txt`` beside files of no known arrangement, and ``--max-step`` where nothing tells a step:
no older checkpoint is taken without a reason, and a text that means something else is none.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from small_files import adam, saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.errors import NoneUsable
from ckpt_tools.model.selection import Selection

TRACKER = "latest_checkpoint.txt"


def put(root: Path, name: str, step: int, at: int) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"model": {"w": tensor(step)}, "optimizer": adam(step), "step": step}
    path.write_bytes(saved(state))
    os.utime(path, (1_700_000_000 + at,) * 2)


def forget(tracker: Path, said: str) -> None:
    """Write a tracker as it was before the last save."""
    tracker.write_text(said)
    os.utime(tracker, (1_700_000_000,) * 2)


@pytest.fixture(params=["step_{}.pt", "step_{}/state.pt", "ckpt-{}.pth"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """Saves of steps 100 and 200; the tracker would hold their first component."""
    for step in (100, 200):
        put(tmp_path / "run", request.param.format(step), step, step)
    return tmp_path / "run", request.param.partition("/")[0]


@pytest.mark.parametrize("said", ["{}\n", "/elsewhere/ckpts/{}", "out/{}/"])
def test_a_checkpoint_that_it_names_and_that_is_gone_is_said(run: tuple[Path, str], said: str) -> None:
    root, name = run
    (root / TRACKER).write_text(said.format(name.format(300)))
    made = plan(str(root))
    assert made.checkpoint and made.checkpoint.step == 200
    assert [f.code for r in made.rejected for f in r.findings] == ["missing-part"]
    assert "dangling-tracker" in {f.code for f in made.warnings}
    for path in [p for p in root.rglob("*") if p.is_file() and p.name != TRACKER]:
        path.unlink()
    with pytest.raises(NoneUsable):  # and nothing starts from nothing
        plan(str(root), Selection(allow_none=True))


@pytest.mark.parametrize(
    "tracker", ["latest", "latest.txt", "last.txt", "last_checkpoint.txt", "latest_ckpt.txt"]
)
def test_other_names_of_such_a_text(run: tuple[Path, str], tracker: str) -> None:
    root, name = run
    forget(root / tracker, name.format(100))
    (stale,) = plan(str(root)).warnings
    assert stale.code == "stale-tracker" and "ckpt repair" not in stale.hint  # which writes another one
    (root / tracker).write_text(name.format(300))
    made = plan(str(root), Selection(allow_none=True))
    assert made.resume_step == 200 and [f.code for r in made.rejected for f in r.findings] == ["missing-part"]
    assert "dangling-tracker" in {f.code for f in made.warnings}
    (root / tracker).write_text("loss 0.25, nothing else\n")
    made = plan(str(root))
    assert made.resume_step == 200 and not made.rejected


@pytest.mark.parametrize("said", ["", "200", "the best so far", "\x00\xff", "x" * 5000, "a\nb\n"])
def test_another_text_is_said_and_changes_nothing(run: tuple[Path, str], said: str) -> None:
    root, _ = run
    (root / TRACKER).write_text(said)
    made = plan(str(root))
    assert made.checkpoint and made.checkpoint.step == 200 and not made.rejected
    assert {f.code for f in made.warnings} <= {"bad-tracker"}


PADDLE_SPEECH = {
    "checkpoint_latest": ("{}.pdparams", b"model_checkpoint_path:2\nmodel_checkpoint_path:3\n"),
    "records.jsonl": (
        "snapshot_iter_{}.pdz",
        (
            b'{"path": "/out/checkpoints/snapshot_iter_2.pdz", "iteration": 2}\n'
            b'{"path": "/out/checkpoints/snapshot_iter_3.pdz", "iteration": 3}\n'
        ),
    ),
}


@pytest.mark.parametrize("tracker", PADDLE_SPEECH)
def test_paddlespeech_names_its_latest_save_in_a_list(tracker: str, tmp_path: Path) -> None:
    name, said = PADDLE_SPEECH[tracker]
    files = [tmp_path / name.format(n) for n in (1, 2)]
    for n, path in enumerate(files, 1):
        path.write_bytes(pickle.dumps({"w": np.full((3, 4), n, np.float32)}, 2))
        os.utime(path, (1_700_000_000 + n,) * 2)
    (tmp_path / tracker).write_bytes(said.rpartition(b"\n")[0].rpartition(b"\n")[0])
    assert not plan(str(tmp_path)).rejected
    (tmp_path / tracker).write_bytes(said)
    made = plan(str(tmp_path))
    assert made.resume.path == str(files[1])
    assert [f.code for r in made.rejected for f in r.findings] == ["missing-part"]
    for path in files:
        path.unlink()
    with pytest.raises(NoneUsable):
        plan(str(tmp_path), Selection(allow_none=True))
    for other in (b"", b"{}", b'{"path": 7, "iteration": 1}', b"\xff" * 9, b"[" * 100_000):
        (tmp_path / tracker).write_bytes(other)
        assert plan(str(tmp_path), Selection(allow_none=True)).checkpoint is None


@pytest.mark.parametrize("beside", ["ema_{}.pt", "last.pt"])
def test_it_names_the_model_of_several_files(beside: str, tmp_path: Path) -> None:
    for step in (100, 200):
        put(tmp_path, f"model_{step}.pt", step, step)
        put(tmp_path, beside.format(step), step, step)
    (tmp_path / TRACKER).write_text("model_200.pt")
    assert plan(str(tmp_path)).warnings == ()
    forget(tmp_path / TRACKER, "model_100.pt")
    assert [f.code for f in plan(str(tmp_path)).warnings] == ["stale-tracker"]


@pytest.mark.parametrize("named", ["weights_{}.pt", "training_state_{}.pt"])
def test_it_may_name_any_file_of_a_save(named: str, tmp_path: Path) -> None:
    for step in (20, 30):
        for name, data in (("weights", {"w": tensor(step)}), ("training_state", adam(step))):
            path = tmp_path / f"{name}_{step}.pt"
            path.write_bytes(saved(data))
            os.utime(path, (1_700_000_000 + step,) * 2)
    (tmp_path / TRACKER).write_text(named.format(30))
    made = plan(str(tmp_path))
    assert made.checkpoint and made.checkpoint.step == 30 and not made.warnings
    forget(tmp_path / TRACKER, named.format(20))
    assert [f.code for f in plan(str(tmp_path)).warnings] == ["stale-tracker"]
    made = plan(str(tmp_path), Selection(resume_from="tracker"))
    assert made.checkpoint and made.checkpoint.step == 20
