"""What Tab offers, in real shells; that it is there at once, and that no name of a file does more than be a word."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hanging
import pytest
import shells
from own_plugins import install
from places import FIXTURES, PACKAGE
from run_helpers import CLEAN, ckpt, megatron

from ckpt_tools import scan
from ckpt_tools.cli import candidates
from ckpt_tools.cli.candidates import live
from ckpt_tools.cli.words import COMMANDS
from ckpt_tools.findings import CODES
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.catalogue import RULES

BIN = Path(sys.executable).parent
HOSTILE = [
    "a b",
    "e\x1b[31m",
    "$(touch ran)",
    "nl\nx",
    "q'u\"o",
    "tab\tx",
    "rtl\u202ex",
    "`touch ran`",
    "~",
    "a;touch ran",
    "*",
    "back\\slash",
    "!!",
    "\udcff",
    "é",
]
"""Names of runs."""


def offered(*words: str, env: dict[str, str] | None = None, shell: str = "zsh") -> list[str]:
    """The kind of an answer, then what is offered."""
    text = candidates.answer({candidates.VARIABLE: shell, **(env or {})}, list(words))
    assert text is not None
    return [line.partition("\t")[0] for line in text.splitlines()]


def in_bash(line: str, word: str | None = None) -> list[str]:
    env = {"_CKPT_LINE": line, "_CKPT_WORD": line.rpartition(" ")[2] if word is None else word}
    return offered(env=env, shell="bash")


def test_layouts_of_plug_ins_and_of_the_configuration_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read, not imported: this plug-in cannot be."""
    install(tmp_path / "site", source="import no_such_package")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/pyproject.toml").write_text("[project]\nname = 'somebody'\n")
    table = '[[{}layout]]\ntitle = "x"\nname = "{}"\n[[{}layout.piece]]\nname = "no layout"\n\n'
    text = table.format("", "mine", "") + table.format("", "yours", "")
    (tmp_path / "ckpt.toml").write_text(text)
    monkeypatch.chdir(tmp_path / "deep/er")
    built_in = [layout.name for layout in BUILT_IN]
    assert offered("plan", "--layout", "")[1:] == [*built_in, "mine", "owned", "yours"]
    assert offered("plan", "--layout=mi", env={"CKPT_NO_PLUGINS": "1"})[-1] == "--layout=mine"
    assert offered("ls", "--layout", "ow", env={"CKPT_NO_PLUGINS": "1"}) == ["words"]
    (tmp_path / "other.toml").write_text(table.format("", "theirs", ""))
    env = {"CKPT_CONFIG": str(tmp_path / "other.toml")}
    assert offered("plan", "--layout", "", env=env)[1:] == [*built_in, "owned", "theirs"]
    table_of_ours = table.format("tool.ckpt.", "near", "tool.ckpt.")
    (tmp_path / "deep/pyproject.toml").write_text("[tool.ckpt]\n" + table_of_ours)
    assert offered("plan", "--layout", "")[1:] == [*built_in, "near", "owned"]


@pytest.mark.slow
def test_words_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(megatron(tmp_path / "runs" / "llm"))
    assert offered("") == ["words", *COMMANDS]
    assert offered("ver") == ["words", "verify"]
    assert offered("--v") == ["words", "--version"]
    assert offered("explain", "") == ["words", *sorted(CODES), *sorted(RULES)]
    assert offered("formats", "torch_") == ["words", "torch_zip", "torch_legacy", "torch_tar"]
    assert offered("verify", "--level", "") == ["words", *map(str, Level)]
    assert offered("verify", "--level=st") == ["words", "--level=structure"]
    assert offered("plan", "--layout", "")[1:] == [layout.name for layout in BUILT_IN]
    listed = ckpt("plan", root, "--format", "nonsense").stderr.partition("one of ")[2].splitlines()[0]
    assert offered("plan", "--format", "")[1:] == listed.split(", ")
    assert offered("ls", root, "--max-step", "") == ["words", "20", "10"]
    assert offered("ls", str(tmp_path), "--run", "") == ["words", "runs/llm"]
    monkeypatch.setenv("RUNS", str(tmp_path))
    assert (
        offered("ls", "$RUNS", "--run", "")
        == offered("ls", "${RUNS}/", "--run", "ru")
        == ["words", "runs/llm"]
    )
    assert offered("ls", "--run", "", env={"CKPT_ROOT": str(tmp_path)}) == ["words", "runs/llm"]
    assert "slurm" in offered("hook", "install", "") and offered("hook", "ins") == ["words", "install"]
    assert offered("completion", "") == ["words", *candidates.SHELLS]
    assert offered("verify", "") == offered("seal", "--verify-key", "") == offered("hook", "") == ["files"]
    assert offered("plan", "--plan-dir", "") == ["directories"]
    assert offered("run", root, "--", "python", "") == ["command 3"]
    assert "--fault-ranks" in offered("run", root, "--") and "-q" not in offered("run", root, "-")
    assert offered("plan", "--rank", "") == offered("nonsense", "") == ["words"]


