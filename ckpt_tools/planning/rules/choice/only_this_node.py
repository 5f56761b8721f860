"""``choice/only-this-node``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="choice/only-this-node",
    code="on-other-node",
    effect=Effect.REJECT,
    answer="plan with --agree on all nodes, or a directory that all nodes see",
    why="""\
A file that ranks of this node need lies on another node's disk. Here nobody can tell whether it is
whole, or there.
For: RobinWu218/SimDINO#24, pytorch/pytorch#125740: saves below node-local directories.
""",
)
