"""``save/values``."""

from __future__ import annotations

from collections.abc import Collection

from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part, shown
from ckpt_tools.model.ranges import tensor_names
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def describe_zero_file(path: str, severity: Severity) -> Finding:
    """Return that no byte of a file is anything but zero, unlike those of the saves beside it."""
    text = "all of its bytes are zero, and in the run's other checkpoints they are not"
    return finding_of(RULE, Hit(path, text, severity=severity, offset=0))


def describe_zeros(names: Collection[str], path: str, other: Part) -> Finding:
    """Return which weights are nothing but zeros, unlike those of an ``other`` file."""
    text = f"nothing but zeros: {tensor_names(names)}, and in {shown(other)} there are numbers"
    return finding_of(RULE, Hit(path, text))


RULE = Rule(
    id="save/values",
    code="zero-filled",
    more=("zero-tail", "zero-pages", "skeleton", "nan-values", "inf-values", "absurd-values"),
    effect=Effect.REJECT,
    needs=Level.CONTENT,
    answer="restore the file; look at the loss before the save if they are NaN",
    why="""\
Weights are zeros that were never written, or NaN, infinite or absurdly large. The file is well
formed and the model in it is dead.
For: bghira/SimpleTuner#2714; sparse files after a crash of the file system.
""",
)
