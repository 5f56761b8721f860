"""A ROOT that does not exist is never "none": exit 5 in every command and in the API, whatever else allows a
first launch.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from places import DOCS, ROOT

import ckpt_tools
from ckpt_tools import Selection, errors
from ckpt_tools.cli import execute
from ckpt_tools.discovery.walk import absent

STARTED = f"-- {sys.executable} -c 'raise SystemExit(99)'"
ASK = (
    "ls", "verify", "show", "diff", "layouts --check --layout megatron", "layouts --guess",
    *(f"{command} --allow=none" for command in ("latest", "plan", "hook", "hook --allow fresh")),
    f"run --allow=none {STARTED}",
    f"run --agree --allow=none --nodes 1 --node 0 --world-size 1 --job j --plan-dir plans {STARTED}",
)  # fmt: skip
TYPOS = ("one letter", "the directory above", "below", "below a file", "a link to nothing", "a space")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [n for n in os.environ if n.startswith("CKPT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()


def typos(tmp_path: Path) -> dict[str, Path]:
    """ROOT as somebody may mistype it beside a run that is there, by what is wrong with it."""
    run = tmp_path / "runs" / "llm"
    (run / "checkpoint-1").mkdir(parents=True)
    (run / "a-file").write_text("x")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "gone")
    return {
        "one letter": tmp_path / "runs" / "lllm",
        "the directory above": tmp_path / "run" / "llm",
        "below": run / "ckpt",
        "below a file": run / "a-file" / "ckpt",
        "a link to nothing": tmp_path / "runs" / "link",
        "a space": tmp_path / "runs" / "llm ",
    }


@pytest.mark.share(2)
@pytest.mark.slow
@pytest.mark.parametrize("typo", TYPOS)
@pytest.mark.parametrize("command", ASK)
def test_every_command_ends_with_5(
    command: str, typo: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = str(typos(tmp_path)[typo])
    first, *words = shlex.split(command)
    before = sorted(tmp_path.joinpath("runs").rglob("*"))
    assert execute([first, *([root] * (1 + (first == "diff"))), *words]) == 5
    said = capfd.readouterr()
    assert said.out in ("", "(exit 5)\n") and "ckpt: error: " in said.err and "hint: " in said.err
    assert sorted(tmp_path.joinpath("runs").rglob("*")) == before


@pytest.mark.parametrize("typo", TYPOS)
def test_every_function_raises_cannot_look(typo: str, tmp_path: Path) -> None:
    root = str(typos(tmp_path)[typo])
    allowed = Selection(allow_none=True)
    asked: list[Callable[[], object]] = [
        lambda: ckpt_tools.scan(root), lambda: ckpt_tools.verify([root]), lambda: ckpt_tools.diff(root, root),
        lambda: ckpt_tools.plan(root, allowed), lambda: ckpt_tools.latest(root, allowed), lambda: ckpt_tools.plan(root, Selection(allow_missing=True)),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(errors.CannotLook):
            ask()


def test_the_hint_is_a_line_to_copy(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "run's 1"
    assert execute(["plan", str(root), "--allow=none"]) == 5
    line = capfd.readouterr().err.partition("by hand: ")[2].strip()
    subprocess.run(["sh", "-c", line], check=True)
    assert execute(["plan", str(root), "--allow=none"]) == 0
    assert execute(["plan", str(tmp_path / "no" / "such"), "--allow=missing"]) == 5
    # it would fail, or make the mount point of a file system that is gone
    assert "mkdir" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["latest", "plan", "hook", "run -- no-such-command"])
@pytest.mark.parametrize("given", ["flag", "variable"])
def test_a_first_launch_may_say_so(
    command: str,
    given: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    wrong = typos(tmp_path)
    root, (first, *more) = tmp_path / "runs" / "new", command.split()
    if given == "variable":
        monkeypatch.setenv("CKPT_ALLOW_MISSING", "1")

    def asked(root: Path, *allowed: str) -> int:
        flags = (*(["--allow=missing"] if given == "flag" else []), *allowed)
        return execute([first, str(root), *flags, *more])

    assert asked(root) == 5  # alone it allows nothing
    assert "together with --allow none" in capfd.readouterr().err
    assert asked(root, "--allow=none") == (127 if more else 0)
    said = capfd.readouterr()
    assert "missing-root" in said.err + said.out and not os.path.lexists(root)
    for typo in ("the directory above", "below a file", "a link to nothing"):  # its parent is not there
        assert asked(wrong[typo], "--allow=none") == 5


def test_absent_is_certain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ckpt"
    assert absent(str(root)) and absent(f"{root}/")
    (tmp_path / "ckpt-old").mkdir()
    assert absent(str(root))
    for name in ("ckpt_0", "ckpt7", "ckpt.index"):  # what ROOT is a prefix of
        (tmp_path / name).touch()
        assert not absent(str(root)), name
        (tmp_path / name).unlink()

    def failing(path: object) -> object:
        raise OSError(5, "Input/output error", str(path))

    for call in ("os.scandir", "os.lstat"):
        with monkeypatch.context() as patch:
            patch.setattr(call, failing)
            assert not absent(str(root))


def test_what_scripts_are_told_is_the_safe_form() -> None:
    """No ready script takes a missing ROOT for a first launch, or makes one that is missing: both would hide
    a misspelt path.
    """
    pages = (DOCS / "hooks.md", DOCS / "exit-codes.md", ROOT / "README.md")
    snippets = (ROOT / "ckpt_tools" / "cli" / "snippets").iterdir()
    scripts = {p: p.read_text() for p in snippets if p.suffix in (".sh", ".yaml")}
    scripts |= {p: "\n".join(re.findall(r"```(?:ba)?sh\n(.*?)```", p.read_text(), re.DOTALL)) for p in pages}
    assert len(scripts) > 10 and sum("--allow none" in text for text in scripts.values()) > 10
    for path, text in scripts.items():
        assert not re.search(r"allow\W+(?:none,)?missing", text.lower().replace("_", "-")), path
        assert not re.search(r"mkdir[^\n]*(\$\{?(ROOT|RUN)\b|@ROOT@)", text), path
