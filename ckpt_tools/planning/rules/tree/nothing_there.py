"""``tree/nothing-there``."""

from __future__ import annotations

from shlex import quote

from ckpt_tools.errors import CkptError, NoCheckpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of

_NOT_WHOLE = "bring back what they lack, or add --allow none to start from nothing"
_AFRESH = "for a first launch add --allow none; else check the path"


def stop(root: str, unfinished: int, excluded: int) -> CkptError:
    """Return the error that there is no checkpoint, with the numbers of unfinished saves and hidden files."""
    text, todo = f"there is no checkpoint in {root}", _AFRESH
    if unfinished:
        text, todo = f"{root} holds only unfinished saves ({unfinished})", _NOT_WHOLE
    text += f" (hidden by --exclude: {excluded:,})" if excluded else ""
    hint = f"{todo}; 'ckpt ls {quote(root)}' lists what is there"
    return error_of(RULE, Hit(root, text, hint), NoCheckpoint)


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
