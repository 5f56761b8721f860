"""The command that a job starts with: what a decision puts into its words and its environment, and becoming
it.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ckpt_tools.errors import UsageError
from ckpt_tools.job.decision import Decision
from ckpt_tools.output.shell import words

_OURS = ("PYTHONSAFEPATH",)
"""What is set for ckpt alone: with it a training script would not find the modules beside it."""
_FIELD = re.compile(r"\{ckpt\.(\w+)\}")


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    """What a command gets of the environment that ckpt was started with."""
    return {name: value for name, value in env.items() if name not in _OURS}


def environment(decision: Decision, rank: int | None) -> dict[str, str]:
    """The variables of one process: of a worker when its rank is known, else of the whole job.

    Every start sets all of them; what is unknown is empty, so that no value of an outer shell shines through.
    CKPT_ARGS are the words of {ckpt.args}, quoted for a shell's eval.
    """
    checkpoint, resume = decision.body.get("checkpoint") or {}, decision.body.get("resume") or {}
    told: dict[str, object] = {
        "CKPT_PATH": decision.path_of(rank),
        "CKPT_STEP": decision.step,
        "CKPT_EPOCH": checkpoint.get("epoch"),
        "CKPT_STEP_IN_EPOCH": checkpoint.get("step_in_epoch"),
        "CKPT_PLAN": decision.path,
        "CKPT_RESUME": 1 if decision.found else 0,
        "CKPT_ARGS": words(resume.get("args") or ()) if decision.found else None,
        "CKPT_FINGERPRINT": decision.body.get("fingerprint"),
    }
    if decision.found:
        told |= {
            name: value
            for name, value in (resume.get("env") or {}).items()
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        }
    return {name: "" if value is None else str(value) for name, value in told.items()}


def substituted(command: Sequence[str], decision: Decision, rank: int | None) -> list[str]:
    """The command with ``{ckpt.path}``, ``{ckpt.step}`` and ``{ckpt.args}`` replaced; the last one is a word
    of its own and becomes as many as there are.

    Without a checkpoint they are empty, and ``{ckpt.args}`` vanishes. Raises UsageError for an unknown name,
    and for a path where each rank has another.
    """
    path, step = decision.path_of(rank), decision.step
    args = list((decision.body.get("resume") or {}).get("args") or ()) if decision.found else []
    out: list[str] = []
    for word in command:
        if word == "{ckpt.args}":
            out += args
            continue
        for name in _FIELD.findall(word):
            if name == "args":
                raise UsageError(
                    f"{word!r}: {{ckpt.args}} stands for several words", "write it as a word of its own"
                )
            if name not in ("path", "step"):
                raise UsageError(
                    f"{word!r}: there is no {{ckpt.{name}}}", "say {ckpt.path}, {ckpt.step} or {ckpt.args}"
                )
            if name == "path" and path is None and decision.found:
                raise UsageError(
                    f"{word!r}: the ranks load different files, so there is no one path",
                    "start each rank with 'ckpt run --worker', or build one tree for all with --view DIR",
                )
        out.append(
            _FIELD.sub(
                lambda m: str(
                    {"path": path, "step": step}[m[1]]
                    if {"path": path, "step": step}[m[1]] is not None
                    else ""
                ),
                word,
            )
        )
    return out


def become(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command: its signals and its exit code are then its own. Raises OSError
    when it cannot be started.
    """
    # Python ignores these two, and what is ignored stays so across exec.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execvpe(command[0], list(command), dict(env))  # noqa: S606 - starting the user's command is what this is for
    finally:  # it could not be started
        for number, handler in before.items():
            signal.signal(number, handler)
