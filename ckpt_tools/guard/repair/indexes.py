"""Indexes of sharded models that are lost or damaged, written anew from the shards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ckpt_tools.formats.lost_indexes import text_of, whole_sets
from ckpt_tools.guard.repair.damage import Bench
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session


class Index(Struct, frozen=True):
    """The bytes of an index, and one of the shards that it was made from."""

    path: str
    data: bytes
    shard: str


def lost(s: Session) -> Iterator[Index]:
    """Every index that is not there although all its shards are, sound as far as their structure shows."""
    for path, shards in sorted(whole_sets(_files(s)).items()):
        if not os.path.lexists(path) and (made := _made(s, path, shards)):
            yield made


def written_anew(bench: Bench, path: str) -> Index | None:
    """The index at ``path`` as its shards tell it; None where they do not."""
    shards = whole_sets(_files(bench.session)).get(path)
    return _made(bench.session, path, shards) if shards else None


def _files(s: Session) -> Iterator[str]:
    yield from dict.fromkeys((*(p.path for p in s.parts), *(f.path for f in s.found.bare)))


def _made(s: Session, path: str, shards: Sequence[str]) -> Index | None:
    tensors = {}
    for shard in shards:
        report, anatomy = s.inspect(shard, Level.STRUCTURE)
        if report.verdict not in (Verdict.OK, Verdict.SUSPECT):
            return None
        tensors[os.path.basename(shard)] = anatomy.tensors
    data = text_of(tensors)
    return None if data is None else Index(path, data, shards[0])
