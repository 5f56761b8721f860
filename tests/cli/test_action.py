"""What others call from CI: the steps of action.yml, run as GitHub's runner runs them, and the pre-commit hook."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import warm
import yaml
from places import FIXTURES, FORMAT_FILES, ROOT
from run_helpers import ckpt

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOK = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]
DEMO = FIXTURES / "demo"


@dataclass
class Job:
    """A runner's files and variables, and what the steps of the action left in them."""

    home: Path
    inputs: dict[str, str]
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""

    def value(self, text: str) -> str:
        """What the runner puts in place of an expression."""

        def one(match: re.Match[str]) -> str:
            kind, *names = match[1].split(".")
            if kind == "inputs":
                return self.inputs.get(names[0], ACTION["inputs"][names[0]].get("default", ""))
            if kind == "github":
                return {"action_path": str(ROOT)}[names[0]]
            assert (kind, names[1]) == ("steps", "outputs")
            return self.outputs.get(names[0], {}).get(names[2], "")

        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", one, text)

    def run(self, name: str) -> int:
        """One step of the action; its exit code."""
        step: dict[str, Any] = next(s for s in ACTION["runs"]["steps"] if s["name"] == name)
        script, said = self.home / "step.sh", self.home / "said"
        script.write_text(step["run"])
        said.write_text("")
        env = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "RUNNER_TEMP": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"), "GITHUB_OUTPUT": str(said),
            "GITHUB_STEP_SUMMARY": str(self.home / "summary.md"),
            **{key: self.value(text) for key, text in step["env"].items()},
        }  # fmt: skip
        work = self.home / "work"
        work.mkdir(exist_ok=True)
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", script]
        done = subprocess.run(command, env=env, cwd=work, capture_output=True, text=True)
        self.log += done.stdout
        found = self.outputs.setdefault(step.get("id", ""), {})
        found.update(line.split("=", 1) for line in said.read_text().splitlines())
        return done.returncode


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """With what the first step would have installed."""
    return Job(tmp_path, {"path": str(DEMO)}, {"install": {"ckpt": f"{warm.commands()}/ckpt"}})


def test_no_input_is_ever_part_of_a_script() -> None:
    scripts = [step["run"] for step in ACTION["runs"]["steps"] if "run" in step]
    assert len(scripts) == 3
    assert not [script for script in scripts if "${{" in script]


@pytest.mark.slow
def test_damage_is_shown_three_times_and_fails_at_the_end(job: Job) -> None:
    assert job.run("Verify") == 0  # the upload comes first
    assert job.outputs["verify"] == {"exit-code": "1", "sarif": "ckpt.sarif"}
    assert job.log.count("::error file=") == 3
    assert "### ckpt verify: broken" in (job.home / "summary.md").read_text()
    assert '"2.1.0"' in (job.home / "work/ckpt.sarif").read_text()
    assert job.run("Result") == 1


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("path", "fails", "code"),
    [("gone", "never", 5), ("empty", "never", 3), ("gone", "error", 5), ("sound", "warning", 0), (str(DEMO), "never", 0)],
)  # fmt: skip
def test_what_is_no_damage_keeps_its_exit_code_and_never_lets_damage_pass(
    job: Job, path: str, fails: str, code: int
) -> None:
    work = job.home / "work"
    (work / "empty").mkdir(parents=True)
    (work / "sound").mkdir()
    shutil.copy(DEMO / "iter_0000010/mp_rank_00/model_optim_rng_0.pt", work / "sound")
    job.inputs |= {"path": path, "fail-on": fails}
    assert job.run("Verify") == 0
    assert job.outputs["verify"]["exit-code"] == ("1" if path == str(DEMO) else str(code))
    assert job.run("Result") == code


@pytest.mark.slow
def test_words_come_whole(job: Job) -> None:
    """Lines are words, whatever is in them: blanks, quotes, commands, the beginning of a flag."""
    work = job.home / "work"
    names = ["two words", "$(touch ran)", "a'b\"c", "-q", "`touch ran`;touch ran"]
    for name in names:
        (work / name).mkdir(parents=True)
        shutil.copy(DEMO / "iter_0000020/mp_rank_01/model_optim_rng_1.pt", work / name)
    job.inputs |= {"path": "\r\n".join(["", *names, ""]), "args": "--max-duration\n1h"}
    assert job.run("Verify") == 0
    assert job.outputs["verify"]["exit-code"] == "1"
    assert job.log.count("::error file=") == len(names)
    assert not (work / "ran").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [("path", "\n\n"), ("fail-on", "sometimes"), ("sarif", "a\nb=c"), ("version", "1;id"), ("version", "1 --pre")],
)  # fmt: skip
def test_what_is_not_understood_stops_it(job: Job, name: str, text: str) -> None:
    job.inputs |= {name: text}
    assert job.run("Install ckpt-tools" if name == "version" else "Verify") == 2
    assert f"::error::{name}: " in job.log
    assert not (job.home / "work/ckpt.sarif").exists()


def test_the_upload_takes_what_was_written() -> None:
    (step,) = (s for s in ACTION["runs"]["steps"] if "uses" in s)
    assert step["with"]["sarif_file"] == "${{ steps.verify.outputs.sarif }}"
    assert "inputs.upload-sarif == 'true'" in step["if"] and "always()" in step["if"]


@pytest.mark.exhaustive
def test_the_first_step_installs_this_package(job: Job) -> None:
    """From the package index: what it needs, and what builds it."""
    assert job.run("Install ckpt-tools") == 0
    assert Path(job.outputs["install"]["ckpt"]).parent.parent.parent == job.home
    assert job.run("Verify") == 0 and job.outputs["verify"]["exit-code"] == "1"


def test_the_hook_asks_about_files_that_ckpt_knows_and_pre_commit_takes_it() -> None:
    """Each suffix it names belongs to a format with a file of it that is good, and to none that is not."""
    from pre_commit.clientlib import load_manifest

    (hook,) = load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))
    assert hook["id"] == "ckpt-verify" and hook["language"] == "python"
    suffixes = re.findall(r"\w+", HOOK["files"].partition("(")[2])
    good = {p.suffix[1:] for p in FORMAT_FILES.glob("*/good/*")}
    assert suffixes == sorted(suffixes)
    assert set(suffixes) - good <= {"keras", "pdopt", "pdparams", "distcp", "hdf5"}


@pytest.mark.slow
def test_the_hook_refuses_what_is_damaged() -> None:
    words = HOOK["entry"].split()
    assert words[0] == "ckpt"
    tree = sorted(p for p in DEMO.rglob("*") if re.search(HOOK["files"], p.name))
    sound = [p for p in tree if "iter_0000010/mp_rank_01" in str(p)]
    for files, code in ((tree, 1), (sound, 0)):
        assert ckpt(*words[1:], *files, cwd=ROOT).returncode == code
    assert len(tree) == 8 and len(sound) == 2
