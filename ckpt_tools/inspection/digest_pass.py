"""Verify a file at level content and digest it for a seal, in one pass over its bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools import formats
from ckpt_tools.checksum import Extent, Progress, Sum
from ckpt_tools.checksum.compare import Computed
from ckpt_tools.checksum.store_sums import combine_crcs
from ckpt_tools.checksum.sums import ASKED, ChunkDigests, chunks, join_digests
from ckpt_tools.errors import UsageError
from ckpt_tools.formats import Claim
from ckpt_tools.formats.seals.document import find_hash
from ckpt_tools.inspection.check import Inspection, examine
from ckpt_tools.inspection.digests import tensor_digests
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.model.seal import SealedFile

_COUNTER = re.compile(
    r"(?:.*[._])?(?:global_?step|steps?|step_num|epoch(?:_num)?|iteration|iter(?:_num)?|num_updates"
    r"|optimizer_step|batch_idx|current_step|consumed_(?:train_)?samples|\w+_timestamp_nsecs)"
)
"""Names of metadata numbers that differ from save to save."""
_COUNTERS = 16  # counters that a seal keeps of a file, at most
_XXH3 = 16  # bytes of an XXH3-128
_CRC = 4  # bytes of a CRC-32 or CRC-32C


class DigestPass(NamedTuple):
    """The options of a pass: the seal's ``algorithm``, further ones (``also``), and if ``tensors`` count."""

    algorithm: str
    also: tuple[str, ...] = ()
    tensors: bool = False
    jobs: int = 0
    io: str = "auto"
    require: tuple[str, ...] = ()
    key: bytes | None = None
    progress: Progress | None = None

    def read(
        self,
        path: str,
        name: str,
        expect: Sequence[str] = (),
        claims: Sequence[Claim] = (),
        *,
        as_bytes: bool = False,
    ) -> tuple[SealedFile | None, Sequence[Finding]]:
        """Return the entry in a seal of the file that it calls ``name``; None, and the findings, if the file
        is damaged, in doubt or not read to its end. ``as_bytes``: whatever its format. Raises UsageError if
        the package of an algorithm is missing, and OSError.
        """
        # many files of other kinds begin like JSON
        as_bytes = as_bytes or not (expect or claims or formats.names.known(os.path.basename(path)))
        report, inspection = examine(
            lambda: Inspection(
                path,
                Level.CONTENT,
                expect,
                claims,
                self.progress,
                self.require,
                self.key,
                io=self.io,
                jobs=self.jobs,
                computes=self._list_sums,
                as_bytes=as_bytes,
            )
        )
        anatomy, computed = inspection.anatomy, inspection.computed
        got = None if computed is None else computed.values
        if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN) or got is None:
            return None, report.findings
        tensors = dict[str, str]()
        if self.tensors and anatomy.tensors:
            tensors = tensor_digests(path, anatomy, self.progress, jobs=self.jobs, io=self.io)
        numbers = {
            key: value
            for key, value in report.metadata.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and _COUNTER.fullmatch(key)
        }
        counters = dict(sorted(numbers.items())[:_COUNTERS])
        return replace(self._make_entry(name, report.size, got), counters=counters, tensors=tensors), ()

    @property
    def _algorithms(self) -> list[str]:
        """The digests of the whole file, besides the one that follows from its chunks."""
        return [name for name in dict.fromkeys((self.algorithm, *self.also)) if name != "xxh3"]

    def _list_sums(self, size: int) -> Computed:
        """Return the sums of a file of ``size`` bytes: of its chunks, then of the whole by each algorithm."""
        sums = [Sum(f"chunk {e.offset}", ASKED, (e,), e.offset, hash=ChunkDigests) for e in chunks(size)]
        for name in self._algorithms:
            if (make := find_hash(name)) is None:
                hint = f"pip install 'ckpt-tools[{name}]'"
                raise UsageError(f"{name} needs a package that is not installed", hint)
            sums.append(Sum(name, ASKED, (Extent(0, size),), 0, hash=make))
        return Computed(sums)

    def _make_entry(self, name: str, size: int, got: Sequence[int | bytes]) -> SealedFile:
        """Return the entry of a file in a seal from the values of ``_list_sums``."""
        values = [v if isinstance(v, bytes) else b"" for v in got]
        lengths = [e.length for e in chunks(size)]
        rows = values[: len(lengths)]
        whole = {n: v.hex() for n, v in zip(self._algorithms, values[len(lengths) :], strict=True)}
        strong = [row[:_XXH3].hex() for row in rows]
        crcs, castagnoli = [row[_XXH3 : _XXH3 + _CRC] for row in rows], [row[-_CRC:] for row in rows]
        return SealedFile(
            path=name,
            size=size,
            digest=whole.pop(self.algorithm, "") or join_digests(size, strong),
            crc32=combine_crcs("crc32", zip(crcs, lengths, strict=True)).hex(),
            crc32c=combine_crcs("crc32c", zip(castagnoli, lengths, strict=True)).hex(),
            chunks="".join(strong),
            chunk_crc32=b"".join(crcs).hex(),
            chunk_crc32c=b"".join(castagnoli).hex(),
            also=whole,
        )
