"""The README shows what the command really prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT


def test_the_front_page_is_short_and_shows_what_commands_print() -> None:
    """docs/make.py makes the pictures, and tests/cli/test_docs.py holds them to what is printed now."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    for name in re.findall(r"\]\(((?:docs/)?[\w./-]+)", text):
        assert (ROOT / name).exists(), name
    shown = (ROOT / "docs/terminal-plan.svg").read_text()
    assert "ckpt-step" in shown and "@font-face" not in shown and "url(http" not in shown


@pytest.mark.slow
def test_a_seal_sees_what_the_readme_flips(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]}}'
    (tmp_path / "run").mkdir()
    (tmp_path / "run/model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(range(250)) * 4
    )
    text = (ROOT / "README.md").read_text().partition("**Any changed bit.**")[2]
    script = text.partition("```sh\n")[2].partition("```")[0]
    (tmp_path / "ckpt").write_text(f'#!/bin/sh\nexec {sys.executable} -m ckpt_tools "$@"\n')
    (tmp_path / "ckpt").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "seal-mismatch" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
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
