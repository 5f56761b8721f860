"""Mistakes in a command line: each is said in ckpt's own words, with the next step."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from run_helpers import megatron

from ckpt_tools.cli import app, dispatch, options
from ckpt_tools.cli.app import COMMANDS


def flags(command: str) -> dict[str, Any]:
    """Its long flags, and what typer knows of each."""
    return {name: p for p in app.command(command).params for name in p.opts if name.startswith("--")}


def said(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = dispatch.execute(argv)
    return code, capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_one_dash_in_place_of_two_names_the_flag(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    known = flags(command)
    for flag in known:
        code, err = said(capfd, *command.split(), flag[1:], "x")
        if "there is no flag" in err:  # -j and -o are flags with a value of their own
            assert code == 2 and f"did you mean {flag}?" in err, (flag, err)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_without_its_value_is_named_with_its_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for flag, param in flags(command).items():
        if not param.is_flag:
            code, err = said(capfd, *command.split(), flag)
            assert code == 2 and f"{flag} needs a value" in err and f"'ckpt {command} -h'" in err, (flag, err)


@pytest.mark.parametrize("word", ["step", "steps", "rank", "world", "groups", "ranks", "interval", "cache"])
def test_a_word_of_a_flag_is_enough_to_name_it(
    word: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, err = said(capfd, "plan", str(tmp_path), f"--{word}", "3")
    assert "no flag" not in err or word.rstrip("s") in err.partition("did you mean ")[2], err


@pytest.mark.parametrize(
    "words",
    ["python train.py", "python train.py --lr 3", "torchrun --nproc_per_node 2 train.py", "sh -c true", "python", "",
     "-- ''", "--"],
)  # fmt: skip
def test_run_without_a_command_after_dashes_says_where_it_goes(
    root: Path, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, err = said(capfd, "run", str(root), "--plan-dir", str(tmp_path / "plans"), *shlex.split(words))
    assert code == 2 and "after --: ckpt run ROOT -- " in err, err
    assert not (tmp_path / "plans").exists(), "nothing was decided for a job that cannot start"


def test_what_run_cannot_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A command that vanishes is no bug; a word before the dashes may be a flag's value, or a second ROOT."""
    (tmp_path / "run").mkdir()
    words = ("--plan-dir", str(tmp_path / "plans"), "--allow=none", "--", "{ckpt.args}")
    code, err = said(capfd, "run", str(tmp_path / "run"), *words)
    assert code == 2 and "after --" in err, err
    code, err = said(capfd, "run", str(tmp_path), "--json", "--", "true")
    assert code == 2 and "ckpt plan --json" in err and "$CKPT_PLAN" in err, err
    code, err = said(capfd, "run", "a", "b", "--", "echo")
    begin = "ckpt: error: there are more words before -- than 'ckpt run' takes: b\nhint: "
    assert code == 2 and err.startswith(begin)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("verify RUN --all", "verify RUN --verbose"),
        ("verify RUN --fail-on warning", "verify RUN --strict"),
        ("explain truncated --format json", "explain truncated --json"),
        ("verify RUN --color never", "verify RUN"),
        ("seal RUN --dry-run --also md5,sha1", "seal RUN --dry-run --digest xxh3,md5,sha1"),
        ("prune RUN --keep-checkpoint-max 1", "prune RUN --keep 1"),
        ("prune RUN --keep-checkpoint-per-n-minutes 1 --max-total 1", "prune RUN --keep minutes=1,total=1"),
        ("prune RUN --keep-last 1 --keep-hourly 2", "prune RUN --keep 1 --keep hourly=2"),
        ("prune RUN --keep-within 5d --keep-kind periodic", "prune RUN --keep within=5d,kind=periodic"),
        ("prune RUN --keep-every 10 --keep-daily 1", "prune RUN --keep every=10,daily=1"),
        ("prune RUN --keep-weekly 1 --keep-per-minutes 2", "prune RUN --keep weekly=1,minutes=2"),
        ("pin RUN/iter_0000010 --remove", "pin RUN/iter_0000010 --undo"),
        ("quarantine RUN/iter_0000010 --restore", "quarantine RUN/iter_0000010 --undo"),
        ("watch RUN --hook-timeout never", "watch RUN --timeout never"),
        ("plan RUN --no-cache --same-save x", "plan RUN --no-cache"),
        ("plan RUN --no-cache --explain", "plan RUN --no-cache -v"),
        ("plan RUN --no-cache --tp 2 --rank-order tp-dp", "plan RUN --no-cache --parallel tp=2,order=tp-dp"),
        ("plan RUN --no-cache --resume-from tracker", "plan RUN --no-cache --order tracker"),
        ("plan RUN --no-cache --replicas all", "plan RUN --no-cache --replica-groups all"),
        ("plan RUN/no --allow-none --allow-missing", "plan RUN/no --allow none,missing"),
        ("plan RUN/none/no --allow-fresh", "plan RUN/none/no --allow fresh"),
        ("verify RUN --trust-group --trust-owner 7", "verify RUN --trust group --trust owner=7"),
        ("verify RUN --max-duration 1h", "verify RUN --budget 1h"),
        ("ls RUN --prefix none", "ls RUN --run none"),
        ("plan RUN --no-cache --prove-replicas", "plan RUN --no-cache"),
    ],
)
def test_a_flag_that_goes_does_what_it_did_and_says_what_to_use(
    line: str, instead: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root, answers = megatron(tmp_path / "run"), []
    for said in (line, instead):
        code = dispatch.execute([word.replace("RUN", str(root)) for word in said.split()])
        out, err = capfd.readouterr()
        answers.append((code, re.sub(r" in [0-9.]+ s( \([^)]*\))?", "", out)))
        assert ("is accepted until the next release" in err) == (said == line), err
    assert answers[0] == answers[1]


def test_what_goes_is_no_flag_of_the_help() -> None:
    shown = {p.name for name in COMMANDS for p in app.command(name).params if not p.hidden}
    assert not shown & options.GOING.keys()
