"""XXH3-128 of ranges of a Source: several at a time, each by one thread or helper."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools.checksum.compare import _share, _units
from ckpt_tools.checksum.crc import UNIT, Progress
from ckpt_tools.checksum.sums import Extent, Sum, xxh3
from ckpt_tools.checksum.work import outcomes
from ckpt_tools.storage import Source
from ckpt_tools.storage.cpus import default_jobs


def digests(
    source: Source,
    wanted: Sequence[Sequence[tuple[int, int]]],
    *,
    jobs: int = 0,
    progress: Progress | None = None,
) -> list[bytes]:
    """The digest of each of ``wanted``, which is (offset, length) of bytes that are joined in this order.
    ``jobs`` 0 means one thread per core.

    They are read in file order, in bounded memory. Raises ShortRead and OSError, and what ``progress``
    raises; no thread is left behind.
    """
    jobs = jobs or default_jobs()
    sums = [Sum("", b"", tuple(Extent(*at) for at in ranges), 0, hash=xxh3) for ranges in wanted]
    found = [b""] * len(sums)
    for u, got in outcomes(
        source,
        sums,
        _units(sums, 0, 1 << 63, UNIT),
        jobs,
        _share(source.size, jobs),
        progress=progress,
        watch=None,
    ):
        if isinstance(got, bytes):
            found[u.sum] = got
    return found
