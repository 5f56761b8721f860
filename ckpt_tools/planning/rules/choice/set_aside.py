"""``choice/set-aside``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/set-aside",
    code="set-aside",
    more=("in-quarantine", "versions-kept"),
    effect=Effect.NOTE,
    answer="give it a name that the run's saves have, or ckpt quarantine --restore PATH",
    why="""\
What somebody put aside is named and never chosen: a copy (*.bak, *.orig, .trash), a save in
quarantine, older versions of objects. While only such are left, a job does not start from nothing.
For: cp -a of a checkpoint before an experiment.
""",
)
