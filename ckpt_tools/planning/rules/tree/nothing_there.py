"""``tree/nothing-there``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from ckpt_tools.errors import NoCheckpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, finding_of
from ckpt_tools.planning.rules.tree.first_launch_leftovers import say_each

_NOT_WHOLE = "bring back what they lack, or add --allow none to start from nothing"
_AFRESH = "for a first launch add --allow none; else check the path"


def find_nothing(
    root: str, asked: Selection, temporary: Sequence[str], unfinished: int, excluded: int
) -> Iterator[Hit]:
    """Yield hits on leftovers of unfinished saves and, without --allow none, that there is no checkpoint."""
    yield from say_each("unfinished-save", "what a save that never finished was writing", temporary)
    if not asked.allow_none:
        text = f"there is no checkpoint in {root}"
        if unfinished:
            text = f"{root} holds only unfinished saves ({unfinished})"
        text += f" (hidden by --exclude: {excluded:,})" if excluded else ""
        todo = _NOT_WHOLE if unfinished else _AFRESH
        yield Hit(root, text, f"{todo}; 'ckpt ls {quote(root)}' lists what is there", error=NoCheckpoint)


def describe_nothing(root: str, *, packed: bool) -> Finding:
    """Return the finding that no file was inspected; ``packed``: the path is a packed or encrypted file."""
    text = "no checkpoint file that ckpt knows is there: nothing was inspected"
    if packed:
        text = "a packed or encrypted file, which ckpt does not look into: nothing was inspected"
    return finding_of(RULE, Hit(root, text))


RULE = Rule(
    id="tree/nothing-there",
    codes=("not-inspected",),
    effect=Effect.STOP,
    answer="--allow none for a first launch; else correct the path",
    why="""\
Nothing below the path is a checkpoint, or a file that may be one. A first launch looks like this,
and so does a wrong path: only the caller can tell which it is.
For: a typing error in the path, which would start a job from nothing (exit 3).
""",
)
