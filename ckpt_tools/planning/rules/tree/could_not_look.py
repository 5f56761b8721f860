"""``tree/could-not-look``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="tree/could-not-look",
    code="unreadable",
    more=("in-use",),
    effect=Effect.STOP,
    answer="repair access to the path and run it again; --skip-unreadable to go on without it",
    why="""\
Something below ROOT could not be read, or changed while it was read. It may be the newest
checkpoint or a part of it, so no older one is taken and none is said not to exist.
For: network file systems that answer EIO or ESTALE for a while; a directory of another user.
""",
)
