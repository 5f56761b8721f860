"""Help: every command and every flag has its place, no sentence is cut, and every example does what it says."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import run_helpers
import warm
from small_files import saved

from ckpt_tools.cli.app import COMMANDS, GROUPS, command, examples
from ckpt_tools.guard.prune import pin
from ckpt_tools.guard.quarantine import quarantine

EXIT_1 = ("ckpt diff run/iter_0000010 run/iter_0000020", "ckpt layouts --check run")
"""Examples whose answer is exit code 1: something differs, or a template matches nothing."""
FIRST = {
    "--rank", "--world-size", "--run", "--max-step", "--level", "--strict", "--allow", "--json",
    "--resume-args", "--output",
}  # fmt: skip
"""What people need of ``plan``."""


def page(*words: str, columns: int = 80) -> str:
    return run_helpers.ckpt(*words, "--help", env={"COLUMNS": str(columns)}).stdout


def test_the_first_page_fits_a_screen() -> None:
    shown = page()
    assert len(shown.splitlines()) <= 40 and max(map(len, shown.splitlines())) <= 80
    for rows in list(GROUPS.values())[:-1]:
        for name, sentence in rows.items():
            assert f"{name} " in shown and sentence in shown
            assert sentence.endswith(".")


def test_the_first_panel_of_plan_has_what_people_need_first() -> None:
    panel = page("plan").partition("Options ─")[2].partition("╰")[0]
    assert set(re.findall(r"^│ (--[a-z-]+)", panel, re.MULTILINE)) == FIRST | {"--help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_has_few_flags_and_three_examples(name: str) -> None:
    shown = run_helpers.ckpt(*name.split(), "-h", env={"COLUMNS": "80"}).stdout
    lines = shown.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert sum(line.startswith("│ --") for line in lines) <= 15
    assert shown.count(f"   ckpt {name} ") + shown.count(f"   ckpt {name}\n") <= 3
    assert f"ckpt {name} --help lists all flags." in shown and "── Reading ─" not in shown


def test_help_is_a_word_too() -> None:
    assert run_helpers.ckpt("help", "plan").stdout == run_helpers.ckpt("plan", "--help").stdout
    assert run_helpers.ckpt("help").stdout == run_helpers.ckpt("--help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_shows_its_flags_and_five_examples(name: str) -> None:
    shown, rows = page(*name.split(), columns=250), list(examples(name))
    assert len(set(rows)) == 5
    for line, why in rows:
        assert f" {line}  # {why}" in shown and f"ckpt {name}" in line
    for param in (p for p in command(name).params if not p.hidden):
        text = param.help.replace("\\[", "[").split()
        assert " ".join(text[:4]) in shown, param.opts


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for the examples that change nothing."""
    return made(tmp_path_factory.mktemp("home"))


def made(home: Path) -> Path:
    """A directory as the examples assume: ``run``, ``mine``, ``kept``, ``pinned``, ``empty``, a ``train.py``, and python
    for PATH.
    """
    run_helpers.megatron(home / "run")
    quarantine(str(run_helpers.megatron(home / "kept")), [str(home / "kept/iter_0000020")], apply=True)
    assert pin(str(run_helpers.megatron(home / "pinned")), [str(home / "pinned/iter_0000020")]).applied
    for step, rank in itertools.product((10, 20), range(2)):
        save = home / f"mine/s{step}/shard{rank}.pt"
        save.parent.mkdir(parents=True, exist_ok=True)
        save.write_bytes(saved({"step": step, "rank": rank}))
    (home / "empty").mkdir()
    (home / "train.py").write_text(
        "import sys\nassert sys.argv[1] == '--load' and sys.argv[2].endswith('run')\n"
    )
    (home / "bin").mkdir()
    (home / "bin/python").symlink_to(sys.executable)
    return home


@pytest.mark.share(12)
@pytest.mark.parametrize("line", [line for name in COMMANDS for line, _ in examples(name)])
def test_an_example_runs(home: Path, line: str, tmp_path: Path) -> None:
    if "--apply" in line:  # it changes what the others are about
        home = made(tmp_path)
    path = f"{warm.commands()}:{home / 'bin'}:{os.environ['PATH']}"
    env = {**run_helpers.CLEAN, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    env["CKPT_CACHE_DIR"], env["XDG_STATE_HOME"] = os.environ["CKPT_CACHE_DIR"], os.environ["XDG_STATE_HOME"]
    line = line.replace("s3://bucket/", "local://")  # a store that needs no server
    done = subprocess.run(["bash", "-c", line], cwd=home, env=env, capture_output=True, text=True)
    assert done.returncode == line.startswith(EXIT_1), done.stdout + done.stderr
    assert done.stdout or ">" in line or " -o " in line or "train.py" in line
