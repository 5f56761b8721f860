"""The README shows what the command really prints."""

from __future__ import annotations

import os
import subprocess
import sys

from places import ROOT


def test_the_example_s_output_is_real() -> None:
    command = [sys.executable, "-m", "ckpt_tools", "plan", "fixtures/demo", "--order", "step", "--quiet"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "CKPT_NO_CACHE": "1"},
    )  # as on the first run
    shown = done.stdout.replace(str(ROOT / "fixtures" / "demo"), "…/fixtures/demo").rstrip()
    assert f"```text\n{shown}\n```" in (ROOT / "README.md").read_text()


def test_the_demo_has_three_damaged_files() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ckpt_tools", "verify", "fixtures/demo", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "3 broken" in done.stdout
