"""Digests: of tensors, XXH3-128 over each tensor's bytes as the file holds them, so that equal state is known
as such wherever it lies; and of files.

Neither the name, the type, the shape nor the file's format goes into a tensor's: it is what ``xxhsum -H2``
says of the bytes alone.
A file's is that of its chunks (checksum/chunks.py).
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ckpt_tools.checksum import Progress, digests
from ckpt_tools.checksum.chunks import chunks, whole
from ckpt_tools.formats import Anatomy
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.storage import OpenFile, Source, opened

SHARED = 4
"""Bytes digested at most, as a multiple of the file's size: views of one storage overlap, but only a hostile
file has many.
"""

Runs = tuple[tuple[int, int], ...]
"""(offset, nbytes) of bytes in the file, in the order of the tensor's elements."""


def runs(tensor: Tensor, size: int) -> Runs | None:
    """Where the bytes of a tensor lie in a file of ``size`` bytes; None when that is not known, or partly
    outside.
    """
    if 0 in tensor.shape:
        return ()
    if tensor.offset is None or tensor.nbytes <= 0:
        return None
    out = tensor.pieces or ((tensor.offset, tensor.nbytes),)
    return out if all(n > 0 and at >= 0 and at + n <= size for at, n in out) else None


def placed(tensors: Iterable[Tensor], size: int) -> dict[str, Runs]:
    """Name -> where its bytes lie, for the tensors whose place is known. Those of one name count as one, in
    file order.
    """
    by_name: dict[str, list[Runs | None]] = defaultdict(list)
    for t in tensors:
        by_name[t.name].append(runs(t, size))
    return {
        name: tuple(r for parts in found if parts for r in parts)
        for name, found in by_name.items()
        if None not in found
    }


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


class Chunks(NamedTuple):
    """A file of ``size`` bytes by the digests of its chunks, 32 hexadecimal digits each."""

    size: int
    digests: tuple[str, ...]

    @property
    def digest(self) -> str:
        """That of the file, from those of its chunks."""
        return whole(self.size, self.digests)


def file_chunks(path: str, progress: Progress | None = None, *, jobs: int = 0, io: str = "auto") -> Chunks:
    """Digests of all bytes of a file, by ``jobs`` threads at a time. Raises as ``tensor_digests`` does."""
    with opened(path, io) as source:
        wanted = [((c.offset, c.length),) for c in chunks(source.size)]
        found = digests(source, wanted, jobs=jobs, progress=progress)
        _unchanged(source)
        return Chunks(source.size, tuple(d.hex() for d in found))


def file_digest(path: str, progress: Progress | None = None, *, jobs: int = 0, io: str = "auto") -> str:
    """The digest of a file (32 hexadecimal digits): equal for equal bytes, but not what ``xxhsum`` says of
    the whole. As ``file_chunks``.
    """
    return file_chunks(path, progress, jobs=jobs, io=io).digest


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
        raise OSError(
            errno.ESTALE,
            "size or modification time changed while the file was read",
            os.path.basename(source.path),
        )
