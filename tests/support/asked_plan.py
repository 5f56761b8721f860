"""What a job would do with the plan of a tree, to compare two of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ckpt_tools import errors
from ckpt_tools.api import plan
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.plan import FileLoad, LoadPlan


class Answer(NamedTuple):
    """What a job does with a plan."""

    error: str
    path: str
    files: tuple[str, ...]
    warnings: frozenset[str]


def loads(made: LoadPlan) -> list[FileLoad]:
    """All files that a job loads."""
    return [*made.shared, *(f for r in made.by_rank for f in r.files)]


def asked(root: Path) -> Answer:
    try:
        made = plan(str(root))
    except errors.CkptError as e:
        return Answer(f"{type(e).__name__} {e.exit_code}", "", (), frozenset())
    assert made.checkpoint is not None
    files = sorted(f.path for f in loads(made))
    warnings = frozenset(f.code for f in made.warnings if f.severity is not Severity.NOTE) - {"set-aside"}
    return Answer("", made.checkpoint.path, tuple(files), warnings)
