"""``save/groups-needed``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/groups-needed",
    code="replica-groups-needed",
    effect=Effect.ASK,
    answer="--replica-groups GROUPS, --strategy-dir DIR, --tp/--pp/--dp, or --replicas all",
    why="""\
A rank has no file, and which ranks hold the same state is not known. The parallel sizes, a strategy
file or the caller can tell; a guess would hand a rank another one's shard.
For: MindSpore's *_breakpoint.ckpt and MindIO TTP, which save one replica of each state.
""",
)