def test_the_words_of_bash_come_as_a_line() -> None:
    assert in_bash("ckpt verify --lev") == ["words", "--level"]
    assert in_bash("ckpt verify --level=st", "st") == ["words", "structure"]
    assert in_bash("ckpt verify --level=", "") == ["words", *map(str, Level)]
    assert in_bash("ckpt verify 'a b' --level 'st", "st") == ["words", "structure"]
    assert in_bash('ckpt verify "x') == ["files"]
    assert in_bash("ckpt explain crc-\\m", "crc-\\m") == ["words", "crc-mismatch"]


def test_nobody_else_is_answered() -> None:
    assert candidates.answer({candidates.VARIABLE: "complete_bash"}, [""]) is None
    assert candidates.answer({}, [""]) is None


LOOK = """
import os, sys
leave = os._exit
def told(code):
    print(*sorted(sys.modules), file=sys.stderr, flush=True)
    leave(code)
os._exit = told
from ckpt_tools.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["verify", "--level", ""], ["explain", ""], ["ls", str(FIXTURES / "demo"), "--max-step", ""]]
)
def test_an_answer_imports_next_to_nothing(words: list[str]) -> None:
    """Python's own start apart, which is most of the 30 ms that an answer takes."""
    env = {**CLEAN, candidates.VARIABLE: "zsh"}
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *words], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("words\n") and done.stdout.count("\n") > 2
    more = set(done.stderr.split()) - set(bare.stdout.split())
    assert not more & {
        "typer",
        "click",
        "rich",
        "inspect",
        "dataclasses",
        "json",
        "subprocess",
        "threading",
        "pathlib",
    }
    assert len(more) < 40, sorted(more)
    assert {m for m in more if m.startswith("ckpt_tools")} <= {
        "ckpt_tools", "ckpt_tools.cli", "ckpt_tools.cli.signals", "ckpt_tools.cli.candidates", "ckpt_tools.cli.candidates.live",
        "ckpt_tools.cli.candidates.quoting", "ckpt_tools.output", "ckpt_tools.output.words",
    }  # fmt: skip


TREES = sorted((FIXTURES / "layouts").glob("*/*/tree"))


@pytest.mark.exhaustive
def test_no_name_leads_to_a_step_or_a_run_that_is_not_there() -> None:
    """Beside what ``ckpt ls`` knows of the real trees of all layouts."""
    told = 0
    for tree in TREES:
        found = live.names(str(tree), 60.0)
        there = scan(str(tree)).checkpoints
        runs = {name for c in there for name in (c.run, c.run.rpartition("/")[2], c.parts[0].base)}
        assert {int(step) for step in found.steps} <= {c.step for c in there}, tree
        assert set(found.runs) <= runs, tree
        told += bool(found.steps)
    assert told > len(TREES) / 3


@pytest.mark.slow
def test_a_file_system_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    stuck = tmp_path / "run" / "zz"
    stuck.mkdir()
    env = {**CLEAN, candidates.VARIABLE: "zsh", "LD_PRELOAD": str(hanging.library(tmp_path))}
    env |= {"HANG_CALL": "opendir", "HANG_PATH": str(stuck)}
    words = [sys.executable, "-m", "ckpt_tools", "ls", str(root), "--max-step", ""]
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=60, check=False
    )  # else for ever
    assert (done.returncode, done.stdout) == (0, "words\n20\t\n10\t\n")


def test_a_large_tree_is_not_seen_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "ENTRIES", 5)
    for n in range(20):
        (tmp_path / f"step_{n}").mkdir()
    assert len(live.names(str(tmp_path), 60.0).steps) == 5


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    for name in HOSTILE:
        os.makedirs(tmp_path / "home" / "runs" / name / "step_7")
    return tmp_path / "home"


