"""One question, asked of every command that chooses and of the Python API, in this process: what each
answers, in a form that can be compared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ckpt_tools import Selection, cli, latest, plan
from ckpt_tools.errors import CkptError
from ckpt_tools.job import command
from ckpt_tools.output import json as as_json

COMMANDS = ("plan", "latest", "hook", "run")
FOREIGN = ("CKPT_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "MS_", "RANK", "WORLD_SIZE", "LOCAL_")
"""Beginnings of the variables that are part of a question."""


class Answer(NamedTuple):
    """``code`` is the exit code, the rest the choice: None where there is none."""

    code: int
    step: int | None = None
    path: str | None = None
    fingerprint: str | None = None
    rejected: tuple[str, ...] = ()


class Asker:
    """Asks questions about one ``root`` with one state directory."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], state: Path
    ) -> None:
        for name in [name for name in os.environ if name.startswith(FOREIGN) and name != "CKPT_CACHE_DIR"]:
            monkeypatch.delenv(name)
        self.capfd, self.state, self.started = capfd, state, dict[str, str]()
        self.err = ""
        monkeypatch.setattr(command, "become", self._become)

    def _become(self, words: Sequence[str], env: dict[str, str]) -> None:
        self.started = dict(env)

    def execute(self, *argv: object) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of one command line."""
        self.capfd.readouterr()
        code = cli.execute([str(word) for word in argv])
        out, self.err = self.capfd.readouterr()
        return code, out, self.err

    def ask(self, name: str, root: Path, *flags: object) -> Answer:
        """What a command answers. The rank is 0 where one has to be asking and none is given; who starts a
        command says how it takes files, since of saves with a file for each rank no layout has arguments.
        """
        asked = [name, root, "--plan-dir", self.state, *flags]
        if name in ("hook", "run"):
            asked += ["--resume-args", "--resume {files}"]
        if name == "run":
            self.started = {}
            code = self.execute(*asked, "--", "train", "{ckpt.args}")[0]
            body = json.loads(Path(self.started["CKPT_PLAN"]).read_text()) if self.started else {}
            return _answer(code, body)
        if name == "latest" and "--rank" not in flags:
            asked += ["--rank", 0]
        code, out, _ = self.execute(*asked, "--json")
        return _answer(code, json.loads(out))

    def call(self, function: Callable[..., Any], root: Path, **asked: Any) -> Answer:
        """What ``plan`` or ``latest`` of the API answers; an error by the exit code that it carries."""
        rank = {"rank": 0} if function is latest else {}
        try:
            made = function(root, Selection(plan_dir=str(self.state), **rank, **asked))
        except CkptError as error:
            return _answer(error.exit_code, json.loads(as_json.render(error.plan)) if error.plan else {})
        return _answer(0, json.loads(as_json.render(made)))

    def everywhere(self, root: Path, *flags: object, **asked: Any) -> dict[str, Answer]:
        """What each command answers to ``flags``, and the API to the same question as ``asked``."""
        said = {f"api {f.__name__}": self.call(f, root, **asked) for f in (plan, latest)}
        return {**said, **{name: self.ask(name, root, *flags) for name in COMMANDS}}


def _answer(code: int, body: dict[str, Any]) -> Answer:
    if code:
        return Answer(code)
    chosen = body.get("checkpoint")
    rejected = tuple(r["path"] for r in body.get("rejected", ()))
    return Answer(code, body.get("resume_step"), chosen and chosen["path"], body.get("fingerprint"), rejected)
