"""``tree/broken-plugin``."""

from collections.abc import Iterator

from ckpt_tools.errors import CannotLook
from ckpt_tools.planning.facts import LaunchFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule


def check(facts: LaunchFacts) -> Iterator[Hit]:
    """Yield that what only a plug-in knows is there all the same when the plug-in is broken."""
    for f in facts.plugins[:1]:
        text = f"whether there is a checkpoint is not known: {f.message}"
        yield Hit(facts.root, text, f.hint, error=CannotLook)


RULE = Rule(
    id="tree/broken-plugin",
    code="broken-plugin",
    effect=Effect.STOP,
    answer="repair or remove the package that is named, or --no-plugins",
    why="""\
An installed plug-in cannot be imported. What only it recognises is not seen, so a newer save may be
among it.
For: a plug-in that was built for another version of Python.
""",
    check=check,
)
