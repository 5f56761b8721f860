"""The content of one file as plain data for another process: which ranges to read and how to digest them, and
what came of it.

What is sent holds numbers, texts, bytes and tuples of these. A digest is sent by its name in this package
with plain arguments; one that holds anything else, such as a key, stays here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ckpt_tools.checksum.blocks import Picked
from ckpt_tools.checksum.combine import Crc
from ckpt_tools.checksum.compare import GAP, _compare, _Tee, _units, apart
from ckpt_tools.checksum.crc import UNIT, InflateError, Progress
from ckpt_tools.checksum.riding import seated, shared
from ckpt_tools.checksum.sums import Deflated, Extent, Hash, Piece, Sum, Unit
from ckpt_tools.checksum.work import Outcome, Watch, ridden, work
from ckpt_tools.model.plain import decode, encode
from ckpt_tools.storage import ShortRead, Source

Item = tuple[Any, ...]
"""("read", offset, length) of bytes that no sum covers; ("sum", offset, length, pieces, digest) with the
digest named; ("ride", offset, length, digest, riders), each rider (offset, length, CRC or None); ("file",
offset, length, digests, items): one pass over the file that feeds digests of the whole on the way."""
Result = tuple[Any, ...]
"""("value", int or bytes), ("ride", digest, CRCs…), ("inflate", text), ("file", digests, results),
("short", offset, wanted, got), ("os", errno, text).
"""


def _sent(piece: Piece) -> tuple[int, ...] | bytes:
    return (
        piece
        if isinstance(piece, bytes)
        else (piece.offset, piece.length, *((piece.size,) if isinstance(piece, Deflated) else ()))
    )


def _received(piece: Any) -> Piece:
    return piece if isinstance(piece, bytes) else Deflated(*piece) if len(piece) == 3 else Extent(*piece)


# ---- the asking side


class Content:
    """The content of one file, or what is ``picked`` of it, as work for others: ``items`` in file order, each
    read by one thread, and their ``lengths`` in bytes.

    Raises TypeError when some of it is no plain data.
    """

    def __init__(self, size: int, sums: Sequence[Sum], picked: Picked | None = None) -> None:
        over, self.rest = apart(sums, size)  # as mismatches() does: one pass feeds them all
        self.over = [s for s, _ in over]
        self.picked = picked
        self._all, self._riders = shared(self.rest, _units(self.rest, size, 1 if self.over else GAP, UNIT))
        riding, some = seated(self._riders), picked is not None and not self.over
        wanted = picked.of(self._all) if picked is not None and some else self._all
        self.units = [u for u in wanted if u not in riding]
        self.items = [self._item(u) for u in self.units]
        self.lengths = [u.length for u in self.units]
        if picked is not None and not picked.numbers:
            self.over, self.items, self.lengths = [], [], []
        if self.over:
            self.items, self.lengths = (
                [("file", 0, size, tuple(encode(s.hash) for s in self.over), tuple(self.items))],
                [size],
            )

    def _item(self, u: Unit) -> Item:
        if u.sum < 0:
            return "read", u.offset, u.length
        s = self.rest[u.sum]
        pieces = s.pieces
        if u.piece >= 0:  # a part of a CRC
            piece = pieces[u.piece]
            pieces = (piece if isinstance(piece, Deflated) else Extent(u.offset, u.length),)
        if u in self._riders:
            return "ride", u.offset, u.length, encode(s.hash), tuple(map(self._rider, self._riders[u]))
        return "sum", u.offset, u.length, tuple(map(_sent, pieces)), encode(s.hash)

    def _rider(self, u: Unit) -> Item:
        return u.offset, u.length, encode(self.rest[u.sum].hash) if u.sum >= 0 else None

    def _came(self, results: Mapping[int, Result]) -> Iterator[tuple[Unit, Outcome]]:
        """What the units gave that were handed out."""
        for i, u in enumerate(self.units):
            if i not in results:
                continue
            if u not in self._riders:
                yield u, _outcome(results[i])
                continue
            _, *values = _checked(results[i])
            yield from zip((u, *self._riders[u]), values, strict=True)

    def found(
        self, source: Source, results: Mapping[int, Result], progress: Progress | None
    ) -> Iterator[tuple[Sum, Outcome]]:
        """As ``mismatches``, from the results of the items, as far as they were handed out. Raises what the
        first item in file order met.
        """
        digests: tuple[int | bytes, ...] = ()
        if self.over:
            _, digests, parts = _checked(results[0])
            results = dict(enumerate(parts))
        picked = None if self.over else self.picked
        came = self._came(results)
        yield from _compare(source, self.rest, self._all, 0, progress, watch=None, given=came, picked=picked)
        yield from ((s, got) for s, got in zip(self.over, digests, strict=True) if got != s.expected)
        if self.over and self.picked is not None:
            self.picked.finish()


def _checked(result: Result) -> Result:
    kind, *more = result
    if kind == "short":
        raise ShortRead(*more)
    if kind == "os":
        raise OSError(*more)
    return result


def _outcome(result: Result) -> Outcome:
    kind, value = _checked(result)
    return InflateError(value) if kind == "inflate" else value


# ---- the reading side


def read_items(source: Source, items: Sequence[Item], watch: Watch) -> Iterator[Result]:
    """A result for each item in turn; what fails is the last."""
    try:
        for item in items:
            yield _read(source, item, watch)
    except ShortRead as e:
        yield "short", e.offset, e.wanted, e.got
    except OSError as e:
        yield "os", e.errno or 0, e.strerror or str(e)


def _read(source: Source, item: Item, watch: Watch) -> Result:
    kind, offset, length, *more = item
    if kind == "read":
        work(source, (), Unit(offset, length, -1, 0), None, watch)
        return "value", 0
    if kind == "file":
        makers: list[Callable[[], Hash]] = [decode(d) for d in more[0]]
        hashes = [make() for make in makers]
        tee = _Tee(source, hashes)
        results = tuple(_read(tee, part, watch) for part in more[1])
        if tee.at != source.size:  # out of order: each over again
            whole = Unit(0, source.size, 0, -1)
            sums = [Sum("", 0, (Extent(0, source.size),), 0, hash=make) for make in makers]
            return "file", tuple(work(source, (s,), whole, None) for s in sums), results
        return "file", tuple(h.digest() for h in hashes), results
    if kind == "ride":
        return _ridden(source, Unit(offset, length, 0, -1), more[0], more[1], watch)
    pieces, digest = more
    s = Sum("", 0, tuple(map(_received, pieces)), 0, hash=decode(digest))
    got = work(source, (s,), Unit(offset, length, 0, 0 if isinstance(s.hash, Crc) else -1), None)
    return ("inflate", str(got)) if isinstance(got, InflateError) else ("value", got)


def _ridden(source: Source, host: Unit, digest: Any, riders: Sequence[Item], watch: Watch) -> Result:
    """What one range gives, and what rides on it."""
    sums = [Sum("", 0, (Extent(host.offset, host.length),), 0, hash=decode(digest))]
    units = list[Unit]()
    for offset, length, crc in riders:
        units.append(Unit(offset, length, len(sums) if crc is not None else -1, 0))
        if crc is not None:
            sums.append(Sum("", 0, (Extent(offset, length),), 0, hash=decode(crc)))
    return "ride", *(value for _, value in ridden(source, sums, host, units, progress=None, watch=watch))
