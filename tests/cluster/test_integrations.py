"""dcp.load under the real torchrun: two ranks resume from what is whole, and raise alike where nothing is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from places import BENCHMARKS, ROOT
from run_helpers import CLEAN

pytest.importorskip("torch")

BIN = Path(sys.executable).parent


@pytest.mark.exhaustive
def test_two_ranks_load_the_save_before_the_damaged_one(tmp_path: Path) -> None:
    """The run of benchmarks/resume_frameworks.py, whose lines are on the page."""
    runs = BENCHMARKS / "resume_runs"
    script, out = runs / "hf/dcp_steps.py", tmp_path / "out"
    out.mkdir()
    env = {**CLEAN, "PYTHONPATH": f"{ROOT}:{runs}", "OMP_NUM_THREADS": "1"}
    words = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2", str(script), str(out)]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [json.loads((out / f"said-{rank}").read_text()) for rank in range(2)]
    assert said[0] == said[1]
    assert {key: said[0][key] for key in ("first", "resumed", "went_on", "refused")} == {
        "first": True, "resumed": "step_2", "went_on": True, "refused": "NoneUsable",
    }  # fmt: skip
