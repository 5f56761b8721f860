"""Prune beside a real job of torch that saves, keeps a few by itself and is started again: it never fails, and it
always finds the checkpoint that it saved last.
"""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest
import warm
from run_helpers import CLEAN, ckpt

from ckpt_tools.api import plan
from ckpt_tools.errors import CannotLook, NoneUsable, UsageError
from ckpt_tools.guard.prune import Policy, prune
from ckpt_tools.model.selection import Selection

JOB = """
    import os, shutil, sys
    from pathlib import Path
    import torch

    root, first, last, limit = Path(sys.argv[1]), *map(int, sys.argv[2:])
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    tracker = root / "latest_checkpointed_iteration.txt"
    if first > 1:
        at = int(tracker.read_text())
        assert at == first - 1, (at, first)
        saved = torch.load(root / f"iter_{at:07d}/mp_rank_00/model_optim_rng.pt", weights_only=False)
        model.load_state_dict(saved["model"])
        assert saved["iteration"] == at
    for step in range(first, last + 1):
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        path = root / f"iter_{step:07d}/mp_rank_00/model_optim_rng.pt"
        path.parent.mkdir(parents=True)
        state = {"iteration": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "checkpoint_version": 3.0}, path)
        aside = root / "tracker.tmp"
        aside.write_text(str(step))
        os.replace(aside, tracker)
        for old in sorted(root.glob("iter_*"))[:-limit]:
            shutil.rmtree(old, ignore_errors=True)
        print(step, flush=True)
        sys.stdin.readline()  # what tests it goes on
"""


def job(root: Path, first: int, last: int, limit: int) -> subprocess.Popen[str]:
    words = [warm.python_with_torch(), "-c", textwrap.dedent(JOB), root, *map(str, (first, last, limit))]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=CLEAN)


@pytest.mark.exhaustive
def test_a_job_goes_on_and_resumes_from_its_last_save(tmp_path: Path) -> None:
    root, last = tmp_path / "run", 0
    root.mkdir()
    policy, selection, removed = Policy(keep_last=2), Selection(settle=0, order="step"), 0
    for start in (1, 7, 13):
        with job(root, start, start + 5, limit=4) as running:
            assert running.stdin and running.stdout
            for line in running.stdout:
                last = int(line)
                running.stdin.write("\n")  # it saves the next one while this one is looked at
                running.stdin.flush()
                try:
                    said = prune(str(root), policy, apply=True, selection=selection)
                except (UsageError, NoneUsable, CannotLook):  # something was half written, or half removed
                    continue
                removed += sum(c.state == "removed" for c in said.changes)
        assert running.returncode == 0 and last == start + 5
        chosen = plan(root, selection).checkpoint
        assert chosen and chosen.step == last
        assert ckpt("verify", str(root), "--quiet").returncode == 0
    assert removed
    prune(str(root), policy, apply=True, selection=selection)
    assert sorted(path.name for path in root.glob("iter_*")) == ["iter_0000017", "iter_0000018"]
