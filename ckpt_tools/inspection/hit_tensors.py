"""Which tensors are hit where a file is not the one that was sealed: the seal has their digests."""

from __future__ import annotations

from collections.abc import Mapping

from ckpt_tools.checksum import Extent, Progress, Sum
from ckpt_tools.checksum.sums import xxh3
from ckpt_tools.formats import Anatomy
from ckpt_tools.inspection.digests import Runs, digests_of, placed
from ckpt_tools.model import ranges
from ckpt_tools.storage import Source


def hit_tensors(
    source: Source, anatomy: Anatomy, wrong: Mapping[int, Sum], progress: Progress | None
) -> dict[int, str]:
    """What to say of each chunk in ``wrong``: the tensors of which bytes lie in it and that differ from what
    was sealed.

    Reads the tensors that reach into these chunks, and no others. Says nothing of digests of the whole file.
    """
    where = placed(anatomy.tensors, source.size)
    chunks = {i: s.pieces[0] for i, s in wrong.items() if s.hash is xxh3}
    inside = {
        i: [name for name, runs in where.items() if _reach_into(runs, chunk)]
        for i, chunk in chunks.items()
        if isinstance(chunk, Extent)
    }
    asked = {name for names in inside.values() for name in names}
    tensors = [t for t in anatomy.tensors if t.name in asked]
    now = digests_of(source, tensors, progress, jobs=1)
    return {i: _said(names, now, anatomy.sealed) for i, names in inside.items()}


def _reach_into(runs: Runs, chunk: Extent) -> bool:
    return any(at < chunk.offset + chunk.length and chunk.offset < at + n for at, n in runs)


def _said(names: list[str], now: Mapping[str, str], sealed: Mapping[str, str]) -> str:
    """The tensors that are hit, in words."""
    hit = [name for name in names if name in sealed and now.get(name) not in (None, sealed[name])]
    if hit:
        return f"{len(hit):,} of {len(sealed):,} tensors hit: {ranges.names(hit)}"
    if all(name in sealed and name in now for name in names):
        return "no tensor is hit"
    return "which tensors are hit is not known"
