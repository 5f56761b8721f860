"""Help: every command and every flag has its place, no sentence is cut, and every example does what it says."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import run_helpers
import warm
from small_files import saved

from ckpt_tools.cli import pages
from ckpt_tools.cli.typer_app import parser
from ckpt_tools.cli.words import COMMANDS
from ckpt_tools.guard.prune import pin
from ckpt_tools.guard.quarantine import quarantine

MODULES = {**{name: name for name in COMMANDS}, "hook install": "hook_install"}
EXIT_1 = ("ckpt diff run/iter_0000010 run/iter_0000020", "ckpt layouts --check run")
"""Examples whose answer is exit code 1: something differs, or a template matches nothing."""


def params(module: str) -> list:
    app = parser(module)
    return app.params


def test_every_command_is_in_one_group() -> None:
    named = [name for rows in pages.GROUPS.values() for name in rows]
    assert sorted(named) == sorted(COMMANDS)


@pytest.mark.parametrize("name", MODULES)
def test_every_flag_is_in_one_panel(name: str) -> None:
    for param in params(MODULES[name]):
        panels = [title for title, flags in pages.PANELS.items() if not set(flags).isdisjoint(param.opts)]
        assert len(panels) == (param.param_type_name == "option"), (param.opts, panels)


def test_no_panel_has_a_flag_that_no_command_has() -> None:
    known = {flag for module in MODULES.values() for param in params(module) for flag in param.opts}
    assert {flag for flags in pages.PANELS.values() for flag in flags} - known == {"--help"}


def test_the_first_page_has_whole_sentences() -> None:
    page = run_helpers.ckpt("--help").stdout
    for rows in pages.GROUPS.values():
        for name, sentence in rows.items():
            assert f"{name} " in page and sentence in page
            assert sentence.endswith(".")
    assert "..." not in page.split("Options:")[1]
    assert max(map(len, page.splitlines())) < 80


@pytest.mark.parametrize("name", MODULES)
def test_a_command_has_five_examples(name: str) -> None:
    page = run_helpers.ckpt(*name.split(), "--help").stdout
    examples = pages.EXAMPLES[name]
    assert len(set(examples)) == 5
    for line, why in examples:
        assert f"  {line}\n      {why}\n" in page
        assert f"ckpt {name}" in line


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
@pytest.mark.parametrize("line", [line for rows in pages.EXAMPLES.values() for line, _ in rows])
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
