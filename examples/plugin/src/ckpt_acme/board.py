"""A line for Acme's status board: ``ckpt verify --format acmeboard`` and ``ckpt plan --format acmeboard``."""

from __future__ import annotations

from ckpt_tools import LoadPlan, Verification
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.page import View
from ckpt_tools.output.registry import Output
from ckpt_tools.output.words import printable


def _verification(answer: Verification, _view: View) -> str:
    return f"{answer.verdict}: {answer.summary.files} files in {printable(answer.root)}\n"


def _plan(answer: LoadPlan, _view: View) -> str:
    found = answer.checkpoint
    return f"step {found.step}: {printable(found.path)}\n" if found else "nothing to resume from\n"


def _failure(failure: Failure, _view: View) -> str:
    return f"{failure.code}: {printable(failure.message)}\n"


OUTPUT = Output(
    "acmeboard",
    "a line for Acme's status board",
    {"verification": _verification, "plan": _plan, "failure": _failure},
)
