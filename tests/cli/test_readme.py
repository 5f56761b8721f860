"""The README shows what the command really prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from hook_job import Job
from places import ROOT
from safetensors_writer import vectors
from small_files import dcp, trainer


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
    (tmp_path / "run").mkdir()
    (tmp_path / "run/model.safetensors").write_bytes(vectors(w=bytes(range(250)) * 4))
    text = (ROOT / "README.md").read_text().partition("**Any changed bit.**")[2]
    script = text.partition("```sh\n")[2].partition("```")[0]
    env = {**os.environ, "PATH": f"{warm.commands()}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "seal-mismatch" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held", "left_out", "code"),
    [
        ("loop", False, 0),
        ("older", True, 0),
        ("none", False, 0),
        ("by rank", False, 2),
        ("unusable", False, 4),
    ],
)
def test_the_recipe_for_job_scripts_resumes_or_stops(
    tmp_path: Path, held: str, left_out: bool, code: int
) -> None:
    """With a script that fails if it starts at 0 although there is a checkpoint; a framework says its own arguments."""
    job = Job(tmp_path)
    job.holds(held)
    text = (ROOT / "README.md").read_text().partition("**In a job script**")[2]
    script = text.partition("```sh\n")[2].partition("```")[0]
    wanted = "--resume-args '--resume {path}' "
    assert wanted in script and "torchrun … train.py" in script
    script = script.replace(wanted, "" if left_out else wanted).replace("torchrun … ", "python ")
    done = job.bash(script, job.env(RUN=str(job.root)))
    assert done.returncode == code, done.stdout + done.stderr
    step = {
        "loop": ["--resume", str(job.root / "step_20.pt")],
        "older": ["--load", str(job.root), "--ckpt-step", "10"],
    }
    assert [t["args"] for t in job.told] == ([step.get(held, [])] if code == 0 else [])


@pytest.mark.slow
def test_the_recipe_for_python_sees_files(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text().partition("**In Python, and in training code**")[2]
    script = text.partition("```python\n")[2].partition("```")[0]
    roots = {}
    for held in ("loop", "by rank"):
        (tmp_path / held).mkdir()
        job = Job(tmp_path / held)
        job.holds(held)
        roots[held] = job.root
    for held, files in (("checkpoint-5", trainer(5)), ("step-5", dcp(5))):
        roots[held] = tmp_path / f"of {held}"
        for name, data in files.items():
            path = roots[held] / held / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    for held, root in roots.items():
        words = [sys.executable, "-c", script.replace("/runs/llm", str(root))]
        told, *files = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        assert files and all(Path(file).is_file() for file in files)
        assert told.startswith(str(root) if held != "by rank" else "None"), told
