"""A decision as one process follows it: it fills the job's command, and becomes that command."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct

from ckpt_tools.errors import UsageError
from ckpt_tools.job.decision import Body, Decision
from ckpt_tools.model.plan import OPENED_BY_RANKS
from ckpt_tools.output.shell import explain_silence, fill_arguments, words

if TYPE_CHECKING:
    from ckpt_tools.job.staging import Staged

_FIELD = re.compile(r"\{ckpt\.(\w+)\}")
_PATH_WORD = re.compile(r"[^\s'\"();|&$]*\{ckpt\.path\}[^\s'\"();|&$]*")
"""Matches an argument that holds the path, but no line of a script."""


class ProcessDecision(Struct, frozen=True):
    """A decision as one process follows it. ``rank`` is None for a launcher, which starts all ranks.
    ``resume_args`` are the words of --resume-args; ``staged`` is the copy on this machine.
    """

    decision: Decision
    rank: int | None
    resume_args: Sequence[str] = ()
    staged: Staged | None = None

    @property
    def path(self) -> str | None:
        """The value of CKPT_PATH."""
        return self.decision.find_path(self.rank)

    @property
    def links(self) -> list[str]:
        """The paths at which this process opens its files."""
        return self.decision.links(self.rank)

    @property
    def paths(self) -> list[str]:
        """This rank's files; if all ranks open the same, the framework's one path; empty if there is none."""
        plan, resume_path = self.decision.document, self.decision.resume.path
        rank_roles = {f.role for r in plan.ranks or () for f in r.files}
        if plan.checkpoint and resume_path and plan.shared and rank_roles <= OPENED_BY_RANKS:
            path = plan.view.checkpoint if plan.view else plan.checkpoint.path
            return [path if path.startswith(f"{resume_path}/") else resume_path]
        return list(dict.fromkeys(self.links))

    @property
    def body(self) -> Body:
        """The JSON of the decision; if the rank is known, without the files of other ranks."""
        body, rank_name = dict(self.decision.body), str(self.rank)
        if self.rank is not None and body.get("ranks"):
            body["ranks"] = [r for r in body["ranks"] if r["rank"] == self.rank]
            if (view := body.get("view")) and rank_name in view["ranks"]:
                body["view"] = {**view, "ranks": {rank_name: view["ranks"][rank_name]}}
        return body

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words that replace {ckpt.args}: of --resume-args, filled in, else of the layout."""
        if not self.decision.has_checkpoint:
            return ()
        if not self.resume_args:
            return self.decision.resume.args or ()
        chosen = self.decision.document.checkpoint
        known = {"path": self.path, "step": self.decision.step, "epoch": chosen and chosen.epoch}
        return fill_arguments(self.resume_args, known, self.links)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of one process: of a worker if its rank is known, else of the whole job.

        Every start sets all of them, unknown ones to "", so that no value of an outer shell remains.
        CKPT_ARGS are the words of {ckpt.args}, quoted for eval; later readers need CKPT_RESUME_ARGS.
        """
        decision, chosen = self.decision, self.decision.document.checkpoint
        variables: dict[str, object] = {
            "CKPT_PATH": self.path,
            "CKPT_STEP": decision.step,
            "CKPT_EPOCH": chosen and chosen.epoch,
            "CKPT_STEP_IN_EPOCH": chosen and chosen.step_in_epoch,
            "CKPT_PLAN": decision.path,
            "CKPT_RESUME": 1 if chosen else 0,
            "CKPT_ARGS": words(self.arguments),
            "CKPT_FINGERPRINT": decision.document.fingerprint,
        }
        if self.resume_args:
            variables["CKPT_RESUME_ARGS"] = words(self.resume_args)
        if chosen:
            variables |= decision.resume.env or {}
        return {name: "" if value is None else str(value) for name, value in variables.items()}

    def is_informed(self, command: Sequence[str]) -> bool:
        """Return True if a placeholder or a variable tells ``command`` which checkpoint was chosen."""
        fields = {name for word in command for name in _FIELD.findall(word)}
        if not self.decision.has_checkpoint or "path" in fields:
            return True
        if fields:
            by_step = "step" in fields and self.decision.step is not None
            return bool("args" in fields and self.arguments) or by_step
        if self.resume_args:  # CKPT_ARGS holds them, for a script or a command that names a CKPT_ variable
            return bool(self.arguments) and (not command or any("CKPT_" in word for word in command))
        return bool(self.arguments or self.path or self.decision.resume.env)

    def explain_uninformed(self) -> str:
        """Return the message for a command that would not learn of the checkpoint."""
        chosen = self.decision.document.checkpoint
        return explain_silence(chosen.layout if chosen else "", self.path, self.resume_args, self.arguments)

    def fill(self, command: Sequence[str]) -> list[str]:
        """Return the command with ``{ckpt.path}``, ``{ckpt.step}`` and ``{ckpt.args}`` replaced;
        ``{ckpt.args}`` must be a word of its own, and becomes one word per argument.

        Without a checkpoint ``{ckpt.args}`` vanishes, and so does a word with ``{ckpt.path}`` and the flag
        before it; others become "". Raise UsageError for an unknown name, or if each rank has another path.
        """
        known, resumes = {"path": self.path, "step": self.decision.step}, self.decision.has_checkpoint
        filled: list[str] = []
        for word in command:
            if word == "{ckpt.args}":
                filled += self.arguments
                continue
            for name in _FIELD.findall(word):
                if name == "args":
                    text = f"{word!r}: {{ckpt.args}} stands for several words"
                    raise UsageError(text, "write it as a word of its own")
                if name not in known:
                    text = f"{word!r}: there is no {{ckpt.{name}}}"
                    raise UsageError(text, "use {ckpt.path}, {ckpt.step} or {ckpt.args}")
                if name == "path" and self.path is None and resumes:
                    raise UsageError(
                        f"{word!r}: the ranks load different files, so there is no one path",
                        "start each rank with 'ckpt run --worker', or build one tree for all with --view DIR",
                    )
            if not resumes and _PATH_WORD.fullmatch(word):
                if not word.startswith("-") and re.fullmatch("--?[^-=][^=]*", filled[-1] if filled else ""):
                    del filled[-1]
                continue
            filled.append(_FIELD.sub(lambda m: "" if known[m[1]] is None else str(known[m[1]]), word))
        return filled


def become(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command (execvpe). Raise OSError if it cannot start."""
    # set for ckpt alone: with it a training script would not find the modules beside it
    inherited = {name: value for name, value in env.items() if name != "PYTHONSAFEPATH"}
    # Python ignores these two signals, and exec keeps a signal ignored.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execvpe(command[0], list(command), inherited)  # noqa: S606 - starting the user's command is what this is for
    finally:  # reached if execvpe fails
        for number, handler in before.items():
            signal.signal(number, handler)
