"""Names that read like those of ranks or parts of one state."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PARTS = re.compile(
    r"(?<![a-z])(rank|shard|part|gpu|worker|tp|pp|mp|dp)(?:_rank)?"
    r"(?:_world_size=(\d{1,6})_(\d{1,6})|(?:_world_size)?[-_=]?(\d{1,6})(?:[-_]?of[-_]?(\d{1,6}))?)(?!\d)",
    re.IGNORECASE,
)
"""What a name says of which part of a state it is, and of how many."""


def are_parts(runs: Iterable[str]) -> bool:
    """Whether names of runs read like those of parts of one state: ``part0_shard0``, ``part0_shard1``."""
    names = list(runs)
    same = {re.sub(r"[0-9]+", "", name) for name in names}
    return len(same) == 1 and all(map(_PARTS.search, names))
