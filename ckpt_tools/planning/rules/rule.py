"""A rule is a named reason to trust a tree, a save or a choice less. Rules never read files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

from msgspec import Struct

from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Flaw, Severity
from ckpt_tools.model.plan import LoadPlan

DOUBT = "it is unclear which checkpoint is the newest: "


def name_below(path: str, root: str) -> str:
    """Return a path relative to ROOT, as a message has room for it; as it is, if it lies elsewhere."""
    return path.removeprefix(f"{root.rstrip('/')}/")


class Effect(IntEnum):
    """What a hit does at most. Rules only lower trust: no hit cancels another one."""

    NOTE = 0
    WARN = 1
    REJECT = 2
    """The next candidate is tried."""
    ASK = 3
    """Exit 2."""
    STOP = 4
    """Exit 3, 4, 5 or 6."""

    def __str__(self) -> str:
        return self.name.lower()


class Hit(Struct, frozen=True):
    """One place where a rule holds."""

    path: str  # of the file or directory
    message: str
    hint: str = ""  # the next step, if that is not the rule's ``answer``
    severity: Severity | None = None  # if it is not that of the code
    effect: Effect | None = None  # if it is not that of the rule
    code: str = ""  # if it is not the rule's first
    of_file: bool = False  # the finding goes to the report on the file at ``path``
    ranks: tuple[tuple[int, int], ...] = ()  # this, offset and follows are fields of the finding
    offset: int | None = None
    follows: bool = False
    other: str = ""  # the second file of a pair
    error: type[CkptError] | None = None  # the class of the error if the hit asks or stops


def finding_of(rule: Rule, hit: Hit) -> Finding:
    """Return the finding of a hit. It has no path if it goes to the report on a file, which has one."""
    code = hit.code or rule.codes[0]
    return finding(
        code,
        hit.message,
        offset=hit.offset,
        severity=hit.severity,
        path="" if hit.of_file else hit.path,
        hint=hit.hint,
        ranks=hit.ranks,
        follows=hit.follows,
        rule=rule.id if code in rule.codes else "",
    )


def make_finding(flaw: Flaw | Finding) -> Finding:
    """Return the finding of a layout's flaw; a plug-in may give a finding, which is returned as it is."""
    if isinstance(flaw, Finding):
        return flaw
    return finding(**{name: getattr(flaw, name) for name in Flaw.__match_args__})


def error_of(
    rule: Rule, hit: Hit, of: type[CkptError] = UsageError, plan: LoadPlan | None = None
) -> CkptError:
    """Return the error that asks (exit 2) or stops for a hit, of the hit's class, else of class ``of``."""
    return (hit.error or of)(hit.message, hit.hint, plan, rule=rule.id)


class Rule(Struct, frozen=True):
    """One rule."""

    id: str  # ``scope/name``: stable, and its file below planning/rules
    effect: Effect
    answer: str  # the flag, or the lines of ckpt.toml, that settle it
    why: str  # its page: what it says, and the incident or source that it exists for, in at most ten lines
    check: Callable[[Any], Iterable[Hit]] | None = None  # if None, other modules find its hits
    codes: tuple[str, ...] = ()  # of its findings, the first by default; none if it only asks or stops
