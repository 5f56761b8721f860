"""``choice/unplaced-newer``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/unplaced-newer",
    code="no-layout",
    effect=Effect.ASK,
    needs=Level.STRUCTURE,
    answer="its layout in ckpt.toml (ckpt layouts --guess ROOT), or --exclude with exactly that path",
    why="""\
A file that no layout places may hold a training state, and is not older than the choice. It may be
the newest save of this run under another name, so the older one is not taken without asking.
For: loops of one's own, and saves that were renamed by hand.
""",
)
