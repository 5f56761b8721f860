"""The checksum that a store keeps of an object whose content is read: worked out in the same pass, and
compared. It costs a metadata request, two where the object was uploaded in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckpt_tools.checksum import Outcome, Progress, Sum, mismatches
from ckpt_tools.checksum.store_sums import WorkedOut, to_work_out, told_of_whole
from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.store_checksum import NAMES
from ckpt_tools.storage.stores.source import StoreSource
from ckpt_tools.storage.stores.store import Replaced

if TYPE_CHECKING:
    from ckpt_tools.storage import OpenFile


class KeptChecksum:
    """``sums`` are those to read: those given, and what the store's checksum takes."""

    def __init__(self, given: Sequence[Sum], out: WorkedOut) -> None:
        self._out, self.sums = out, [*given, *out.sums]

    def taken(self, told: Iterable[tuple[Sum, Outcome]]) -> Iterator[tuple[Sum, Outcome]]:
        """What differs of those given."""
        return self._out.taken(told)

    @property
    def same(self) -> bool:
        """Whether all bytes were read, and are those that the store says it has."""
        return self._out.value == self._out.of.value

    def findings(self) -> Iterator[Finding]:
        """What to say where the bytes are not those that the store says it has; nothing where the read was
        stopped before the end.
        """
        of, value = self._out.of, self._out.value
        if value is None or value == of.value:
            return
        name, first = NAMES[of.algorithm], self._out.first_wrong
        if first is not None:
            what = f"{name} of bytes {first.offset:,} to {first.offset + first.length - 1:,}"
            yield finding(
                "store-checksum-mismatch",
                f"{what}, a part of its upload, is not what the store says",
                offset=first.offset,
            )
            return
        kind = name if of.whole else f"{name} of the {len(of.parts):,} parts"
        yield finding(
            "store-checksum-mismatch", f"{kind} is {value.hex()}, the store says {of.value.hex()}", offset=0
        )


def kept_checksum(source: OpenFile, given: Sequence[Sum]) -> KeptChecksum | None:
    """None where the store keeps none that the content can be compared with, or does not tell it. Raises
    Replaced where there is another object by now.
    """
    if not isinstance(source, StoreSource):
        return None
    try:
        told = source.kept_checksums()
    except Replaced:
        raise
    except OSError:  # the content is judged by what is in it
        return None
    of = to_work_out(told_of_whole(told), to_prove=False)
    return None if of is None else KeptChecksum(given, WorkedOut(of, source.size, given))


def what_came(url: str, progress: Progress | None = None) -> Finding | None:
    """What to say where all bytes of an object, read for this, are not those that the store says it has; None
    where they are, and where it keeps nothing to compare them with. Raises Stopped, and OSError.

    An ETag that may be an MD5 counts, unless this store has shown that its ETags are none: who looks broken
    and may be good is not known.
    """
    with StoreSource(url) as source:
        try:
            told = told_of_whole(source.kept_checksums())
        except Replaced:
            raise
        except OSError:  # as above
            return None
        of = to_work_out(told, to_prove=False)
        if of is None and getattr(source.store, "digests", None) is not False:
            of = to_work_out(told, to_prove=True)
        if of is None:
            return None
        kept = KeptChecksum((), WorkedOut(of, source.size, alone=True))
        for _ in kept.taken(mismatches(source, kept.sums, progress=progress)):
            raise AssertionError("nothing is stored that could differ")
        return next(kept.findings(), None)
