"""``choice/no-fallback``."""

from __future__ import annotations

from ckpt_tools.errors import CkptError, NotNewest
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of


def stop(why: str, plan: LoadPlan) -> CkptError:
    """Return that what would go before the choice cannot be used (exit 6)."""
    return error_of(RULE, Hit("", why), NotNewest, plan)


RULE = Rule(
    id="choice/no-fallback",
    code="",
    effect=Effect.STOP,
    needs=Level.CONTENT,
    answer="drop --no-fallback to accept the older save",
    why="""\
The newest save is not usable, and --no-fallback forbids an older one. The rejected one is named
with its reasons.
For: jobs in which steps that are lost must be somebody's decision (exit 6).
""",
)
