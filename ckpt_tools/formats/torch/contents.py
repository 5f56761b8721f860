"""What the pickle of a torch file says, read once for files whose pickles are equal byte for byte: the ranks
of a job, and its saves, differ in their tensors, and seldom in what is said about them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from functools import cached_property, lru_cache

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.pickles.scalars import scalars
from ckpt_tools.formats.pickles.stubs import Pickled
from ckpt_tools.formats.torch.tensors import Place, Storage, storages, tensors
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import BytesSource, Source

_SMALL = 256 << 10
"""Bytes of a pickle that is kept, and of what may lie before it, at most."""
_KEPT = 4
"""Pickles kept at a time: the kinds of files that one directory holds."""
_FRAMED = 4
"""The first protocol that puts pickles into frames."""


class Contents:
    """A pickle with its storages and tensors. One that is ``kept`` for equal files has all that its reading
    told; whoever is given it leaves it as it is.
    """

    def __init__(self, pickled: Pickled, kept: tuple[Anatomy, tuple[Finding, ...]] | None = None) -> None:
        self.pickled, self.kept = pickled, kept
        self._storages = None if kept is None else tuple(storages(pickled))
        self._listed: tuple[Mapping[str, Place], str, list[Tensor], tuple[Finding, ...]] | None = None

    def storages(self) -> Iterator[Storage | Finding]:
        """Every storage once per key, and a finding for each contradiction; asked for before the tensors."""
        return storages(self.pickled) if self._storages is None else iter(self._storages)

    def tensors(self, places: Mapping[str, Place], anatomy: Anatomy, root: str) -> Iterator[Finding]:
        """List the tensors, with what is wrong with them where the storages lie at ``places``."""
        if self.kept is None:
            yield from tensors(self.pickled, places, anatomy, root)
            return
        listed = self._listed
        if listed is None or listed[:2] != (places, root):  # equal files have their storages at equal places
            inner = Anatomy()
            findings = tuple(tensors(self.pickled, places, inner, root))
            listed = self._listed = places, root, inner.tensors, findings
        anatomy.tensors += listed[2]
        yield from listed[3]

    @cached_property
    def scalars(self) -> Anatomy:
        """The scalars of its value, and the keys of its top level."""
        scalars(self.pickled.value, anatomy := Anatomy())
        return anatomy


def read_contents(
    source: Source, start: int, stop: int, anatomy: Anatomy, harmless: tuple[str, ...] = ()
) -> Generator[Finding, None, Contents]:
    """Read a pickle as ``read_judged`` does, unless an equal one at this place is known. Raises Damage."""
    known = None
    plain = not anatomy.globals and not anatomy.depth and anatomy.regions is None
    if start <= _SMALL and stop - start <= _SMALL and plain:
        known = _read_known(source.read(start, stop - start), start, harmless)
    if known is None or known.kept is None:
        return Contents((yield from _read(source, start, stop, anatomy, harmless)))
    told, findings = known.kept
    anatomy.globals += told.globals
    anatomy.unlisted += told.unlisted
    yield from findings
    return known


def _read(
    source: Source, start: int, stop: int, anatomy: Anatomy, harmless: tuple[str, ...]
) -> Generator[Finding, None, Pickled]:
    pickled = yield from read_judged(source, start, stop, anatomy, whole=True, harmless=harmless)
    yield from too_new(pickled, start)
    return pickled


def too_new(pickled: Pickled, start: int) -> Iterator[Finding]:
    """What to say of a protocol that torch/_weights_only_unpickler.py does not read (FRAME)."""
    if pickled.protocol >= _FRAMED:
        text = f"its protocol is {pickled.protocol}, and torch.load(weights_only=True) reads protocol 2"
        yield finding("needs-trust", text, offset=start)


@lru_cache(_KEPT)
def _read_known(data: bytes, start: int, harmless: tuple[str, ...]) -> Contents | None:
    """What a pickle at ``start`` says; None for a damaged one, which tells on the way to its damage."""
    anatomy, findings = Anatomy(), list[Finding]()
    source = BytesSource(bytes(start) + data + b"\0")  # what lies around it in its file is not read
    reading = _read(source, start, start + len(data), anatomy, harmless)
    try:
        while True:
            findings.append(next(reading))
    except StopIteration as end:
        return Contents(end.value, (anatomy, tuple(findings)))
    except Damage:
        return None


forget = _read_known.cache_clear
"""Read every pickle anew."""
