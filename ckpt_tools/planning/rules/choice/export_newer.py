"""``choice/export-newer``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def find_exports(chosen: Checkpoint, saves: Iterable[Checkpoint], omit: Collection[str]) -> Iterator[Finding]:
    """Yield exports that were written after the choice, but none with a path in ``omit``."""
    for c in saves:
        omitted = any(path in omit for path in (c.path, *(p.path for p in c.parts)))
        if c.kind is Kind.RELEASE is not chosen.kind and c.mtime_ns >= chosen.mtime_ns and not omitted:
            text = f"it was written no earlier than {chosen.label}, but is an export"
            severity = Severity.WARNING if c.order > chosen.order else None
            yield finding_of(RULE, Hit(c.path, text, severity=severity))


def find_newer_models(finished: Sequence[Checkpoint], run: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Yield finished saves that no training can go on from, and that are later than all of the ``run``."""
    furthest, last = max(c.order for c in run), max(c.mtime_ns for c in run)
    keys = {c.key for c in run}
    for c in finished:
        by_time_alone = max(c.order) < 0 and c.mtime_ns > last
        if c.key not in keys and (c.order > furthest or by_time_alone):
            what = "only the best so far" if c.kind is Kind.BEST else "it holds a model alone"
            text = f"it is later than the run's regular saves, but {what}"
            severity = Severity.NOTE if by_time_alone else Severity.WARNING
            yield finding_of(RULE, Hit(c.path, text, severity=severity))


def describe_left_out(saves: Sequence[Checkpoint], save_interval: int | None) -> Finding:
    """Return the warning that --save-interval leaves out regular saves behind an emergency save."""
    more = f" and {len(saves) - 1} more" if saves[1:] else ""
    text = f"--save-interval {save_interval} leaves out {saves[0].label}{more}"
    text += ", not known to be of the last multiple of it before the emergency save, or of an earlier step"
    return finding_of(RULE, Hit(saves[0].path, text, severity=Severity.WARNING))


def describe_companion(p: Part, why: str) -> Finding:
    """Return the warning that a file beside the choice is not loaded: ``why`` it is not of the same save."""
    text = f"{why}, and is not loaded: the state of the {p.role} would start from scratch"
    hint = "move it away where the job would load it by itself: it is not of the model's save"
    return finding_of(RULE, Hit(p.path, text, hint, Severity.WARNING))


RULE = Rule(
    id="choice/export-newer",
    codes=("passed-over",),
    effect=Effect.NOTE,
    answer="nothing, unless training went on from it: --kind, CKPT_PREFER; leave --save-interval out",
    why="""\
A release, an export or the best so far is no older than the choice, and is not chosen. It holds no
later training state, so resuming from it would lose the optimizer. Behind an emergency save that cannot be
used, --save-interval ignores what is later than the last regular save at or below it: MindIO TTP's
and MindSpore's resume scripts go back the same way.
For: huggingface/transformers trainer.py save_model(), Keras ModelCheckpoint(save_best_only=True).
""",
)
