"""``save/wrong-role``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/wrong-role",
    code="wrong-role",
    effect=Effect.REJECT,
    needs=Level.STRUCTURE,
    answer="restore the file of the right role",
    why="""\
A file was first saved under the name of another part of the checkpoint. Loading it as that part
fails late, or not at all where the keys overlap.
For: swapped model and optimizer files; torch.save keeps the first name inside the archive.
""",
)
