"""``choice/none-usable``."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt_tools.errors import CkptError, NoneUsable, NotNewest
from ckpt_tools.findings import CODES, filled
from ckpt_tools.model.plan import Choice, LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.rules.choice import export_newer
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of


def stop_search(root: str, choice: Choice, most: int, plan: LoadPlan) -> CkptError:
    """Return that none of the saves that were read is usable, and that the search ended there."""
    read = f"none of {choice.attempts} checkpoints that were read is usable"
    if choice.attempts == 1:
        read = "the one checkpoint that was read is not usable"
    text = f"{read}; CKPT_MAX_ATTEMPTS={most} stopped the search"
    hint = filled(CODES[RULE.codes[0]].hint_at(root), root, root)
    plan = replace(plan, warnings=(*plan.warnings, finding_of(RULE, Hit(root, text))))
    return error_of(RULE, Hit(root, text, hint), NoneUsable, plan)


def stop_at_none(text: str, way_out: str, choice: Choice, asked: Selection, plan: LoadPlan) -> CkptError:
    """Return that none of the saves is usable (exit 4)."""
    if choice.left_out:
        text += f"; {export_newer.describe_left_out(choice.left_out, asked.save_interval).message}"
    return error_of(RULE, Hit("", text, way_out), NoneUsable, plan)


def stop_without_newest(why: str, plan: LoadPlan) -> CkptError:
    """Return that what would go before the choice cannot be used, and the caller wants no older one."""
    return error_of(RULE, Hit("", why), NotNewest, plan)


def stop_without_state(root: str, runs: str, plan: LoadPlan) -> CkptError:
    """Return that only what replicas keep for themselves is left of the runs below ROOT (exit 4)."""
    text = f"{root} holds {runs}: only what replicas keep for themselves"
    hint = "bring back the saves of all of them, which lay beside it"
    return error_of(RULE, Hit(root, text, hint), NoneUsable, plan)


RULE = Rule(
    id="choice/none-usable",
    codes=("attempts-exhausted",),
    effect=Effect.STOP,
    answer="ckpt verify ROOT shows the damage; CKPT_MAX_ATTEMPTS=N looks further; --allow fresh begins anew;"
    " drop --no-fallback to accept the older save",
    why="""\
Saves exist, and none that was tried is whole (exit 4). Beginning anew would throw training away, so it
takes a word of its own. So does an older save with --no-fallback (exit 6): steps that are lost are then
somebody's decision.
For: a full disk, on which every later save is cut short.
""",
)
