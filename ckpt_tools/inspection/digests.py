"""Digests: of tensors, XXH3-128 over each tensor's bytes as the file holds them, so that equal state is known
as such wherever it lies; and of files.

Neither the name, the type, the shape nor the file's format goes into a tensor's: it is what ``xxhsum -H2``
says of the bytes alone.
A file's is that of its chunks (checksum/sums.py).
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import xxhash

from ckpt_tools.checksum import Progress, digests
from ckpt_tools.checksum.sums import chunks, join_digests
from ckpt_tools.formats import Anatomy
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import OpenFile, Source, opened

SHARED = 4
"""Bytes digested at most, in sizes of the file: only a hostile one has many views of one storage."""

PAGE = 4096
_AT = (2, 4, 6, 8)
"""Where pages lie, in eighths of the file: at its end, where archives keep their checksums, and between."""
_SMALL = 1 << 16
"""Of files up to this size all is read, in quarters: all that differs may lie between four pages."""
PAGES = f"pages {PAGE} {_AT}, all of {_SMALL}"
"""What ``page_digests`` says, for those who keep it."""
Runs = tuple[tuple[int, int], ...]
"""(offset, nbytes) of bytes in the file, in the order of the tensor's elements."""


def runs(tensor: Tensor, size: int) -> Runs | None:
    """Return where the bytes of a tensor lie; None when that is not known, or partly outside."""
    if 0 in tensor.shape:
        return ()
    if tensor.offset is None or tensor.nbytes <= 0:
        return None
    out = tensor.pieces or ((tensor.offset, tensor.nbytes),)
    return out if all(n > 0 and at >= 0 and at + n <= size for at, n in out) else None


def placed(tensors: Iterable[Tensor], size: int) -> dict[str, Runs]:
    """Map names to where their bytes lie, if that is known; those of one name count as one."""
    by_name: dict[str, list[Runs | None]] = defaultdict(list)
    for t in tensors:
        by_name[t.name].append(runs(t, size))
    return {
        name: tuple(r for parts in found if parts for r in parts)
        for name, found in by_name.items()
        if None not in found
    }


def page_digests(source: Source) -> bytes:
    """Return digests of four pages, or of the quarters of a small file. Raises ShortRead and OSError."""
    size = source.size
    quarter = -(-size // 4)
    if size <= _SMALL:
        begins = (min(quarter * i, size) for i in range(4))
        ranges = [(at, min(quarter, size - at)) for at in begins]
    else:
        ranges = [(min(size * eighths // 8, size - PAGE), PAGE) for eighths in _AT]
    return b"".join(xxhash.xxh3_64_digest(source.read(*where)) for where in ranges)


def tensor_digests(
    path: str, anatomy: Anatomy, progress: Progress | None = None, *, jobs: int = 0, io: str = "auto"
) -> dict[str, str]:
    """Name -> digest (32 hexadecimal digits) of every tensor of the file whose bytes have a known place in
    it.

    Reads each byte of a tensor once, in file order, and bytes that several tensors share exactly once for all
    of them; several tensors at a time, each by one of ``jobs`` threads (0: one per core), as ``io`` says (see
    ``storage.opened``); memory does not grow with the file. Expanded tensors are digested as they are stored,
    strided ones (whose bytes lie among others') are left out, as are those that lie outside the file or are
    not in it.
    ``progress`` is called from any thread with the number of bytes just read. Raises OSError (ESTALE when the
    file changed meanwhile) and ShortRead.
    """
    with opened(path, io) as source:
        found = digests_of(source, anatomy.tensors, progress, jobs=jobs)
        _unchanged(source)
        return found


def file_digest(path: str, progress: Progress | None = None, *, jobs: int = 0, io: str = "auto") -> str:
    """The digest of a file (32 hexadecimal digits), by ``jobs`` threads: equal for equal bytes, but not what
    ``xxhsum`` says of the whole. Raises as ``tensor_digests`` does.
    """
    with opened(path, io) as source:
        wanted = [((c.offset, c.length),) for c in chunks(source.size)]
        found = digests(source, wanted, jobs=jobs, progress=progress)
        _unchanged(source)
        return join_digests(source.size, [d.hex() for d in found])


def digests_of(
    source: Source, tensors: Sequence[Tensor], progress: Progress | None = None, *, jobs: int = 0
) -> dict[str, str]:
    """As ``tensor_digests``, of tensors in an open file."""
    where = placed(tensors, source.size)
    names: Mapping[Runs, list[str]] = defaultdict(list)
    for name, at in where.items():
        names[at].append(name)
    left, wanted = SHARED * source.size, list[Runs]()
    for at in sorted(names):
        left -= sum(n for _, n in at)
        if left < 0:
            break
        wanted.append(at)
    done = zip(wanted, digests(source, wanted, jobs=jobs, progress=progress), strict=True)
    found = {name: digest.hex() for at, digest in done for name in names[at]}
    return {name: found[name] for name in where if name in found}


def _unchanged(source: OpenFile) -> None:
    if source.changed():
        why = "size or modification time changed while the file was read"
        raise OSError(errno.ESTALE, why, os.path.basename(source.path))
