"""``choice/none-usable``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import attrgetter
from shlex import quote

from msgspec.structs import replace

from ckpt_tools.discovery import completeness
from ckpt_tools.errors import CkptError, NoneUsable, NotNewest
from ckpt_tools.findings import CODES, fill_hint
from ckpt_tools.layouts import Layouts
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import Choice, LoadPlan, Rejected
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.rules.choice import export_newer
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of

_NAMED = 4
"""How many saves a message names with the ranks that they lack."""


def count_checkpoints(checkpoints: Sequence[Checkpoint]) -> str:
    return "1 checkpoint exists" if len(checkpoints) == 1 else f"{len(checkpoints)} checkpoints exist"


def explain_failure(
    choice: Choice,
    ranked: Sequence[Checkpoint],
    asked: Selection,
    plan: LoadPlan,
    layouts: Layouts,
    *,
    unplaced: Callable[[], str],
) -> CkptError:
    """Return why no save can be resumed from, as an error; ``plan`` is the one without a checkpoint."""
    errors = [f for r in choice.rejected for f in _find_errors(r)]
    reasons = "; ".join(dict.fromkeys(f.code for f in errors))
    if choice.exhausted:
        return _stop_search(choice, asked.max_attempts, plan)
    if asked.no_fallback:
        return stop_without_newest(f"the newest checkpoint is not usable ({reasons})", plan)
    lacks, hint = _describe_ranks(choice, layouts)
    text = f"{count_checkpoints(ranked)}, none is usable ({reasons}){lacks}"
    if choice.left_out:
        text += f"; {export_newer.describe_left_out(choice.left_out, asked.save_interval).message}"
        hint = "leave --save-interval out to have these looked at too, newest first"
    elif not hint:
        young = any(f.code == "unfinished-save" for f in plan.warnings)  # one may still be written
        first = min(errors, key=attrgetter("follows"), default=None)
        hint = f"{fill_hint(first.hint, first.path, plan.root)}; " if first and first.hint else ""
        hint += f"'ckpt verify {quote(plan.root)}{' --settle 0s' * young}' shows all damage{unplaced()}"
        alone = len(ranked) == 1 and not any(f.code in ("set-aside", "in-quarantine") for f in plan.warnings)
        hint += _say_what_to_move(ranked[0], plan.root) if alone else ""
    return error_of(RULE, Hit("", text, hint), NoneUsable, plan)


def _say_what_to_move(c: Checkpoint, root: str) -> str:
    """Return the end of a hint: which directories or files to move away to start without the save."""
    paths = {(p.home or p.path).removeprefix(f"{root}/") for p in c.parts}
    return f"; for a first save move {'it' if root in paths else ranges.names(paths)} away"


def _stop_search(choice: Choice, most: int, plan: LoadPlan) -> CkptError:
    """Return the error that no save that was read is usable, and that CKPT_MAX_ATTEMPTS ended the search."""
    read = f"none of {choice.attempts} checkpoints that were read is usable"
    if choice.attempts == 1:
        read = "the one checkpoint that was read is not usable"
    text = f"{read}; CKPT_MAX_ATTEMPTS={most} stopped the search"
    hint = fill_hint(CODES[RULE.codes[0]].hint_at(plan.root), plan.root, plan.root)
    plan = replace(plan, warnings=(*plan.warnings, finding_of(RULE, Hit(plan.root, text))))
    return error_of(RULE, Hit(plan.root, text, hint), NoneUsable, plan)


def _describe_ranks(choice: Choice, layouts: Layouts) -> tuple[str, str]:
    """Return which ranks each save lacks, and a hint; ("", "") if a save has other errors."""
    lacks, todo = [], ""
    for rejected in choice.rejected:
        errors = _find_errors(rejected)
        if not errors or not all(map(_names_ranks, errors)):
            return "", ""
        todo = todo or errors[0].hint
        of = ranges.words(tuple(sorted({pair for f in errors for pair in f.ranks})))
        lacks.append(f"{rejected.checkpoint.label} lacks rank{'' if of.isdigit() else 's'} {of}")
    if not lacks:
        return "", ""
    more = f" and {len(lacks) - _NAMED:,} more are not" if len(lacks) > _NAMED else ""
    pieces = [layouts.piece_of(p) for r in choice.rejected for p in r.checkpoint.parts]
    if not any(piece.readers.sharded or piece.readers.shared for piece in pieces):
        todo += "; or say who may stand in for whom with --replica-groups"
    return f": {'; '.join(lacks[:_NAMED])}{more}", todo


def find_smaller_job(choice: Choice, layouts: Layouts, world: int) -> tuple[int, Checkpoint | None]:
    """Return (ranks, newest save) of a smaller job with several whole, newer saves; (0, None) without one."""
    saves: dict[int, list[Checkpoint]] = defaultdict(list)
    for rejected in choice.rejected:
        c = rejected.checkpoint
        ranks = completeness.list_own_ranks(c, layouts.of(c))
        is_newer = choice.checkpoint is not None and c.mtime_ns >= choice.checkpoint.mtime_ns
        whole = ranks == set(range(len(ranks))) and all(map(_names_ranks, _find_errors(rejected)))
        if ranks and is_newer and whole:
            saves[len(ranks)].append(c)
    return next(((n, of[0]) for n, of in saves.items() if len(of) > 1 and n < world), (0, None))


def _find_errors(rejected: Rejected) -> list[Finding]:
    return [f for f in rejected.findings if f.is_error]


def _names_ranks(f: Finding) -> bool:
    """Return True if a finding names ranks without a file, and does not follow from another finding."""
    return f.code == "missing-rank" and not f.follows and bool(f.ranks)


def stop_without_newest(why: str, plan: LoadPlan) -> CkptError:
    """Return the error that a newer save is unusable, and --no-fallback wants no older one (exit 6)."""
    return error_of(RULE, Hit("", why), NotNewest, plan)


def stop_without_state(root: str, runs: str, plan: LoadPlan) -> CkptError:
    """Return the error that only files that replicas keep for themselves are left below ROOT (exit 4)."""
    text = f"{root} holds {runs}: only what replicas keep for themselves"
    hint = "bring back the saves of all of them, which lay beside it"
    return error_of(RULE, Hit(root, text, hint), NoneUsable, plan)


RULE = Rule(
    id="choice/none-usable",
    codes=("attempts-exhausted",),
    effect=Effect.STOP,
    answer="ckpt verify ROOT shows the damage; CKPT_MAX_ATTEMPTS=N looks further; --allow fresh ignores them;"
    " drop --no-fallback to accept the older save",
    why="""\
Saves exist, and none that was tried is whole (exit 4). Starting over would throw training away, so it
takes a word of its own. So does an older save with --no-fallback (exit 6): steps that are lost are then
somebody's decision.
For: a full disk, on which every later save is cut short.
""",
)
