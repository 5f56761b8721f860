"""Shards that no index lists: which of them a save has lost, by those of the saves beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part

_Shards = Mapping[tuple[str, tuple[tuple[str, int], ...]], Part]
"""Piece and place -> its file."""


def lost_shards(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Those that all the saves ``beside`` it have. A save that holds as many bytes without them is that of a
    job which has fewer ranks by now.
    """
    own, others = _shards(c), [shards for o in beside if (shards := _shards(o))]
    if not (own and others):
        return
    gone = sorted(set.intersection(*map(set, others)) - set(own))
    smallest = min((shards[at].size for shards in others for at in gone), default=0)
    if gone and _size(own) + smallest // 2 < min(map(_size, others)):
        text = f"there is no file like {others[-1][gone[0]].name}, as the saves beside it have one"
        yield finding("missing-part", text, path=c.path)


def _shards(c: Checkpoint) -> _Shards:
    return {(p.piece, p.coords): p for p in c.parts if p.coords}


def _size(shards: _Shards) -> int:
    return sum(p.size for p in shards.values())
