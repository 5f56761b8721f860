"""``choice/unfinished-newer``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/unfinished-newer",
    code="unfinished-save",
    effect=Effect.WARN,
    answer="nothing, if the job was killed while it saved",
    why="""\
A newer directory is called like a save of this run and is empty, or holds pieces only. That save
never finished, and its steps are trained again.
For: jobs that are killed while they save, the commonest case of all.
""",
)
