"""A file that only stands for its data, or that a server answered in its place, is named as that wherever a
checkpoint file may lie; nobody resumes from it, nobody starts from nothing over it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_tools import Level
from ckpt_tools.api import verify
from ckpt_tools.formats import names
from ckpt_tools.model.finding import Verdict

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
