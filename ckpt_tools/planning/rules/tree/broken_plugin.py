"""``tree/broken-plugin``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

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
)
