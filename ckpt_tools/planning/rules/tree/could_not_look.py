"""``tree/could-not-look``."""

from __future__ import annotations

from ckpt_tools.errors import CannotLook, CkptError
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of


def stop(text: str, hint: str, plan: LoadPlan | None = None) -> CkptError:
    """Return that something that may matter could not be looked at (exit 5)."""
    return error_of(RULE, Hit("", text, hint), CannotLook, plan)


def describe_unseen(path: str, why: str) -> Finding:
    """Return that something in the directory of a save could not be looked at."""
    return finding_of(RULE, Hit(path, why, severity=Severity.ERROR))


RULE = Rule(
    id="tree/could-not-look",
    code="unreadable",
    more=("in-use",),
    effect=Effect.STOP,
    answer="repair access to the path and run it again; --skip-unreadable to go on without it",
    why="""\
Something below ROOT could not be read, or changed while it was read. It may be the newest
checkpoint or a part of it, so no older one is taken and none is said not to exist.
For: network file systems that answer EIO or ESTALE for a while; a directory of another user.
""",
)
