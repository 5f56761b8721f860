"""``save/dangling-link``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/dangling-link",
    code="dangling-link",
    more=("symlink-loop",),
    effect=Effect.REJECT,
    answer="restore what the link leads to, or remove the link",
    why="""\
A symbolic link of the save leads to nothing, or in a circle. The name is there and the state is
not.
For: Hugging Face's cache (snapshots/ link to blobs/), copies without -L.
""",
)
