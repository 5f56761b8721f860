"""``CKPT_ARGS``: the words of a plan come back from any shell as they were, whatever is in a path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import sample_results as sample
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from one_question import Asker
from run_helpers import OLD, SAY, ckpt, megatron

from ckpt_tools.model.plan import Resume
from ckpt_tools.output import shell

pytestmark = pytest.mark.slow

SHELLS = [name for name in ("dash", "bash", "zsh", "ksh", "busybox") if shutil.which(name)]
HOSTILE = (
    "a b", "it's", 'say "x"', "$HOME `id` $(id)", "new\nline\n", "\\", "*", "", "-n", "--", "~", "!x", "\udcff\udc80", "\u202e", "a;b|c&d", "\t", "[x]{a,b}", "#c", "=ls", "\x1b[2J",
)  # fmt: skip


def words_of(name: str, text: str, script: str) -> list[bytes]:
    """What a shell makes of the line that a plan prints."""
    command = [name, *(["sh"] if name == "busybox" else []), "-c", f"{text}{script}"]
    done = subprocess.run([os.fsencode(word) for word in command], capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout.split(b"\0")[:-1]


def line(args: tuple[str, ...]) -> str:
    return shell.render(replace(sample.plan(), resume=Resume("/x", args)))


SET = 'eval "set -- $CKPT_ARGS"; [ $# = 0 ] || printf \'%s\\0\' "$@"\n'
ARRAY = 'eval "args=($CKPT_ARGS)"; [ ${#args[@]} = 0 ] || printf \'%s\\0\' "${args[@]}"\n'


@pytest.mark.parametrize("name", SHELLS)
def test_every_shell_gives_the_words_back(name: str) -> None:
    assert {"dash", "bash"} <= set(SHELLS)
    for args in (HOSTILE, ("--load", "/a b", "--ckpt-step", "10"), ()):
        for script in (SET, *([ARRAY] if name in ("bash", "zsh", "ksh") else [])):
            assert words_of(name, line(args), script) == [os.fsencode(a) for a in args]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8), max_size=4))
@settings(max_examples=25)
def test_any_words(args: list[str]) -> None:
    assert words_of("dash", line(tuple(args)), SET) == [a.encode() for a in args]


def test_run_hook_plan_and_latest_say_the_same(tmp_path: Path) -> None:
    root = megatron(tmp_path / "it's\n$HOME *")
    state = ["--plan-dir", tmp_path / "plans"]
    words, told = json.loads(ckpt("run", root, *state, "--", *SAY, "{ckpt.args}").stdout)
    assert words == ["--load", str(root), "--ckpt-step", "20"]
    expected = [word.encode() for word in words]
    assert words_of("dash", "", f"CKPT_ARGS={shell.words([told['CKPT_ARGS']])}; {SET}") == expected
    for command in (
        ["hook", root, *state],
        ["plan", root, "--format", "shell"],
        ["latest", root, "--rank", "0", "--format", "shell"],
    ):
        done = ckpt(*command)
        assert done.returncode == 0 and words_of("dash", done.stdout, SET) == expected, command


def test_a_view_is_what_the_arguments_name(root: Path, tmp_path: Path) -> None:
    done = ckpt("hook", root, "--plan-dir", tmp_path / "plans", "--job", "j", "--view", tmp_path / "my view")
    assert words_of("dash", done.stdout, SET)[1] == os.fsencode(tmp_path / "my view")


def test_warnings_may_fail_in_every_format_and_the_answer_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asker = Asker(monkeypatch, capfd, tmp_path / "state")
    root = megatron(tmp_path / "run")
    (root / "latest_checkpointed_iteration.txt").write_text("10")
    os.utime(root / "latest_checkpointed_iteration.txt", (OLD, OLD))  # of the save before, not of one later
    for name in ("shell", "json", "csv"):
        line = ("plan", root, "--no-cache", "--format", name)
        plain, failing = (asker.execute(*line, *more) for more in ((), ("--fail-on", "warning")))
        assert (plain[0], failing[0]) == (0, 1) and plain[1] == failing[1]
