"""``save/dangling-link``."""

from __future__ import annotations

from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def describe_lost(path: str) -> Finding:
    """Return that a link beside the choice leads nowhere, and may have led to a newer save."""
    text = "it leads to what is not there, and what was saved there may be newer than the choice"
    return finding_of(RULE, Hit(path, text, severity=Severity.WARNING))


RULE = Rule(
    id="save/dangling-link",
    code="dangling-link",
    more=("symlink-loop",),
    effect=Effect.REJECT,
    answer="restore what the link leads to, or remove the link",
    why="""\
A symbolic link of the save leads to nothing, or in a circle. The name is there and the state is
not.
For: Hugging Face's cache (snapshots/ link to blobs/), copies without -L.
""",
)
