"""Checkpoints of somebody's own training loop, flat in a directory: the newest whole training state is
chosen, never a half and never an export.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fixture_trees import tree_of
from timed import put
from told_trees import Question, content, hold, table

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError, NoneUsable, UsageError
from ckpt_tools.model.selection import Selection


@pytest.mark.parametrize("named", ["iter_epoch_4", "latest"])
@pytest.mark.parametrize("size", [0, 200])
def test_the_framework_is_never_told_of_a_file_that_another_one_stands_in_for(
    named: str, size: int, tmp_path: Path
) -> None:
    """PaddleOCR saves each epoch under two names."""
    tree = tree_of("files/paddle-ocr", tmp_path)
    for path in tree.iterdir():
        put(path, path.read_bytes()[: size if path.name == f"{named}.pdparams" else None])
    made = plan(str(tree))
    assert made.checkpoint is not None and {made.resume.path, made.checkpoint.path} <= {*made.files()}


# --- any directory, whose truth is known


def _tar(data: bytes) -> bytes:
    head, out = tarfile.TarInfo("step_200.pt"), io.BytesIO()
    head.size = len(data)
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(head, io.BytesIO(data))
    return out.getvalue()


REPLACED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zip-in-gzip-in-tar": lambda data: _tar(gzip.compress(data)),
    "pickle": lambda _: pickle.dumps({"step": 200, "loss": 1.5}),
    "json": lambda _: b'{"step": 200}',
    "text": lambda _: b"moved to /archive\n",
    "page": lambda _: b"<!DOCTYPE html><html><body>502</body></html>",
    "noise": lambda data: hashlib.sha256(data).digest() * 40,
    "picture": lambda _: b"\x89PNG\r\n\x1a\n" + bytes(60),
}


@pytest.mark.parametrize("name", ["step_{}.pt", "ckpt_{}.ckpt"])
@pytest.mark.parametrize("kind", REPLACED)
def test_whatever_stands_where_the_newest_save_should_is_no_reason_to_go_back_in_silence(
    kind: str, name: str, tmp_path: Path
) -> None:
    put(tmp_path / name.format(100), content("whole", 100), 60)
    newest = put(tmp_path / name.format(200), REPLACED[kind](content("whole", 200)), 120)
    if kind == "page":  # the data is elsewhere
        with pytest.raises(UsageError, match="was not fetched"):
            plan(str(tmp_path))
        return
    lost = plan(str(tmp_path)).rejected
    assert str(newest) in [*(r.checkpoint.path for r in lost), *(f.path for r in lost for f in r.findings)]
    with pytest.raises(CkptError):
        plan(str(tmp_path), Selection(no_fallback=True))


# --- A text that names the latest save (``latest_checkpoint.txt``) beside files of no known arrangement:


MADE = {
    "files": ("planted", "step_100.pt step_200.pt"),
    "directories": ("planted", "step_100/state.pt:whole100 step_200/state.pt:whole200"),
    "averages": ("planted", "model_100.pt ema_100.pt= model_200.pt ema_200.pt="),
    "last": ("planted", "model_100.pt model_200.pt last.pt:whole200="),
    "halves": (
        "planted",
        "weights_20.pt:model training_state_20.pt:optimizer= weights_30.pt:model training_state_30.pt:optimizer=",
    ),
}
TREES = table(
    """
    files
        put latest_checkpoint.txt {step_300.pt,/elsewhere/ckpts/step_300.pt,out/step_300.pt/}
            -> step_200.pt -missing-part +dangling-tracker
        then rm *.pt | allow_none=yes -> exit 4 tree/first-launch-leftovers +dangling-tracker
        put {latest,latest.txt,last.txt,last_checkpoint.txt,latest_ckpt.txt} step_100.pt
            -> step_200.pt +stale-tracker
        put {latest,last.txt} step_300.pt -> step_200.pt -missing-part +dangling-tracker
        put {latest,last.txt} loss 0.25 nothing else -> step_200.pt +dangling-tracker
        put latest_checkpoint.txt {200,the best so far,a b} -> step_200.pt +bad-tracker
        latest_checkpoint.txt:{empty,zeros,json} -> step_200.pt +bad-tracker
    directories
        put latest_checkpoint.txt {step_300,/elsewhere/ckpts/step_300,out/step_300/}
            -> step_200 -missing-part +dangling-tracker
        then rm step_*/* | allow_none=yes -> exit 4 tree/first-launch-leftovers +dangling-tracker
        put latest_checkpoint.txt step_100 -> step_200 +stale-tracker
        put latest_checkpoint.txt {200,the best so far} -> step_200 +bad-tracker
    # It names the model of several files, or any file of a save.
    averages
        put latest_checkpoint.txt model_100.pt -> ema_200.pt +stale-tracker
        put latest_checkpoint.txt model_200.pt -> ema_200.pt
    last
        put latest_checkpoint.txt model_100.pt -> model_200.pt +stale-tracker
        put latest_checkpoint.txt model_200.pt -> model_200.pt
    halves
        put latest_checkpoint.txt {weights,training_state}_30.pt -> weights_30.pt
        put latest_checkpoint.txt {weights,training_state}_20.pt -> weights_30.pt +stale-tracker
        put latest_checkpoint.txt {weights,training_state}_20.pt | resume_from=tracker
            -> weights_20.pt +stale-tracker
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_a_text_names(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


PADDLE_SPEECH = {
    "checkpoint_latest": ("{}.pdparams", "model_checkpoint_path:{}\n"),
    "records.jsonl": (
        "snapshot_iter_{}.pdz",
        '{{"path": "/out/checkpoints/snapshot_iter_{0}.pdz", "iteration": {0}}}\n',
    ),
}


@pytest.mark.parametrize("tracker", PADDLE_SPEECH)
def test_paddlespeech_names_its_latest_save_in_a_list(tracker: str, tmp_path: Path) -> None:
    name, row = PADDLE_SPEECH[tracker]
    held = [pickle.dumps({"w": np.full((3, 4), n, np.float32)}, 2) for n in (1, 2)]
    files = [put(tmp_path / name.format(n), data, n) for n, data in enumerate(held, 1)]
    put(tmp_path / tracker, row.format(2))
    assert not plan(str(tmp_path)).rejected
    put(tmp_path / tracker, row.format(2) + row.format(3))
    made = plan(str(tmp_path))
    assert made.resume.path == str(files[1])
    assert [f.code for r in made.rejected for f in r.findings] == ["missing-part"]
    for path in files:
        path.unlink()
    with pytest.raises(NoneUsable):
        plan(str(tmp_path), Selection(allow_none=True))
    for other in (b"", b"{}", b'{"path": 7, "iteration": 1}', b"\xff" * 9, b"[" * 100_000):
        put(tmp_path / tracker, other)
        assert plan(str(tmp_path), Selection(allow_none=True)).checkpoint is None
