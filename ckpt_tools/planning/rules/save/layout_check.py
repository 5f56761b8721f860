"""``save/layout-check``."""

from __future__ import annotations

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Flaw
from ckpt_tools.planning.rules.rule import Effect, Rule


def make_finding(flaw: Flaw | Finding) -> Finding:
    """Return the finding of what a layout finds wrong; what a plug-in gives as a finding stays one."""
    if isinstance(flaw, Finding):
        return flaw
    return finding(**{name: getattr(flaw, name) for name in Flaw.__match_args__})


RULE = Rule(
    id="save/layout-check",
    code="",
    effect=Effect.REJECT,
    answer="what the finding itself says; ckpt layouts NAME has the source of the fact",
    why="""\
What one framework writes, counts or needs is checked in its layout: files that its saves always have,
numbers that its names and contents tell, its own notes. Each such finding has the code, and so the
rule, of what is wrong.
For: each layout names the framework's source that it is from (ckpt layouts NAME).
""",
)
