"""``tree/earlier-start-had-one``."""

from collections.abc import Iterator

from ckpt_tools.errors import NoneUsable
from ckpt_tools.model.plan import EarlierStart
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule


def check(facts: tuple[str, EarlierStart]) -> Iterator[Hit]:
    """Yield that nothing is where an earlier start resumed from a checkpoint: a file system that is not
    mounted looks like a first launch.
    """
    root, before = facts
    earlier = f"an earlier start resumed from step {before.step} ({before.path})"
    hint = "is the file system mounted? To start from nothing anyway say --allow-fresh"
    yield Hit(root, f"there is no checkpoint in {root}, but {earlier}", hint, error=NoneUsable)


RULE = Rule(
    id="tree/earlier-start-had-one",
    code="",
    effect=Effect.STOP,
    answer="bring the saves back, or --allow-fresh",
    why="""\
An earlier start of this job resumed from a checkpoint here, and now there is none. Saves do not go
away by themselves: the place is not mounted, or somebody moved them.
For: a mount that was lost between two starts of a requeued job (exit 4).
""",
    check=check,
)
