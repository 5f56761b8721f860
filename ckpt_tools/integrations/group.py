"""The processes that train together, where their framework has joined them: what one says, all hear.

Nothing is imported for it: a process whose group exists has it imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from msgspec import Struct


class Group(Struct, frozen=True):
    """All ranks of a job. Both calls are made by all of them, or none."""

    rank: int
    size: int
    broadcast: Callable[[str], str]
    """What the first rank says, to all; what others say does not count."""
    gather: Callable[[str], list[str]]
    """What each says, to all, by rank."""


def joined() -> Group | None:
    """The group of this process, None where it is alone or nobody has joined it to others."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None

    def broadcast(text: str) -> str:
        box = [text]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(text: str) -> list[str]:
        said = [""] * dist.get_world_size()
        dist.all_gather_object(said, text)
        return said

    return Group(dist.get_rank(), dist.get_world_size(), broadcast, gather)
