"""``choice/tracker-stale``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from shlex import quote

from msgspec import Struct

from ckpt_tools.discovery.completeness import label
from ckpt_tools.errors import CkptError
from ckpt_tools.layouts import Layout
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Kind
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of

_WRITE_IT = "write the name of the newest into it, or start the framework with the arguments of 'ckpt plan'"
_MAY_BE_RIGHT = "it was written after that save, so it may be right: check which of the two is meant"


class TrackerFacts(Struct, frozen=True):
    """A tracker beside the finished ``saves`` of a run."""

    path: str
    says: int | str | None  # the step or name in it; None for garbage
    written_ns: int  # its time
    repaired: bool  # ckpt repair writes it
    layout: Layout
    saves: Sequence[Checkpoint]
    incomplete: Collection[CheckpointKey]  # saves that lack files


def check(facts: TrackerFacts) -> Iterator[Hit]:
    """Yield what is wrong with a tracker. The hint never corrects it to a save older than itself."""
    says, path = facts.says, facts.path
    if says is None:
        hint = "" if facts.repaired else _WRITE_IT
        yield Hit(path, "it is empty, or not what its framework writes", hint, code="bad-tracker")
        return
    named = [c for c in facts.saves if facts.layout.tracker.names(c, says)]
    if not named:
        yield Hit(path, f"it names {says}, which is not there", code="dangling-tracker")
        return
    whole = [c for c in facts.saves if c.key not in facts.incomplete]
    if all(c.key in facts.incomplete for c in named):
        yield Hit(path, f"it names {says}, which is damaged or not complete", code="dangling-tracker")
    if newest := _find_newest(whole, named):
        hint = _MAY_BE_RIGHT if newest.mtime_ns < facts.written_ns else "" if facts.repaired else _WRITE_IT
        yield Hit(path, f"it names {says}, but {label(newest)} is there and complete", hint)


def _find_newest(whole: Sequence[Checkpoint], named: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the newest save that is newer than the ``named`` ones; None without, or beside a release."""
    if any(c.kind is Kind.RELEASE for c in named):
        return None
    highest = max(c.order for c in named)
    newer = (c for c in whole if c.order > highest and c.kind is Kind.PERIODIC)
    return max(newer, key=lambda c: c.order, default=None)


def find_lost_best(entry: str, named: str, by: str, *, beside: bool) -> Hit:
    """Return the hit that the best save is gone; ``beside`` the choice lies another of its name."""
    text = f"{entry} is {named!r}, which is not there"
    text += f" ({named.rstrip('/').rpartition('/')[2]} lies beside it)" if beside else ""
    hint = "a job that loads its best when it ends (load_best_model_at_end) fails then, or does without"
    return Hit(by, text, hint, Severity.NOTE, code="dangling-tracker")


def ask_which_is_meant(c: Checkpoint, name: object, targets: dict[str, int | str]) -> CkptError:
    each = " and ".join(f"{path} names {target}" for path, target in targets.items())
    write = f"printf %s {quote(str(name))} | tee {' '.join(map(quote, targets))}"
    hint = f"write {name} into each of them to resume from {label(c)}: {write}"
    return error_of(RULE, Hit(c.path, f"{each}: a job that follows them loads files of both", hint))


RULE = Rule(
    id="choice/tracker-stale",
    codes=("stale-tracker", "dangling-tracker", "bad-tracker", "missing-tracker"),
    effect=Effect.WARN,
    check=check,
    answer="start with the arguments of the plan, or ckpt repair ROOT --tracker --apply",
    why="""\
The framework's tracker is missing, garbage, or names another save than the choice. A framework that
follows it alone starts older or from nothing.
For: Megatron's latest_checkpointed_iteration.txt, DeepSpeed's latest,
huggingface/transformers#48315 (best_model_checkpoint).
""",
)
