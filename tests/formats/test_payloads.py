"""Every pickle of benchmarks/_payloads.py runs something when its framework loads it, and none of them is ok."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import BENCHMARKS
from scripts import loaded

from ckpt_tools import Level, verify
from ckpt_tools.model.finding import Verdict

TOLD = {
    "unsafe-pickle", "unread-pickle", "suspect-call", "unknown-global", "bad-header", "bad-pickle", "path-escape",
    "external-data", "needs-trust",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.torch
def test_no_payload_is_ok(tmp_path: Path) -> None:
    made = [p for p in loaded(BENCHMARKS / "_payloads.py").build(tmp_path) if "behind" not in p.name]
    assert len(made) >= 60
    for payload in made:
        result = verify(str(payload.path), Level.STRUCTURE)
        found = {f.code for r in result.files for f in r.report.findings}
        assert result.verdict is not Verdict.OK, payload.name
        assert found & TOLD, (payload.name, found)
        assert not payload.mark.exists(), payload.name


@pytest.mark.exhaustive
def test_every_payload_runs_and_none_is_ok() -> None:
    line = [sys.executable, str(BENCHMARKS / "pickles.py"), "--check"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
