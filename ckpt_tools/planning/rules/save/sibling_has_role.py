"""``save/sibling-has-role``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/sibling-has-role",
    code="missing-part",
    effect=Effect.REJECT,
    answer="restore the file that is named, or --exclude this save",
    why="""\
The run's other saves have a file for this role, and this one has not. A save without what its
siblings have was cut short or thinned out.
For: haotian-liu/LLaVA#1496: checkpoint-N with a projector only.
""",
)
