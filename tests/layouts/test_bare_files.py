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

import pytest
from fixture_trees import tree_of
from timed import put
from told_trees import content

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError, UsageError
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
