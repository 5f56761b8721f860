"""Checkpoints of somebody's own training loop, flat in a directory: the newest whole training state is
chosen, never a half and never an export.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from places import LAYOUT_TREES
from small_files import adam, saved, tensor
from timed import put

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.model.selection import Selection


@cache
def full(step: int) -> bytes:
    return saved({"model": {"w": tensor(step), "b": tensor(step, 1)}, "optimizer": adam(step), "step": step})


@pytest.mark.parametrize("named", ["iter_epoch_4", "latest"])
@pytest.mark.parametrize("size", [0, 200])
def test_the_framework_is_never_told_of_a_file_that_another_one_stands_in_for(
    named: str, size: int, tmp_path: Path
) -> None:
    """PaddleOCR saves each epoch under two names."""
    tree = tmp_path / "tree"
    shutil.copytree(LAYOUT_TREES / "files/paddle-ocr/tree", tree)
    for path in tree.iterdir():
        os.truncate(path, size if path.name == f"{named}.pdparams" else path.stat().st_size)
        os.utime(path, (1_750_000_000,) * 2)
    made = plan(str(tree))
    loaded = {f.path for f in made.shared}
    assert made.checkpoint is not None and {made.resume.path, made.checkpoint.path} <= loaded


# --- any directory, whose truth is known


def _tar(data: bytes) -> bytes:
    head, out = tarfile.TarInfo("step_200.pt"), io.BytesIO()
    head.size = len(data)
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(head, io.BytesIO(data))
    return out.getvalue()


REPLACED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zip-in-gzip-in-tar": lambda data: _tar(gzip.compress(data)),
    "tar": _tar,
    "pickle": lambda _: pickle.dumps({"step": 200, "loss": 1.5}),
    "json": lambda _: b'{"step": 200}',
    "text": lambda _: b"moved to /archive\n",
    "page": lambda _: b"<!DOCTYPE html><html><body>502</body></html>",
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: hashlib.sha256(data).digest() * 40,
    "picture": lambda _: b"\x89PNG\r\n\x1a\n" + bytes(60),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["step_{}.pt", "model-{}.pth", "ckpt_{}.ckpt", "epoch_{}.pt"])
@pytest.mark.parametrize("kind", REPLACED)
def test_whatever_stands_where_the_newest_save_should_is_no_reason_to_go_back_in_silence(
    kind: str, name: str, tmp_path: Path
) -> None:
    for at, data in zip((100, 200), (full(100), REPLACED[kind](full(200))), strict=True):
        put(tmp_path / name.format(at), data, 1_750_000_000 + 60 * at)
    newest = str(tmp_path / name.format(200))
    if kind == "page":  # the data is elsewhere
        with pytest.raises(UsageError, match="was not fetched"):
            plan(str(tmp_path))
        return
    made = plan(str(tmp_path))
    named = [f.path for r in made.rejected for f in r.findings] + [r.checkpoint.path for r in made.rejected]
    assert newest in named, made.warnings
    with pytest.raises(CkptError):
        plan(str(tmp_path), Selection(no_fallback=True))
