"""``choice/no-fallback``."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.errors import CkptError, NotNewest
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.choice.none_usable import UnusableFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of


def check(facts: UnusableFacts) -> Iterator[Hit]:
    """Yield that the newest save is not usable, and the caller wants no older one."""
    if facts.asked.no_fallback and not facts.choice.exhausted:
        text = f"the newest checkpoint is not usable ({facts.reasons})"
        yield Hit(facts.root, text, error=NotNewest)


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
    check=check,
)
