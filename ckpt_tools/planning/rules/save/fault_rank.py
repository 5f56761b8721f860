"""``save/fault-rank``."""

from __future__ import annotations

from ckpt_tools.model.finding import Finding
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of


def describe_failed(rank: int, path: str) -> Finding:
    """Return that a rank failed while it saved a file of a dying gasp."""
    text = f"rank {rank} failed while this checkpoint was saved, so its file is not trusted"
    return finding_of(RULE, Hit(path, text))


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
