"""Digests of tensors: XXH3-128 over each tensor's bytes as the file holds them, so that equal state is known as such wherever it lies.

Neither the name, the type, the shape nor the file's format goes in: the digest is what ``xxhsum -H2`` says of the bytes alone.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ckpt_tools.formats import Anatomy
from ckpt_tools.model import Tensor
from ckpt_tools.storage import LocalSource, Source

CHUNK = 512 * 1024
"""Bytes per read into one reused buffer: they stay in the L2 cache for the digest."""
SHARED = 4
"""Bytes digested at most, as a multiple of the file's size: views of one storage overlap, but only a hostile file has many."""

Progress = Callable[[int], None]
"""Called with the number of bytes just read."""

Runs = tuple[tuple[int, int], ...]
"""(offset, nbytes) of bytes in the file, in the order of the tensor's elements."""


def runs(tensor: Tensor, size: int) -> Runs | None:
    """Where the bytes of a tensor lie in a file of ``size`` bytes; None when that is not known, or partly outside."""
    if 0 in tensor.shape:
        return ()
    if tensor.offset is None or tensor.nbytes <= 0:
        return None
    out = tensor.pieces or ((tensor.offset, tensor.nbytes),)
    return out if all(n > 0 and at >= 0 and at + n <= size for at, n in out) else None


def placed(tensors: Iterable[Tensor], size: int) -> dict[str, Runs]:
    """Name -> where its bytes lie, for the tensors whose place is known. Those of one name count as one, in file order."""
    by_name: dict[str, list[Runs | None]] = defaultdict(list)
    for t in tensors:
        by_name[t.name].append(runs(t, size))
    return {name: tuple(r for parts in found if parts for r in parts) for name, found in by_name.items() if None not in found}


def tensor_digests(path: str, anatomy: Anatomy, progress: Progress | None = None) -> dict[str, str]:
    """Name -> digest (32 hexadecimal digits) of every tensor of the file whose bytes have a known place in it.

    Reads each byte of a tensor once, in file order, and bytes that several tensors share exactly once for all of them; memory does not grow with
    the file. Expanded tensors are digested as they are stored, strided ones (whose bytes lie among others') are left out, as are those that
    lie outside the file or are not in it. Raises OSError (ESTALE when the file changed meanwhile) and ShortRead.
    """
    with LocalSource(path) as source:
        digests = digests_of(source, anatomy.tensors, progress)
        _unchanged(source)
        return digests


def file_digest(path: str, progress: Progress | None = None) -> str:
    """Digest of all bytes of a file: for what holds no tensor with a place. Raises as ``tensor_digests`` does."""
    with LocalSource(path) as source:
        found = _digest(source, ((0, source.size),), memoryview(bytearray(CHUNK)), progress)
        _unchanged(source)
        return found


def digests_of(source: Source, tensors: Sequence[Tensor], progress: Progress | None = None) -> dict[str, str]:
    """As ``tensor_digests``, of tensors in an open file."""
    where = placed(tensors, source.size)
    names: Mapping[Runs, list[str]] = defaultdict(list)
    for name, at in where.items():
        names[at].append(name)
    buffer, left, found = memoryview(bytearray(CHUNK)), SHARED * source.size, dict[str, str]()
    for at in sorted(names):
        left -= sum(n for _, n in at)
        if left < 0:
            break
        found.update(dict.fromkeys(names[at], _digest(source, at, buffer, progress)))
    return {name: found[name] for name in where if name in found}


def _digest(source: Source, at: Runs, buffer: memoryview, progress: Progress | None) -> str:
    import xxhash

    digest = xxhash.xxh3_128()
    for offset, length in _chunks(at):
        part = buffer[:length]
        source.readinto(offset, part)
        digest.update(part)
        if progress:
            progress(length)
    return digest.hexdigest()


def _chunks(at: Runs) -> Iterator[tuple[int, int]]:
    for start, n in at:
        for offset in range(start, start + n, CHUNK):
            yield offset, min(CHUNK, start + n - offset)


def _unchanged(source: LocalSource) -> None:
    if source.changed():
        raise OSError(errno.ESTALE, "size or modification time changed while the file was read", os.path.basename(source.path))
