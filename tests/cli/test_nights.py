"""What a tired person reads on nights on which a job did not resume, and of mistakes in a command line: the cause, then
what to do, and nothing that does not work when it is pasted.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from in_process import executed
from nights import NIGHTS, RANK_1, RUN, Night
from one_question import Asker
from run_helpers import CKPT, CLEAN, ckpt, megatron
from small_runs import empty

from ckpt_tools.cli import app, options
from ckpt_tools.cli.app import COMMANDS, parameters
from ckpt_tools.errors import BY_EXIT_CODE
from ckpt_tools.findings import CODES
from ckpt_tools.output.words import wrap_line

SAYS: dict[str, dict[str, tuple[int, Sequence[str]]]] = {
    "truncated": {
        "verify": (1, ("broken: 1 of 6 files", "iter_0000030/mp_rank_01/model_optim_rng.pt at byte 700", "restore this file from a backup")),
        "plan": (0, ("Resume from step 20", "Step 30 was skipped: rank 1 has no good copy", "rank 1 has no good model file")),
        "latest": (0, ("step 30 was skipped (", f"iter_0000030/{RANK_1}: truncated",)),
    },
    "torn": {
        "plan": (4, ("2 checkpoints exist, none is usable", "step 300 lacks ranks 1–3; step 200 lacks rank 0", "bring the files of these ranks back")),
    },
    "gone": {
        "plan": (0, ("Resume from step 20", "Step 30 was skipped: it is gone", "Skipped: step 30 (gone)", "it was removed or moved")),
        "verify": (0, ("it names 30, which is not there", "start it with the arguments that 'ckpt plan' gives")),
    },
    "dying-gasp": {
        "plan": (0, ("Resume from step 20", "5 steps of training are lost", "rollback: from step 25 to 20 (save interval 10)", "ranks 1, 3 (2 of 4) have no")),
    },
    "unmounted": {
        "verify": (5, ("mnt is empty: check that its file system is mounted",)),
        "plan": (5, ("does not exist", "mnt is empty: check that its file system is mounted", "before a first launch create it once by hand: mkdir ")),
    },
    "first": {"plan": (3, ("there is no checkpoint in", "for a first launch add --allow none"))},
    "misspelt": {"ls": (5, ("llama-7b does not exist", f"did you mean {RUN}-run?")), "plan": (5, ("did you mean",))},
    "refused": {
        "plan": (5, ("model_optim_rng.pt: Permission denied", "make it readable, then run this again")),
        "verify": (5, ("unknown: 1 of 6 files", "Permission denied", "make it readable for the user that runs ckpt")),
    },
    "full": {
        "ls": (0, ("periodic, unfinished",)),
        "verify": (1, ("none of the saves here (2) is whole", "step-10/__0_0.distcp and 6 more")),
        "plan": (2, ("none of 2 saves is whole", "to start from nothing anyway add --allow fresh")),
    },
    "flipped": {
        "verify": (1, ("broken: 1 of 18 files", "not those that were sealed")),
        "plan": (0, ("Resume from step 15", "Skipped: step 20", "checkpoint-20/model.safetensors")),
    },
    "smaller": {"plan": (2, ("saved by 2 ranks, to be loaded by 8", "start with the saved world size"))},
    "unknown-code": {
        "plan": (2, ("mycompany.models.Config, which ckpt does not know", "--trust global='mycompany.*'", "--exclude epoch=1-step=16.ckpt")),
    },
    "pointers": {
        "verify": (1, ("broken: 8 of 16 files", "it is a Git LFS pointer for 4,976,698,672 bytes, not the data", "hint: git lfs pull --include ")),
        "plan": (4, ("2 checkpoints exist, none is usable", "git lfs pull --include model.safetensors; 'ckpt verify ")),
    },
}  # fmt: skip
"""Of each night, by command: the exit code, and phrases in the order in which they are read."""
THEN: dict[str, tuple[str, int, str]] = {
    "full": ("--allow=fresh", 0, "training starts from scratch"), "first": ("--allow=none", 0, "training starts from scratch"),
    "refused": ("--allow=unreadable", 0, "Resume from step 20"),
    "unknown-code": ("--trust global='mycompany.*'", 0, "Resume from step 16"),
}  # fmt: skip
"""What ``plan`` says once the flags are added that it named."""


def asked(night: Night, at: Path, command: str, *more: str) -> tuple[int, str]:
    """(exit code, all that is read) of a command about the tree of a night."""
    root = f"mnt/{RUN}" if night.name == "unmounted" else RUN
    words = [command, root, *(("--rank", "0") if command == "latest" else ())]
    words += [*(night.plan if command in ("plan", "latest") else ()), *more]
    if night.fault is None:
        done = ckpt(*words, cwd=at)
    else:
        env = {**CLEAN, **night.fault(at).environment(at / "notes")}
        done = subprocess.run([*CKPT, *words], capture_output=True, text=True, env=env, cwd=at)
    return done.returncode, " ".join((done.stderr + done.stdout).split())


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("night", NIGHTS, ids=lambda night: night.name)
def test_it_says_why_and_then_what_to_do(night: Night, tmp_path: Path) -> None:
    night.tree(tmp_path)
    for command, (code, phrases) in SAYS[night.name].items():
        ended, text = asked(night, tmp_path, command)
        assert ended == code, text
        at = 0
        for phrase in phrases:
            assert phrase in text[at:], f"{phrase!r} is not in {text[at:]}"
            at = text.index(phrase, at)
        for hint in set(re.findall(r"hint[^:]*: (.*?)(?= hint|$)", text)):
            assert text.count(hint) == 1, "nothing is said twice"
        follow(text, tmp_path)
    if night.name in THEN:
        flags, code, says = THEN[night.name]
        ended, text = asked(night, tmp_path, "plan", *shlex.split(flags))
        assert ended == code and says in text, text


def follow(text: str, at: Path) -> None:
    """Run each command about a path that was named; it is understood, and finds what it is about."""
    for line in re.findall(r"'(ckpt (?:ls|verify|plan|show) /[^']*)'|(mkdir /\S+)", text):
        words = shlex.split("".join(line))
        if words[0] == "mkdir":
            assert subprocess.run(words, cwd=at).returncode == 0
        else:
            assert ckpt(*words[1:], cwd=at).returncode in (0, 1, 3), words
    for meant in re.findall(r"did you mean (\S+)\?", text):
        assert ckpt("plan", meant, cwd=at).returncode == 0


@pytest.mark.parametrize("width", range(40, 100, 7))
def test_what_is_pasted_is_never_broken(width: int) -> None:
    pasted = (
        "'ckpt verify /data/runs/a run of ours/llama'", "mkdir -p /data/runs/llama", "--trust global='mine.*'",
        "git lfs pull --include model-00001-of-00002.safetensors", "'ckpt ls --tree /data/x'",
    )  # fmt: skip
    lines = wrap_line(f"say {' or, once all is there, '.join(pasted)} and go on", width, rest="  ")
    assert all(any(command in line for line in lines) for command in pasted)
    assert all(len(line) <= width or line.strip() in (*pasted, *(f"{p}," for p in pasted)) for line in lines)


HINTS = [c.hint for c in CODES.values()] + [e.hint for e in BY_EXIT_CODE.values()]
PASTED = sorted({words for hint in HINTS for words in re.findall(r"'ckpt ([^']*)'", hint)})


@pytest.mark.parametrize("line", PASTED)
def test_a_command_that_a_hint_names_exists(line: str) -> None:
    first, *words = line.split()
    if not first.startswith("-"):
        assert words[:1] != ["install"]
        needs = {"seal": 1, "verify": 1, "diff": 2}.get(first, 0)
        given = [word for word in words if not word.startswith("-")]
        parameters(first, [*words, *["PATH"] * max(0, needs - len(given))])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("verfy x", "did you mean 'ckpt verify'?"), ("plan . --jsno", "--json"),
        ("plan . --format jsn", "did you mean json?"), ("verify . --level contnt", "did you mean content?"),
        ("explain trunkated", "did you mean 'truncated'?"), ("formats torchzip", "did you mean 'torch_zip'?"),
        ("layouts megatorn", "did you mean 'megatron'?"),
        ("completion bsh", "did you mean 'bash'?"), ("verify . --format html", "'ckpt report ROOT"),
    ],
)  # fmt: skip
def test_what_was_meant_is_asked(line: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "run-7").mkdir()
    done = ckpt(*line.split(), cwd=tmp_path)
    assert done.returncode in (2, 5) and says in done.stderr, done.stderr
    assert "Usage:" not in done.stderr and done.stderr.startswith("ckpt: error: ")


def flags(command: str) -> dict[str, Any]:
    """Its long flags, and what typer knows of each."""
    return {name: p for p in app.command(command).params for name in p.opts if name.startswith("--")}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_without_its_value_is_named_with_its_command(command: str, asker: Asker) -> None:
    for flag, param in flags(command).items():
        if not param.is_flag:
            code, _, err = asker.execute(*command.split(), flag)
            assert code == 2 and f"'{flag}' requires an argument" in err and f"'ckpt {command} -h'" in err, (
                flag,
                err,
            )


@pytest.mark.parametrize("word", ["step", "steps", "rank", "world", "groups", "ranks", "interval", "cache"])
def test_a_word_of_a_flag_is_enough(word: str, tmp_path: Path) -> None:
    err = executed(["plan", str(tmp_path), f"--{word}", "3"])[2]
    assert "No such option" not in err or word.rstrip("s") in err.partition("Possible options")[2], err


@pytest.mark.parametrize(
    "words",
    ["python train.py --lr 3", "torchrun --nproc_per_node 2 train.py", "sh -c true", "", "-- ''", "--"],
)
def test_run_without_a_command_after_dashes_says_where_it_goes(root: Path, plans: Path, words: str) -> None:
    code, _, err = executed(["run", str(root), "--plan-dir", str(plans), *shlex.split(words)])
    assert code == 2 and "after --: ckpt run ROOT -- " in err, err
    assert not plans.exists(), "nothing was decided for a job that cannot start"


def test_what_run_cannot_start(tmp_path: Path, plans: Path) -> None:
    """A command that vanishes is no bug; a word before the dashes may be a flag's value, or a second ROOT."""
    root = str(empty(tmp_path))
    code, _, err = executed(["run", root, "--plan-dir", str(plans), "--allow=none", "--", "{ckpt.args}"])
    assert code == 2 and "after --" in err, err
    code, _, err = executed(["run", root, "--json", "--", "true"])
    assert code == 2 and "ckpt plan --json" in err and "$CKPT_PLAN" in err, err
    code, _, err = executed(["run", "a", "b", "--", "echo"])
    assert code == 2 and "more words before -- than 'ckpt run' takes: b\nhint: " in err


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("verify RUN --all", "verify RUN --verbose"), ("verify RUN --fail-on warning", "verify RUN --strict"),
        ("explain truncated --format json", "explain truncated --json"), ("verify RUN --color never", "verify RUN"),
        ("seal RUN --dry-run --also md5,sha1", "seal RUN --dry-run --digest xxh3,md5,sha1"),
        ("prune RUN --keep-checkpoint-max 1", "prune RUN --keep 1"),
        ("prune RUN --keep-last 1 --max-total 1", "prune RUN --keep last=1,total=1"),
        ("prune RUN --keep-last 1 --keep-hourly 2", "prune RUN --keep 1 --keep hourly=2"),
        ("prune RUN --keep-within 5d --keep-kind periodic", "prune RUN --keep within=5d,kind=periodic"),
        ("prune RUN --keep-every 10 --keep-daily 1", "prune RUN --keep every=10,daily=1"),
        ("prune RUN --keep-weekly 1 --keep-within 2d", "prune RUN --keep weekly=1,within=2d"),
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
        ("verify RUN --max-duration 1h", "verify RUN --budget 1h"), ("ls RUN --prefix none", "ls RUN --run none"),
        ("plan RUN --no-cache --prove-replicas", "plan RUN --no-cache"),
    ],
)  # fmt: skip
def test_a_flag_that_goes_does_what_it_did_and_says_what_to_use(
    line: str, instead: str, tmp_path: Path
) -> None:
    root, answers = megatron(tmp_path / "run"), []
    for said in (line, instead):
        code, out, err = executed([word.replace("RUN", str(root)) for word in said.split()])
        answers.append((code, re.sub(r" in [0-9.]+ s( \([^)]*\))?", "", out)))
        assert ("is accepted until the next release" in err) == (said == line), err
    assert answers[0] == answers[1]


def test_what_goes_is_no_flag_of_the_help() -> None:
    shown = {p.name for name in COMMANDS for p in app.command(name).params if not p.hidden}
    assert not shown & options.GOING.keys()
