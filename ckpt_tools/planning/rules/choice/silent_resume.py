"""``choice/silent-resume``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/silent-resume",
    effect=Effect.ASK,
    answer="the form that is named: {ckpt.path}, {ckpt.args}, or the variables",
    why="""\
A save was chosen, and nothing would carry it to the command that is to resume. The job would begin
from nothing although the plan says otherwise.
For: Ascend's samples, which take the path as an argument that the script of the user must pass on.
""",
)
