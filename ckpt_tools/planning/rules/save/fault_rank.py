"""``save/fault-rank``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/fault-rank",
    code="fault-rank",
    effect=Effect.REJECT,
    answer="a replica of the rank: --replica-groups",
    why="""\
The file was written by a device that --fault-ranks says had failed. What a failing device computed
may be wrong although its bytes are in order.
For: MindIO TTP, which saves a dying gasp after a fault of one device.
""",
)
