"""``choice/tracker-stale``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from shlex import quote

from ckpt_tools.discovery.completeness import name_kind
from ckpt_tools.errors import CkptError
from ckpt_tools.layouts import Layout
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.part import Kind
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of

_WRITE_IT = "write the name of the newest into it, or start the framework with the arguments of 'ckpt plan'"
_MAY_BE_RIGHT = "it was written after that save, so it may be right: check which of the two is meant"


def check(
    path: str,
    target: int | str | None,
    written_ns: int,
    *,
    layout: Layout,
    saves: Sequence[Checkpoint],
    incomplete: Collection[CheckpointKey],
) -> Iterator[Hit]:
    """Yield what is wrong with a tracker beside the finished ``saves`` of a run, of which ``incomplete`` ones
    lack files; its ``target`` is None for garbage. The hint never corrects it to a save older than itself.
    """
    by_repair = path.rpartition("/")[2] == layout.tracker.file  # the hint of the code names it
    hint = "" if by_repair else _WRITE_IT
    if target is None:
        yield Hit(path, "it is empty, or not what its framework writes", hint, code="bad-tracker")
        return
    named = [c for c in saves if layout.tracker.names(c, target)]
    whole = [c for c in saves if c.key not in incomplete]
    if all(c.key in incomplete for c in named):
        lost = "damaged or not complete" if named else "not there"
        yield Hit(path, f"it names {target}, which is {lost}", code="dangling-tracker")
    if named and (newest := _find_newest(whole, named)):
        hint = _MAY_BE_RIGHT if newest.mtime_ns < written_ns else hint
        yield Hit(path, f"it names {target}, but {name_kind(newest)} is there and complete", hint)


def _find_newest(whole: Sequence[Checkpoint], named: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the newest save that is newer than the ``named`` ones; None without, or beside a release."""
    if any(c.kind is Kind.RELEASE for c in named):
        return None
    highest = max(c.order for c in named)
    newer = (c for c in whole if c.order > highest and c.kind is Kind.PERIODIC)
    return max(newer, key=lambda c: c.order, default=None)


def describe_lost_best(entry: str, best: str, path: str, *, beside: bool) -> Hit:
    """Return the hit that a best save is gone, which ``entry`` of the file at ``path`` names."""
    text = f"{entry} is {best!r}, which is not there"
    text += f" ({best.rstrip('/').rpartition('/')[2]} lies beside it)" if beside else ""
    hint = "a job that loads its best when it ends (load_best_model_at_end) fails then, or does without"
    return Hit(path, text, hint, Severity.NOTE, code="dangling-tracker")


def ask_for_order(layout: Layout, base: str, path: str, content: object, *, hidden: bool) -> CkptError:
    """Return the question about a tracker that names no candidate (``hidden``: options hide its save)."""
    if not path:
        always = layout.tracker.always and layout.tracker.file
        why = f"there is no {always} in {base}" if always else f"the layout {layout.name} has no tracker"
    elif isinstance(content, int | str):
        why = f"{path} names {content}, which {'--kind or --max-step hides' if hidden else 'is not there'}"
    else:  # an unreadable one ends with exit 5 in the end
        why = f"{path} is empty, unreadable, or not what its framework writes"
    return error_of(RULE, Hit(path or base, why, "add --order mtime or --order step"))


def ask_to_name(c: Checkpoint, layout: Layout, base: str, read: tuple[str, object] | None) -> CkptError:
    """Return the question about an export that its framework finds through its tracker alone."""
    path = f"{base}/{layout.tracker.file}"
    found = f"names {read[1]}" if read and isinstance(read[1], int | str) else "is not there or names nothing"
    text = f"a job finds {c.label} through {layout.tracker.file} alone, which {found}"
    write = f": printf %s {quote(str(layout.tracker.name(c)))} > {quote(path)}" * ("://" not in path)
    return error_of(RULE, Hit(path, text, f"to resume from {c.label} write its name there{write}"))


def ask_which_is_meant(c: Checkpoint, name: object, targets: dict[str, int | str]) -> CkptError:
    """Return the question about trackers with several ``targets`` (by path); ``name`` leads to the choice."""
    each = " and ".join(f"{path} names {target}" for path, target in targets.items())
    write = f"printf %s {quote(str(name))} | tee {' '.join(map(quote, targets))}"
    hint = f"write {name} into each of them to resume from {name_kind(c)}: {write}"
    return error_of(RULE, Hit(c.path, f"{each}: a job that follows them loads files of both", hint))


RULE = Rule(
    id="choice/tracker-stale",
    codes=("stale-tracker", "dangling-tracker", "bad-tracker", "missing-tracker"),
    effect=Effect.WARN,
    answer="start with the arguments of the plan, or ckpt repair ROOT --tracker --apply",
    why="""\
The framework's tracker is missing, garbage, or names another save than the choice. A framework that
follows it alone starts older or from nothing.
For: Megatron's latest_checkpointed_iteration.txt, DeepSpeed's latest,
huggingface/transformers#48315 (best_model_checkpoint).
""",
)