@pytest.fixture(params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, hostile: Path) -> Iterator[shells.Shell]:
    started = shells.Shell(request.param, hostile, shells.with_ckpt(hostile.parent / "bin"))
    yield started
    started.close()


@pytest.mark.slow
def test_a_real_shell(shell: shells.Shell, hostile: Path) -> None:
    """One shell for all of it: starting one takes longer than a Tab."""
    assert shell.completed("ckpt exp\t crc-m\t") == [b"explain", b"crc-mismatch"]
    assert shell.completed("ckpt verify --lev\tst\t") == [b"verify", b"--level", b"structure"]
    assert shell.completed("ckpt verify --level=st\t") == [b"verify", b"--level=structure"]
    assert shell.completed("ckpt ls runs --max-step \t") == [b"ls", b"runs", b"--max-step", b"7"]
    assert shell.completed("ckpt hook ins\tkubef\t") == [b"hook", b"install", b"kubeflow"]
    (hostile / "my save").mkdir()
    assert shell.completed("ckpt verify my\t")[1].rstrip(b"/") == b"my save"
    assert shell.completed("ckpt plan --plan-dir my\t")[2].rstrip(b"/") == b"my save"
    assert shell.completed("ckpt run runs -- my-tr\t my\t")[2:4] == [b"--", b"my-trainer"]
    said = shell.completed(f"ckpt ls runs --run {shells.ALL}")
    assert sorted(said[3:]) == sorted(map(os.fsencode, HOSTILE))
    assert not list(hostile.glob("**/ran"))


@pytest.mark.slow
def test_fish(hostile: Path) -> None:
    env = shells.with_ckpt(hostile.parent / "bin")
    assert shells.fish(hostile, env, "ckpt expl") == [
        "explain\tSay what a finding or a rule means, and what to do about it."
    ]
    assert shells.fish(hostile, env, "ckpt verify --level ") == sorted(map(str, Level))
    assert shells.fish(hostile, env, "ckpt verify --level=st") == ["--level=structure"]
    assert shells.fish(hostile, env, "ckpt ls runs --max-step ") == ["7"]
    (hostile / "my save").mkdir()
    assert [line.partition("\t")[0] for line in shells.fish(hostile, env, "ckpt verify m")] == ["my save/"]
    assert [line.partition("\t")[0] for line in shells.fish(hostile, env, "ckpt plan --plan-dir m")] == [
        "my save/"
    ]
    assert "my-trainer" in [w.partition("\t")[0] for w in shells.fish(hostile, env, "ckpt run runs -- my-tr")]
    plain = {name for name in HOSTILE if name.isprintable()}
    assert len(plain) > 5
    assert set(shells.fish(hostile, env, "ckpt ls runs --run ")) == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("bash", ".local/share/bash-completion/completions/ckpt"),
        ("zsh", ".zfunc/_ckpt"),
        ("fish", ".config/fish/completions/ckpt.fish"),
    ],
)
def test_it_installs_itself(tmp_path: Path, name: str, place: str) -> None:
    env = {
        "SHELL": f"/usr/bin/{name}",
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": "",
        "XDG_CONFIG_HOME": "",
        "ZDOTDIR": "",
    }
    done = ckpt("--install-completion", env=env)
    assert (done.returncode, done.stderr) == (0, "") and str(tmp_path / place) in done.stdout
    assert (
        (tmp_path / place).read_text()
        == ckpt("completion", name).stdout
        == ckpt("--show-completion", env=env).stdout
    )
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / place]


@pytest.mark.slow
def test_it_says_why_it_cannot_install_itself(tmp_path: Path) -> None:
    assert ckpt("--install-completion", env={"SHELL": "/bin/dash"}).returncode == 2
    (tmp_path / ".zfunc").write_text("a file")
    done = ckpt("--install-completion", env={"SHELL": "zsh", "HOME": str(tmp_path), "ZDOTDIR": ""})
    assert done.returncode == 5 and "ckpt completion zsh" in done.stderr


@pytest.mark.slow
def test_the_script_of_bash_is_clean() -> None:
    done = subprocess.run(
        [BIN / "shellcheck", "-s", "bash", PACKAGE / "cli/candidates/ckpt.bash"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stdout, done.stdout
