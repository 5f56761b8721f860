"""``choice/set-aside``."""

from collections.abc import Iterator

from ckpt_tools.errors import NoneUsable
from ckpt_tools.planning.facts import LaunchFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule
from ckpt_tools.planning.rules.tree.first_launch_leftovers import FRESH, name_paths


def check(facts: LaunchFacts) -> Iterator[Hit]:
    """Yield that nothing but copies is there."""
    if facts.aside:
        put_away = {f.code for f in facts.aside} == {"in-quarantine"}
        what = "what was put into quarantine" if put_away else "copies that somebody made by hand"
        text = f"{facts.root} holds only {what}: {name_paths(facts.root, [f.path for f in facts.aside])}"
        yield Hit(facts.root, text, f"{facts.aside[0].hint}; {FRESH}", error=NoneUsable)


RULE = Rule(
    id="choice/set-aside",
    code="set-aside",
    more=("in-quarantine", "versions-kept"),
    effect=Effect.STOP,
    answer="give it a name that the run's saves have, or ckpt quarantine --restore PATH",
    why="""\
What somebody put aside is named and never chosen: a copy (*.bak, *.orig, .trash), a save in
quarantine, older versions of objects. While only such are left, a job does not start from nothing.
For: cp -a of a checkpoint before an experiment.
""",
    check=check,
)
