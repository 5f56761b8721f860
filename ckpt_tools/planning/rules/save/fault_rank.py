"""``save/fault-rank``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ckpt_tools.planning.rules.rule import Effect, Hit, Rule


class FailedFile(NamedTuple):
    """A file that a rank wrote in a dying gasp, and no other than that rank, which failed."""

    rank: int
    path: str


def check(files: Iterable[FailedFile]) -> Iterator[Hit]:
    """Yield files of ranks that failed while they were saved."""
    for rank, path in files:
        text = f"rank {rank} failed while this checkpoint was saved, so its file is not trusted"
        yield Hit(path, text)


RULE = Rule(
    id="save/fault-rank",
    code="fault-rank",
    effect=Effect.REJECT,
    answer="a replica of the rank: --replica-groups",
    check=check,
    why="""\
The file was written by a device that --fault-ranks says had failed. What a failing device computed
may be wrong although its bytes are in order.
For: MindIO TTP, which saves a dying gasp after a fault of one device.
""",
)
