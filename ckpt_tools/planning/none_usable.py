"""What to say where checkpoints exist and none can be resumed from."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from ckpt_tools.errors import CkptError
from ckpt_tools.findings import filled
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.plan import Choice, LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import missing_ranks
from ckpt_tools.planning.candidates import number
from ckpt_tools.planning.first_launch import in_no_layout
from ckpt_tools.planning.rules.choice import no_fallback, none_usable
from ckpt_tools.planning.rules.choice.none_usable import UnusableFacts
from ckpt_tools.planning.rules.rule import error_of, finding_of
from ckpt_tools.reading.session import Session


def failure(
    choice: Choice, ranked: Sequence[Checkpoint], selection: Selection, session: Session, plan: LoadPlan
) -> CkptError:
    """Return why there is no checkpoint to resume from, although some exist; ``plan`` is the one without
    any.
    """
    errors = [f for r in choice.rejected for f in r.findings if f.severity is Severity.ERROR]
    reasons = "; ".join(dict.fromkeys(f.code for f in errors))
    facts = UnusableFacts(session.root, choice, selection, number(ranked), reasons)
    if not (choice.exhausted or selection.no_fallback):
        facts = replace(facts, way_out=_find_way_out(choice, session, errors))
    rules = (no_fallback.RULE, no_fallback.check), (none_usable.RULE, none_usable.check)
    (rule, error), *said = [(rule, hit) for rule, check in rules for hit in check(facts)]
    warnings = (*plan.warnings, *(finding_of(rule, hit) for rule, hit in said))
    return error_of(rule, error, plan=replace(plan, warnings=warnings))


def _find_way_out(choice: Choice, session: Session, errors: Sequence[Finding]) -> str:
    """Return what to do where no checkpoint is usable."""
    if choice.left_out:
        return "leave --save-interval out to have these looked at too, newest first"
    if torn := missing_ranks.hint(choice, session.layouts):
        return torn
    root = session.root
    first = next((f for f in errors if not f.follows), errors[0]) if errors else None
    look = f"'ckpt verify {quote(root)}' shows all damage"
    hint = f"{filled(first.hint, first.path, root)}; {look}" if first and first.hint else look
    return f"{hint}{in_no_layout(session)}"
