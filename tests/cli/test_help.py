"""Help, and what Tab offers, in real shells too: every command and flag has its place, no sentence is cut, every example
does what it says, and no name of a file does more than be a word.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import run_helpers
import shells
import warm
from in_process import executed
from injected import HANGS, Fault
from run_helpers import CLEAN, ckpt, megatron
from small_files import saved
from timed import lay

from ckpt_tools.cli import known
from ckpt_tools.cli.app import COMMANDS, GROUPS, command, examples
from ckpt_tools.findings import CODES
from ckpt_tools.formats import FORMATS
from ckpt_tools.guard.prune import pin
from ckpt_tools.guard.quarantine import quarantine
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.catalogue import RULES

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
def test_the_short_help_has_few_flags_and_three_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = executed([*name.split(), "-h"])[1]
    lines = shown.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert sum(line.startswith("│ --") for line in lines) <= 15
    assert shown.count(f"   ckpt {name} ") + shown.count(f"   ckpt {name}\n") <= 3
    assert f"ckpt {name} --help lists all flags." in shown and "── Reading ─" not in shown


def test_help_is_a_word_too() -> None:
    assert run_helpers.ckpt("help", "plan").stdout == run_helpers.ckpt("plan", "--help").stdout
    assert run_helpers.ckpt("help").stdout == run_helpers.ckpt("--help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_shows_its_flags_and_five_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    shown, rows = executed([*name.split(), "--help"])[1], list(examples(name))
    assert len(set(rows)) == 5
    for line, why in rows:
        assert f" {line}  # {why}" in shown and f"ckpt {name}" in line
    for param in (p for p in command(name).params if not p.hidden):
        assert " ".join(param.help.replace("\\[", "[").split()[:4]) in shown, param.opts


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
    saves = itertools.product((10, 20), range(2))
    lay(home / "mine", {f"s{n}/shard{rank}.pt": saved({"step": n, "rank": rank}) for n, rank in saves})
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


HOSTILE = [
    "a b", "e\x1b[31m", "$(touch ran)", "nl\nx", "q'u\"o", "tab\tx", "rtl\u202ex", "`touch ran`", "~", "a;touch ran",
    "*", "back\\slash", "!!", "\udcff", "é",
]  # fmt: skip
"""Names of runs."""


def asked(line: str) -> dict[str, str]:
    """The environment by which fish asks for what a line may go on with."""
    typer = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": f"ckpt {line}"}
    return {"_CKPT_COMPLETE": "complete_fish", **typer}


def offered(line: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> list[str]:
    done = ckpt(env={**asked(line), **(env or {})}, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return [row.partition("\t")[0] for row in done.stdout.splitlines() if row]


def test_words_of_every_kind(tmp_path: Path) -> None:
    root = str(megatron(tmp_path / "runs" / "llm"))
    assert set(offered("")) == {name for name in COMMANDS if name not in ("hook install", "completion")}
    assert offered("ver") == ["verify"]
    assert offered("--v") == ["--version"]
    assert offered("explain ") == [*sorted(CODES), *sorted(RULES)]
    assert offered("formats ") == [one.name for one in FORMATS]
    assert offered("verify --level ") == list(map(str, Level))
    assert offered("verify --level=st") == ["structure"]
    assert offered("plan --layout ") == [layout.name for layout in BUILT_IN]
    assert offered(f"ls {root} --max-step ") == ["20", "10"]
    assert offered(f"ls {tmp_path} --run ") == ["runs/llm"]
    assert offered("ls $RUNS --run ru", {"RUNS": str(tmp_path)}) == ["runs/llm"]
    assert offered("ls --run ", {"CKPT_ROOT": str(tmp_path)}) == ["runs/llm"]
    assert "slurm" in offered("hook install ")
    assert offered("completion ") == list(known.SHELLS)
    assert offered("verify ") == offered("plan --plan-dir ") == []  # a shell offers files
    flags = offered(f"run {root} --")
    assert "--fault-ranks" in flags and all(flag.startswith("--") for flag in flags)


def test_layouts_of_the_configuration_are_offered(tmp_path: Path) -> None:
    table = '[[layout]]\ntitle = "x"\nname = "mine"\n[[layout.piece]]\ntemplate = "x{step}.pt"\n'
    (tmp_path / "ckpt.toml").write_text(table)
    (tmp_path / "deep").mkdir()
    assert "mine" in offered("plan --layout ", cwd=tmp_path / "deep")
    (tmp_path / "ckpt.toml").write_text("no TOML")
    done = ckpt(env=asked("plan --layout "), cwd=tmp_path / "deep")
    assert done.stdout + done.stderr == "", "nothing is said in the middle of a line"


def test_a_file_system_that_hangs_is_not_waited_for(root: Path) -> None:
    env = {**CLEAN, **asked(f"ls {root} --max-step "), **Fault(str(root), "opendir", HANGS).environment()}
    words = [sys.executable, "-m", "ckpt_tools"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    step_7 = saved({"step": 7})
    lay(tmp_path / "home/runs", {f"{name}/step_7.pt": step_7 for name in (*HOSTILE, "plain")})
    return tmp_path / "home"


@pytest.fixture(params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, hostile: Path) -> Iterator[shells.Shell]:
    started = shells.Shell(request.param, hostile, shells.with_ckpt(hostile.parent / "bin"))
    yield started
    started.close()


def test_a_real_shell(shell: shells.Shell, hostile: Path) -> None:
    """One shell for all of it: starting one takes longer than a Tab."""
    assert shell.completed("ckpt exp\t crc-m\t") == [b"explain", b"crc-mismatch"]
    assert shell.completed("ckpt verify --lev\tst\t") == [b"verify", b"--level", b"structure"]
    assert shell.completed("ckpt ls runs --max-step \t") == [b"ls", b"runs", b"--max-step", b"7"]
    assert shell.completed("ckpt hook install kubef\t") == [b"hook", b"install", b"kubeflow"]
    (hostile / "my-save").mkdir()
    assert shell.completed("ckpt verify my\t")[1].rstrip(b"/") == b"my-save"
    assert shell.completed("ckpt ls runs --run \t") == [b"ls", b"runs", b"--run", b"plain"]
    assert not list(hostile.glob("**/ran"))


def test_fish(hostile: Path) -> None:
    env = shells.with_ckpt(hostile.parent / "bin")
    (row,) = shells.fish(hostile, env, "ckpt expl")
    assert row == "explain\tSay what a finding or a rule means, and what to do about it."
    assert shells.fish(hostile, env, "ckpt verify --level ") == sorted(map(str, Level))
    assert shells.fish(hostile, env, "ckpt ls runs --run ") == ["plain"]
    assert not list(hostile.glob("**/ran"))


@pytest.mark.parametrize("name", known.SHELLS)
def test_the_script_is_that_of_typer(name: str) -> None:
    done = ckpt("completion", name)
    assert (done.returncode, done.stderr) == (0, "") and "_CKPT_COMPLETE" in done.stdout
