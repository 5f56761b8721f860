"""``save/step-mismatch``."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.layouts import Changes
from ckpt_tools.layouts.common.counters import find_schedules
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield files whose names contradict their contents, by layout, and schedulers' states of other saves."""
    if not facts.files:
        return
    rows = [(p, r) for p, r in facts.rows if r.format or facts.layouts.piece_of(p).changes is Changes.MARK]
    found = list(facts.layouts.of(facts.files[0]).check(rows))
    found += find_schedules(rows, {path for path, _ in found})
    for path, f in found:
        yield Hit(path, f.message, f.hint, f.severity, code=f.code, of_file=True, offset=f.offset)


def describe_led_elsewhere(path: str, to: str) -> Finding:
    text = f"it leads to {to}: a save of its own name may be lost, or was never there"
    return finding_of(RULE, Hit(path, text, severity=Severity.WARNING))


RULE = Rule(
    id="save/step-mismatch",
    codes=("step-mismatch", "epoch-mismatch"),
    effect=Effect.REJECT,
    answer="restore the file of the right step",
    check=check,
    why="""\
Name, directory and content of a file disagree on its step or epoch. It belongs to another save, and
loading it would mix two states.
For: files that were copied by hand between saves; MindIO TTP's batch_num check of directory and
step_num.
""",
)
