"""A file that only stands for its data, or that a server answered in its place, is named as that wherever a
checkpoint file may lie; nobody resumes from it, nobody starts from nothing over it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixture_trees import TREES, materialise

from ckpt_tools import Level, errors
from ckpt_tools.api import plan, verify
from ckpt_tools.formats import names
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.selection import Selection

DIGEST = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
POINTERS = {
    "git lfs pull": f"version https://git-lfs.github.com/spec/v1\noid sha256:{DIGEST}\nsize 4976698672\n",
    "git annex get": f"/annex/objects/SHA256E-s4976698672--{DIGEST}.pt\n",
    "git xet": f"# xet version 0\nfilesize = 4976698672\nhash = '{DIGEST}'\n",
    "dvc pull": "outs:\n- md5: 22a1a2931c8370d3aeedd7183606fd7f\n  size: 14445097\n  hash: md5\n  path: m.pt\n",
    "page": "<!DOCTYPE html>\n<html lang=en><head><title>404</title></head></html>\n",
    "store": '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchKey</Code></Error>\n',
    "json": '{"error":"Repository not found"}',
    "hub": "Entry not found",
    "github": "404: Not Found",
}
HINTS = {kind: kind if " " in kind else "download it again" for kind in POINTERS}
ENDS = ("safetensors", "pt", "pth", "ckpt", "pkl", "gguf", "h5", "onnx", "npz", "npy", "msgpack", "eqx", "keras", "joblib", "pdparams")  # fmt: skip


@pytest.mark.parametrize("kind", POINTERS)
def test_it_is_named_under_the_name_of_any_weights(kind: str, tmp_path: Path) -> None:
    for name in [f"m.{end}" for end in ENDS]:
        assert names.known(name), name
        (tmp_path / name).write_text(POINTERS[kind])
    for f in verify([str(tmp_path)], Level.CONTENT, settle=0).files:
        assert f.report.verdict is Verdict.BROKEN, f.report
        assert [x.code for x in f.report.findings] == ["pointer-not-data"], f.report
        assert HINTS[kind] in f.report.findings[0].hint


def state_files(root: Path) -> list[Path]:
    """Files of checkpoints that a repository would keep elsewhere."""
    files = [p for p in root.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size]
    states = (p for p in files if names.state(p.name) or p.suffix == ".bin")
    return [p for p in states if not p.name.endswith((".json", ".yaml"))]


@pytest.mark.slow
@pytest.mark.share(8)
@pytest.mark.parametrize("case", TREES)
def test_nobody_starts_over_it(case: Path, tmp_path: Path) -> None:
    """Of a clone without its large files, no job resumes, and none begins from nothing."""
    root = materialise(case, tmp_path)
    replaced = state_files(root)
    for path in replaced:
        times = path.stat()
        path.write_text(POINTERS["git lfs pull"])
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert replaced
    taken = {str(p) for p in replaced}
    for level in (Level.STRUCTURE, Level.CONTENT):
        try:
            made = plan(str(root), Selection(allow_none=True, level=level))
        except errors.CkptError:
            continue
        assert made.checkpoint is not None, "it would start from nothing"
        used = [f.path for f in (*made.shared, *(f for r in made.by_rank for f in r.files))]
        assert not taken.intersection(used)
