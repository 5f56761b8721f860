"""What an index of a sharded model says about its shards, and whether they agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.formats.common.tensors import near_miss
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.storage import Source


class Map(Struct):
    """What an index says, shared by all its claims: tensor -> shard, shard -> its tensors, ``total`` the text
    of metadata.total_size.

    ``sizes`` collects what the shards turn out to hold, each under its own name however often it is looked
    at, None when that cannot be told; ``last`` is the shard that made them complete, so that always the same
    one reports on their sum, and none while a shard is missing.
    """

    where: dict[str, str] = field(default_factory=dict)
    shards: dict[str, list[str]] = field(default_factory=dict)
    total: str = ""
    sizes: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    last: str = ""

    def note(self, shard: str, sizes: tuple[int, ...] | None) -> None:
        """Keep what a shard holds; None when that cannot be told."""
        self.sizes[shard] = sizes
        if len(self.sizes) == len(self.shards) and None not in self.sizes.values():
            self.last = self.last or shard


def _some(names: Sequence[str]) -> str:
    return (
        f"{len(names)} tensors, the first {names[0][:200]!r}"
        if len(names) > 1
        else f"tensor {names[0][:200]!r}"
    )


def _missing(named: Iterable[str], anatomy: Anatomy) -> list[str]:
    """Tensors that a shard lacks; a tied one is named in its metadata."""
    have = anatomy.keys
    return [n for n in named if n not in have and anatomy.metadata.get(n) not in have]


def compare(said: Map, shard: str, source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """What the index says about a shard against what the shard holds."""
    have = anatomy.keys
    missing = _missing(said.shards[shard], anatomy)
    extra = sorted(n for n in have if n not in said.where)
    double = sorted(n for n in have if said.where.get(n, shard) != shard)
    if missing:
        them = "them" if len(missing) > 1 else "it"
        why = f"the index maps {_some(missing)} to this file, which does not hold {them}"
        yield finding("missing-tensor", why)
    if double:
        other = repr(said.where[double[0]][:200])
        why = f"{_some(double)}: the index maps what this file holds to {other}"
        yield finding("duplicate-tensor", why)
    if extra:
        yield finding("extra-tensor", f"the index does not name {_some(extra)} of this file")
    agree = not (missing or double or extra)
    said.note(shard, (*_sizes(anatomy.tensors), source.size) if agree else None)
    if said.last == shard and said.total:
        yield from _total(said.total, list(said.sizes.values()))


def _sizes(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Bytes of the tensors, each for itself, and with those counted once that share their first byte."""
    shared = {(t.storage, t.offset): t.nbytes for t in sorted(tensors, key=lambda t: t.nbytes)}
    return sum(t.nbytes for t in tensors), sum(shared.values())


def _total(text: str, sizes: Sequence[tuple[int, ...] | None]) -> Iterator[Finding]:
    """``total_size`` is the sum of the tensors' bytes (tied ones once or each; in MiB by ColossalAI), or of
    the files' (mlx).

    Readers ignore it, and other numbers are everyday (a model converted to another type keeps the old one),
    unless it is the right one but for one bit.
    """
    bytes_of = {sum(column) for column in zip(*(s for s in sizes if s is not None), strict=True)}
    sums = {str(n) for n in bytes_of}
    plain = text.removesuffix(".0")
    if None in sizes or plain in sums or text in {str(n / (1 << 20)) for n in bytes_of}:
        return
    shown = (
        f"total_size of the index is {text[:40]}, its {len(sizes)} shards hold {min(sums, key=int)} bytes of"
        " tensors"
    )
    if near_miss(plain, sums):
        yield finding("odd-header", f"{shown}: one bit apart")
    else:
        yield finding("odd-header", shown, severity=Severity.NOTE)
