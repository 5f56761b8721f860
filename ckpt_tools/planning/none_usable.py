"""What to say where checkpoints exist and none can be resumed from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from shlex import quote

from ckpt_tools.discovery import completeness
from ckpt_tools.errors import CkptError
from ckpt_tools.findings import filled
from ckpt_tools.layouts import Layouts
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import Choice, LoadPlan, Rejected
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.first_launch import describe_unplaced
from ckpt_tools.planning.rules.choice import none_usable
from ckpt_tools.reading.session import Session

_NAMED = 4
"""Saves of which it is said what they lack."""


def count_checkpoints(checkpoints: Sequence[Checkpoint]) -> str:
    return "1 checkpoint exists" if len(checkpoints) == 1 else f"{len(checkpoints)} checkpoints exist"


def explain_failure(
    choice: Choice, ranked: Sequence[Checkpoint], selection: Selection, session: Session, plan: LoadPlan
) -> CkptError:
    """Return why nothing can be resumed from; ``plan`` is the one without a checkpoint."""
    errors = [f for r in choice.rejected for f in r.findings if f.is_error]
    reasons = "; ".join(dict.fromkeys(f.code for f in errors))
    if choice.exhausted:
        return none_usable.stop_search(session.root, choice, selection.max_attempts, plan)
    if selection.no_fallback:
        return none_usable.stop_without_newest(f"the newest checkpoint is not usable ({reasons})", plan)
    text = f"{count_checkpoints(ranked)}, none is usable ({reasons})"
    young = any(f.code == "unfinished-save" for f in plan.warnings)
    hint = _find_way_out(choice, session, errors, young=young)
    return none_usable.stop_at_none(text, hint, choice, selection, plan)


def _find_way_out(choice: Choice, session: Session, errors: Sequence[Finding], *, young: bool) -> str:
    """Return what to do where no checkpoint is usable; ``young``: one may still be written."""
    if choice.left_out:
        return "leave --save-interval out to have these looked at too, newest first"
    if torn := _describe_ranks(choice, session.layouts):
        return torn
    root = session.root
    first = next((f for f in errors if not f.follows), errors[0]) if errors else None
    look = f"'ckpt verify {quote(root)}{' --settle 0s' * young}' shows all damage"
    hint = f"{filled(first.hint, first.path, root)}; {look}" if first and first.hint else look
    return f"{hint}{describe_unplaced(session)}"


def _describe_ranks(choice: Choice, layouts: Layouts) -> str:
    """Return which ranks each save lacks, and what to do; "" if something else is wrong with one."""
    lacks, todo = [], ""
    for rejected in choice.rejected:
        errors = _find_errors(rejected)
        if not errors or not all(map(_names_ranks, errors)):
            return ""
        todo = todo or errors[0].hint
        of = ranges.words(tuple(sorted({pair for f in errors for pair in f.ranks})))
        lacks.append(f"{rejected.checkpoint.label} lacks rank{'' if of.isdigit() else 's'} {of}")
    if not lacks:
        return ""
    more = f" and {len(lacks) - _NAMED:,} more are not" if len(lacks) > _NAMED else ""
    pieces = [layouts.piece_of(p) for r in choice.rejected for p in r.checkpoint.parts]
    if not any(piece.readers.sharded or piece.readers.shared for piece in pieces):
        todo += "; or say who may stand in for whom with --replica-groups"
    return f"no save is whole: {'; '.join(lacks[:_NAMED])}{more}. Nothing was started: {todo}"


def find_smaller_job(choice: Choice, layouts: Layouts, world: int) -> tuple[int, Checkpoint] | None:
    """Return the ranks of a smaller job of which at least two newer saves lack nothing, and the newest."""
    saves: dict[int, list[Checkpoint]] = defaultdict(list)
    for rejected in choice.rejected:
        c = rejected.checkpoint
        ranks = completeness.ranks_of_its_own(c, layouts.of(c))
        is_newer = choice.checkpoint is not None and c.mtime_ns >= choice.checkpoint.mtime_ns
        whole = ranks == set(range(len(ranks))) and all(map(_names_ranks, _find_errors(rejected)))
        if ranks and is_newer and whole:
            saves[len(ranks)].append(c)
    return next(((n, of[0]) for n, of in saves.items() if len(of) > 1 and n < world), None)


def _find_errors(rejected: Rejected) -> list[Finding]:
    return [f for f in rejected.findings if f.is_error]


def _names_ranks(f: Finding) -> bool:
    """Return True if the finding says which ranks have no file, and follows from no other one."""
    return f.code == "missing-rank" and not f.follows and bool(f.ranks)
