"""Whether files hold the same bytes: digests of a few pages of each, then all bytes until they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.storage import Identity, ShortRead, Source, opened
from ckpt_tools.storage.urls import is_url

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ckpt_tools.reading.session import Session

Pages = bytes
_SAMPLE = 4096
_AT = (2, 4, 6, 8)
"""Where those pages lie, in eighths of the file:
at its end, where archives keep their checksums, and between.
"""
_SMALL = 1 << 16
"""Of files up to this size all is read, in quarters: all that differs may lie between four pages."""
_QUESTION = f"pages {_SAMPLE} {_AT}, all of {_SMALL}"
_ASKED = 64
"""Tensors of a file in a store that are compared at most: each is a request."""
_BLOCK = 1 << 20
_LEAST = 512
"""How many of the others are read at least; twice as many as there are parts where that is more."""


def prints(
    parts: Sequence[Part], others: Sequence[Part], s: Session, known: dict[str, Pages] | None = None
) -> dict[str, Pages]:
    """Return digests of pages of each file whose size another has too; those that were read are added to
    ``known``, and not read again.

    Of the others, which are only compared with, the first ones that count. A file of a size of its own is
    known by that.
    """
    known = {} if known is None else known
    sizes, out = Counter(p.size for p in parts), dict[str, Pages]()
    elsewhere = {p.size for p in others}
    left, wanted = max(_LEAST, 2 * len(parts)), list[Part]()
    for i, p in enumerate((*parts, *others)):
        alone = sizes[p.size] < 2 and p.size not in elsewhere if i < len(parts) else not sizes[p.size]
        if alone or p.size <= 0:
            out[p.path] = str(p.size).encode()
        elif p.path in known:
            out[p.path] = known[p.path]
        else:
            left -= i >= len(parts)
            if left >= 0:
                wanted.append(p)
    ahead = _of_store(wanted, s) if is_url(s.root) else {}
    for p in wanted:
        if (pages := _read(p, s, ahead.get(p.path))) is not None:
            out[p.path] = known[p.path] = pages
    return out


def equal(a: Part, b: Part, s: Session) -> bool:
    """Whether two files of one size have the same bytes, by comparing them until they differ.

    When the budget ends first, both count as unread. A link to another file is no copy: somebody meant it.
    """
    try:
        with opened(a.path) as one, opened(b.path) as other:
            if one.size != other.size or (one.stat.st_dev, one.stat.st_ino) == (
                other.stat.st_dev,
                other.stat.st_ino,
            ):
                return False
            return _same_bytes(_From(one, a, 0), _From(other, b, 0), one.size, s)
    except (OSError, ShortRead) as e:
        return _not_compared(a, b, e, s)


def of_other_models(a: Part, b: Part, s: Session) -> bool:
    """Whether two files hold other weights, as far as the beginnings of their tensors tell. What only one of
    the two has beside all that the other has (an optimizer's state) makes no other model.
    """
    of_a, of_b = _weights(a, s), _weights(b, s)
    both = [(t, of_b[name]) for name, t in of_a.items() if name in of_b]
    if not (of_a and of_b):
        return False
    if len(both) < min(len(of_a), len(of_b)) or any(_kind(t) != _kind(u) for t, u in both):
        return True
    pairs = [(t, u) for t, u in both if _comparable(t, u)]
    every = len(pairs) // _ASKED + 1 if is_url(s.root) else 1
    try:
        with opened(a.path) as one, opened(b.path) as other:
            return any(_begun(one, t) != _begun(other, u) for t, u in pairs[::every])
    except (OSError, ShortRead) as e:
        return _not_compared(a, b, e, s)


def _weights(p: Part, s: Session) -> dict[str, Tensor]:
    """What training changes: no counters or scores, which are scalars, and no random numbers."""
    tensors = s.inspect(p.path, Level.STRUCTURE)[1].tensors
    return {t.name: t for t in tensors if t.shape and "float" in t.dtype}


def _begun(source: Source, t: Tensor) -> bytes:
    return source.read(t.offset or 0, min(t.nbytes, _SAMPLE))


def _comparable(t: Tensor, u: Tensor) -> bool:
    placed = None not in (t.offset, u.offset) and not (t.pieces or u.pieces)
    return placed and _kind(t) == _kind(u)


def _kind(t: Tensor) -> tuple[str, tuple[int, ...], int]:
    return t.dtype, t.shape, t.nbytes


class _From(NamedTuple):
    """Bytes of an open file, from one of them on."""

    source: Source
    part: Part
    begin: int

    def read(self, at: int, length: int) -> bytes:
        return self.source.read(self.begin + at, length)


def _same_bytes(a: _From, b: _From, length: int, s: Session) -> bool:
    """Raises ShortRead where one of the files ends before them."""
    for at in range(0, length, _BLOCK):
        n = min(_BLOCK, length - at)
        if a.read(at, n) != b.read(at, n):
            return False
        if s.reader.spent:
            s.reader.unread.update({x.part.path: x.part.size for x in (a, b)})
            return False
    return True


def _not_compared(a: Part, b: Part, e: OSError | ShortRead, s: Session) -> bool:
    s.unread.update(
        dict.fromkeys((a.path, b.path), f"cannot be compared: {getattr(e, 'strerror', None) or e}")
    )
    return False


class _Unknown(Exception):
    """No earlier run has kept it."""


def _of_store(parts: Sequence[Part], s: Session) -> dict[str, Future[tuple[bytes, Identity | None]]]:
    """What no earlier run has kept of files in a store, asked for many at a time."""
    from ckpt_tools.reading.prefetch import FILES_OF_STORE
    from ckpt_tools.storage.threads import Threads

    def unknown() -> tuple[bytes, Identity | None]:
        raise _Unknown

    missing = list[Part]()
    for p in parts:
        try:
            s.reader.keep(p.path, _QUESTION, unknown)
        except _Unknown:
            missing.append(p)
    pool = Threads(s.options.jobs or FILES_OF_STORE)
    asked = {p.path: pool.submit(_digests, p.path) for p in missing}
    for future in asked.values():
        future.exception()  # waits; who asks for the result meets it
    pool.close(wait=False)
    return asked


def _read(p: Part, s: Session, ahead: Future[tuple[bytes, Identity | None]] | None) -> Pages | None:
    try:
        read = ahead.result if ahead is not None else partial(_digests, p.path)
        pages = s.reader.keep(p.path, _QUESTION, read)
    except (OSError, ShortRead) as e:
        s.unread[p.path] = f"cannot be compared with others: {getattr(e, 'strerror', None) or e}"
        return None
    return pages


def _ranges(size: int) -> list[tuple[int, int]]:
    """Where the pages begin, and how long they are."""
    if size <= _SMALL:
        quarter = -(-size // 4)
        return [(at, min(quarter, size - at)) for at in (min(quarter * i, size) for i in range(4))]
    return [(min(size * part // 8, size - _SAMPLE), _SAMPLE) for part in _AT]


def _digests(path: str) -> tuple[bytes, Identity | None]:
    """Those of the pages, one after the other."""
    import xxhash

    with opened(path) as source:
        pages = [xxhash.xxh3_64_digest(source.read(*where)) for where in _ranges(source.size)]
        return b"".join(pages), source.identity()
