"""What to say where checkpoints exist and none can be resumed from."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from ckpt_tools.errors import CkptError, NoneUsable, NotNewest
from ckpt_tools.findings import filled, finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.plan import Choice, LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import missing_ranks
from ckpt_tools.planning.candidates import number
from ckpt_tools.planning.first_launch import in_no_layout
from ckpt_tools.planning.rules.choice import rollback
from ckpt_tools.reading.session import Session


def failure(
    choice: Choice, ranked: Sequence[Checkpoint], selection: Selection, session: Session, plan: LoadPlan
) -> CkptError:
    """Why there is no checkpoint to resume from, although some exist; ``plan`` is the one without any."""
    if choice.exhausted:
        return _stopped_early(choice, selection, session.root, plan)
    reasons = "; ".join(dict.fromkeys(f.code for f in _errors(choice)))
    if selection.no_fallback:
        return NotNewest(f"the newest checkpoint is not usable ({reasons})", plan=plan)
    text = f"{number(ranked)}, none is usable ({reasons})"
    if choice.left_out:
        text += f"; {rollback.describe_left_out(choice.left_out, selection.save_interval).message}"
    return NoneUsable(text, _way_out(choice, session), plan=plan)


def _stopped_early(choice: Choice, selection: Selection, root: str, plan: LoadPlan) -> NoneUsable:
    read = f"none of {choice.attempts} checkpoints that were read is usable"
    if choice.attempts == 1:
        read = "the one checkpoint that was read is not usable"
    text = f"{read}; --max-attempts {selection.max_attempts} stopped the search"
    f = finding("attempts-exhausted", text, path=root)
    return NoneUsable(text, filled(f.hint, f.path, root), plan=replace(plan, warnings=(*plan.warnings, f)))


def _errors(choice: Choice) -> list[Finding]:
    return [f for r in choice.rejected for f in r.findings if f.severity is Severity.ERROR]


def _way_out(choice: Choice, session: Session) -> str:
    """What to do where no checkpoint is usable."""
    if choice.left_out:
        return "leave --save-interval out to have these looked at too, newest first"
    if torn := missing_ranks.hint(choice, session.layouts):
        return torn
    errors, root = _errors(choice), session.root
    first = next((f for f in errors if not f.follows), errors[0]) if errors else None
    look = f"'ckpt verify {quote(root)}' shows all damage"
    hint = f"{filled(first.hint, first.path, root)}; {look}" if first and first.hint else look
    return f"{hint}{in_no_layout(session)}"
