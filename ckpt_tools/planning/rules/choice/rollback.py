"""``choice/rollback``."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.planning.rules.choice import export_newer
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def describe_left_out(saves: Sequence[Checkpoint], save_interval: int | None) -> Finding:
    """Return the regular saves that --save-interval leaves out behind an unusable dying gasp."""
    more = f" and {len(saves) - 1} more" if saves[1:] else ""
    text = f"--save-interval {save_interval} leaves out {saves[0].label}{more}"
    text += ", not known to be of the last multiple of it before the dying gasp, or of an earlier step"
    return finding_of(export_newer.RULE, Hit(saves[0].path, text, severity=Severity.WARNING))


RULE = Rule(
    id="choice/rollback",
    code="",
    effect=Effect.NOTE,
    answer="leave --save-interval out to take the newest usable save",
    why="""\
A dying gasp cannot be used, so with --save-interval the choice goes back to the last regular save
at or below it. Later saves are listed as ahead: the job will write them again.
For: MindIO TTP's and MindSpore's resume scripts, which go back the same way.
""",
)
