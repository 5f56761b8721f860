"""Digests of tensors and files. The digest of a tensor is the XXH3-128 of its bytes as the file holds them:
equal state has equal digests wherever it lies.

Neither the name, the type, the shape nor the file's format goes into the digest of a tensor: ``xxhsum -H2``
gives the same for the bytes alone. The digest of a file follows from those of its chunks (checksum/sums.py).
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import xxhash

from ckpt_tools.checksum import Progress
from ckpt_tools.checksum.compare import digests
from ckpt_tools.checksum.sums import chunks, join_digests
from ckpt_tools.formats import Anatomy
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import OpenFile, Source, opened

SHARED = 4
"""The bytes digested are at most this many times the file's size: only hostile files share bytes so often."""

PAGE = 4096
_AT = (2, 4, 6, 8)
"""Where the pages lie, in eighths of the file: one at its end, where archives keep their checksums."""
_SMALL = 1 << 16
"""Files up to this size are read whole, in quarters: in them a difference may lie between four pages."""
PAGES = f"pages {PAGE} {_AT}, all of {_SMALL}"
"""The version of ``page_digests``, for callers that keep its result."""
Runs = tuple[tuple[int, int], ...]
"""(offset, nbytes) of bytes in the file, in the order of the tensor's elements."""


def runs(tensor: Tensor, size: int) -> Runs | None:
    """Return the byte ranges of a tensor; None if they are not known, or not all within ``size`` bytes."""
    if 0 in tensor.shape:
        return ()
    if tensor.offset is None or tensor.nbytes <= 0:
        return None
    out = tensor.pieces or ((tensor.offset, tensor.nbytes),)
    return out if all(n > 0 and at >= 0 and at + n <= size for at, n in out) else None


def runs_by_name(tensors: Iterable[Tensor], size: int) -> dict[str, Runs]:
    """Map tensor names to byte ranges, if these are known; tensors of one name have theirs joined."""
    by_name: dict[str, list[Runs | None]] = defaultdict(list)
    for t in tensors:
        by_name[t.name].append(runs(t, size))
    return {
        name: tuple(r for one in runs_of if one for r in one)
        for name, runs_of in by_name.items()
        if None not in runs_of
    }


def page_digests(source: Source) -> bytes:
    """Return four XXH3-64, joined: of pages, or a small file's quarters. Raises ShortRead and OSError."""
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
    """Return name -> digest (32 hexadecimal digits) of every tensor with a known place in the file.

    Reads each byte of a tensor once, in file order; tensors with exactly the same bytes share one reading.
    Each of ``jobs`` threads (0: one per core) reads one tensor at a time, as ``io`` says (see
    ``storage.opened``); memory does not grow with the file. Expanded tensors are digested as they are stored.
    Left out are strided tensors (other bytes lie between theirs), and tensors outside the file.
    ``progress`` is called from any thread with the number of bytes just read. Raises OSError (ESTALE if the
    file changed meanwhile) and ShortRead.
    """
    with opened(path, io) as source:
        found = digests_of(source, anatomy.tensors, progress, jobs=jobs)
        _require_unchanged(source)
        return found


def file_digest(path: str, progress: Progress | None = None, *, jobs: int = 0, io: str = "auto") -> str:
    """Return the digest of a file (32 hexadecimal digits), read by ``jobs`` threads: that of its chunks, not
    the one that ``xxhsum`` gives for the whole. Raises as ``tensor_digests`` does.
    """
    with opened(path, io) as source:
        ranges = [((c.offset, c.length),) for c in chunks(source.size)]
        found = digests(source, ranges, jobs=jobs, progress=progress)
        _require_unchanged(source)
        return join_digests(source.size, [d.hex() for d in found])


def digests_of(
    source: Source, tensors: Sequence[Tensor], progress: Progress | None = None, *, jobs: int = 0
) -> dict[str, str]:
    """Return what ``tensor_digests`` does, for some tensors of an open file."""
    where = runs_by_name(tensors, source.size)
    names: Mapping[Runs, list[str]] = defaultdict(list)
    for name, at in where.items():
        names[at].append(name)
    budget, selected = SHARED * source.size, list[Runs]()
    for at in sorted(names):
        budget -= sum(n for _, n in at)
        if budget < 0:
            break
        selected.append(at)
    done = zip(selected, digests(source, selected, jobs=jobs, progress=progress), strict=True)
    found = {name: digest.hex() for at, digest in done for name in names[at]}
    return {name: found[name] for name in where if name in found}


def _require_unchanged(source: OpenFile) -> None:
    if source.changed():
        why = "size or modification time changed while the file was read"
        raise OSError(errno.ESTALE, why, os.path.basename(source.path))
