"""Two equal files of different steps of which nothing tells the copy: what is asked.

Either answer may go back in training for nothing, or mix two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from ckpt_tools.crosscheck.run_files import order
from ckpt_tools.discovery.exclude import without
from ckpt_tools.errors import UsageError
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part


def question(c: Checkpoint, mine: Part, twin: Part, others: Sequence[Checkpoint], root: str) -> UsageError:
    """Whether ``mine``, a file of the candidate ``c``, is the copy or its ``twin``, with what answers it."""
    first, second = sorted((mine, twin), key=order)
    limit = c.step if mine is first else _step_before(c, others)
    answers = [without(root, c, *filter(None, (twin.home, twin.path)))]
    if limit is not None:
        how = "it as it is" if mine is first else f"step {limit}"
        answers.append(f"--max-step {limit} to resume from {how}")
    text = (
        f"{first.path} and {second.path} are byte for byte the same, although training moved on between "
        "them, "
        "and neither contents nor times tell which is the copy"
    )
    one, other = (quote(p.home or p.path) for p in (first, second))
    compare = f"'ckpt diff {one} {other}' compares the two"
    return UsageError(
        text,
        f"restore the one that is the copy, or say {', or '.join(answers)}; {compare}",
        rule="pair/same-content",
    )


def _step_before(c: Checkpoint, candidates: Sequence[Checkpoint]) -> int | None:
    """The highest step of a candidate below a checkpoint's own."""
    steps = [o.step for o in candidates if o.step is not None and c.step is not None]
    return max((step for step in steps if c.step is not None and step < c.step), default=None)
