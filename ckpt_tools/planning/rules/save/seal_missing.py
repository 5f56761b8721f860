"""``save/seal-missing``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/seal-missing",
    code="seal-missing",
    effect=Effect.REJECT,
    answer="restore the file; ckpt seal --again CHECKPOINT if it was removed on purpose",
    why="""\
A seal names a file that is not there. The save was whole when it was sealed, so it has lost
something since.
For: partial copies and clean-up scripts.
""",
)
