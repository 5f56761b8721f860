"""``choice/rollback``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

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
