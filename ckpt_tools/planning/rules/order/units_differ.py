"""``order/units-differ``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="order/units-differ",
    code="",
    effect=Effect.ASK,
    answer="--exclude the saves of one unit, or --order mtime",
    why="""\
Some saves count steps and others epochs, and neither their files nor their times tell which came
last. Numbers of two units are not compared.
For: loops that write epoch_3.pt beside step_2000.pt.
""",
)
