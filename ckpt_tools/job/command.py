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
from ckpt_tools.output.shell import explain_silence, fill_arguments, words

_OURS = ("PYTHONSAFEPATH",)
"""What is set for ckpt alone: with it a training script would not find the modules beside it."""
_FIELD = re.compile(r"\{ckpt\.(\w+)\}")
_PATH_WORD = re.compile(r"[^\s'\"();|&$]*\{ckpt\.path\}[^\s'\"();|&$]*")
"""An argument that holds the path; a whole line of a script is none."""


def inherit(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in _OURS}


def arguments(decision: Decision, rank: int | None, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the words of {ckpt.args}: those that --resume-args ``wanted``, else those of the layout."""
    if not decision.found:
        return ()
    if not wanted:
        return decision.resume.args or ()
    epoch = decision.said.checkpoint.epoch if decision.said.checkpoint else None
    known = {"path": decision.path_of(rank), "step": decision.step, "epoch": epoch}
    return fill_arguments(wanted, known, decision.links(rank))


def is_told(command: Sequence[str], decision: Decision, rank: int | None, wanted: Sequence[str] = ()) -> bool:
    """Return whether a placeholder or a variable tells the command which checkpoint was chosen."""
    args = arguments(decision, rank, wanted)
    held = {name for word in command for name in _FIELD.findall(word)}
    if not decision.found or "path" in held:
        return True
    if held:
        return bool("args" in held and args) or ("step" in held and decision.step is not None)
    if wanted:  # its words lie in CKPT_ARGS, which a script reads, or a command that names it
        return bool(args) and (not command or any("CKPT_" in word for word in command))
    return bool(args or decision.path_of(rank) or decision.resume.env)


def explain_untold(decision: Decision, rank: int | None, wanted: Sequence[str] = ()) -> str:
    layout = decision.said.checkpoint.layout if decision.said.checkpoint else ""
    return explain_silence(layout, decision.path_of(rank), wanted, arguments(decision, rank, wanted))


def environment(decision: Decision, rank: int | None, wanted: Sequence[str] = ()) -> dict[str, str]:
    """The variables of one process: of a worker when its rank is known, else of the whole job.

    Every start sets all of them; what is unknown is empty, so that no value of an outer shell shines through.
    CKPT_ARGS are the words of {ckpt.args}, quoted for a shell's eval; CKPT_RESUME_ARGS are for what reads the
    decision later.
    """
    chosen = decision.said.checkpoint
    told: dict[str, object] = {
        "CKPT_PATH": decision.path_of(rank),
        "CKPT_STEP": decision.step,
        "CKPT_EPOCH": chosen and chosen.epoch,
        "CKPT_STEP_IN_EPOCH": chosen and chosen.step_in_epoch,
        "CKPT_PLAN": decision.path,
        "CKPT_RESUME": 1 if chosen else 0,
        "CKPT_ARGS": words(arguments(decision, rank, wanted)),
        "CKPT_FINGERPRINT": decision.said.fingerprint,
    }
    if wanted:
        told["CKPT_RESUME_ARGS"] = words(wanted)
    if chosen:
        told |= decision.resume.env or {}
    return {name: "" if value is None else str(value) for name, value in told.items()}


def fill_command(
    command: Sequence[str], decision: Decision, rank: int | None, wanted: Sequence[str] = ()
) -> list[str]:
    """The command with ``{ckpt.path}``, ``{ckpt.step}`` and ``{ckpt.args}`` replaced; the last one is a word
    of its own and becomes as many as there are.

    Without a checkpoint ``{ckpt.args}`` vanishes, and so does a word with ``{ckpt.path}`` and the flag before
    it; what is left is empty. Raises UsageError for an unknown name, and for a path where each rank has
    another.
    """
    path, step = decision.path_of(rank), decision.step
    known = {"path": path, "step": step}
    out: list[str] = []
    for word in command:
        if word == "{ckpt.args}":
            out += arguments(decision, rank, wanted)
            continue
        for name in _FIELD.findall(word):
            if name == "args":
                raise UsageError(
                    f"{word!r}: {{ckpt.args}} stands for several words", "write it as a word of its own"
                )
            if name not in ("path", "step"):
                raise UsageError(
                    f"{word!r}: there is no {{ckpt.{name}}}", "use {ckpt.path}, {ckpt.step} or {ckpt.args}"
                )
            if name == "path" and path is None and decision.found:
                raise UsageError(
                    f"{word!r}: the ranks load different files, so there is no one path",
                    "start each rank with 'ckpt run --worker', or build one tree for all with --view DIR",
                )
        if not decision.found and _PATH_WORD.fullmatch(word):
            if not word.startswith("-") and re.fullmatch("--?[^-=][^=]*", out[-1] if out else ""):
                del out[-1]
            continue
        out.append(_FIELD.sub(lambda m: "" if known[m[1]] is None else str(known[m[1]]), word))
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
