"""What is asked where a file of a candidate is equal to one of another step, and nothing tells the copy."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from ckpt_tools.discovery.exclude import without
from ckpt_tools.errors import UsageError
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.planning.equal_files import when


def which_is_the_copy(
    c: Checkpoint, mine: Part, twin: Part, others: Sequence[Checkpoint], root: str
) -> UsageError:
    """Return the question whether ``mine``, a file of the candidate ``c``, is the copy or its ``twin``.

    Either answer may go back in training for nothing, or mix two steps.
    """
    first, second = sorted((mine, twin), key=when)
    limit = c.step if mine is first else _step_before(c, others)
    answers = [without(root, c, *filter(None, (twin.home, twin.path)))]
    if limit is not None:
        how = "it as it is" if mine is first else f"step {limit}"
        answers.append(f"--max-step {limit} to resume from {how}")
    text = (
        f"{first.path} and {second.path} are byte for byte the same, although training moved on between"
        " them, and nothing in them tells which is the copy"
    )
    one, other = (quote(p.home or p.path) for p in (first, second))
    compare = f"'ckpt diff {one} {other}' compares the two"
    return UsageError(
        text,
        f"restore the one that is the copy, or say {', or '.join(answers)}; {compare}",
        rule="pair/same-content",
    )


def _step_before(c: Checkpoint, candidates: Sequence[Checkpoint]) -> int | None:
    """Return the highest step of a candidate below a checkpoint's own."""
    steps = [o.step for o in candidates if o.step is not None and c.step is not None]
    return max((step for step in steps if c.step is not None and step < c.step), default=None)
