"""The contents of a torch file's pickle, read once for all files whose pickles are equal byte for byte: files
of a job's ranks and saves differ in their tensors' elements, seldom in their pickles.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from functools import cached_property, lru_cache

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.pickles.scalars import add_scalars
from ckpt_tools.formats.pickles.stubs import Pickled
from ckpt_tools.formats.torch.tensors import FileRange, Storage, add_tensors, list_storages
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import BytesSource, Source

_SMALL = 256 << 10
"""The most bytes of a pickle that is remembered, and the most bytes before it in its file."""
_REMEMBERED = 4
"""Pickles remembered at a time: the kinds of files that one directory holds."""
_FRAMED = 4
"""The first protocol that puts pickles into frames."""


class Contents:
    """A pickle with its storages and tensors. If it is remembered for equal files, ``results`` has the
    anatomy and the findings of its reading; all its users share it, and must not change it.
    """

    def __init__(self, pickled: Pickled, results: tuple[Anatomy, tuple[Finding, ...]] | None = None) -> None:
        self.pickled, self.results = pickled, results
        self._storages = None if results is None else tuple(list_storages(pickled))
        self._listed: tuple[Mapping[str, FileRange], str, list[Tensor], tuple[Finding, ...]] | None = None

    def list_storages(self) -> Iterator[Storage | Finding]:
        """Yield each storage once, and a finding for each contradiction; call it before ``add_tensors``."""
        return list_storages(self.pickled) if self._storages is None else iter(self._storages)

    def add_tensors(self, ranges: Mapping[str, FileRange], anatomy: Anatomy, root: str) -> Iterator[Finding]:
        """Add the tensors to ``anatomy``; yield findings if they do not fit the storages at ``ranges``."""
        if self.results is None:
            yield from add_tensors(self.pickled, ranges, anatomy, root)
            return
        listed = self._listed
        # an equal file whose storages lie at the same places has equal tensors
        if listed is None or listed[:2] != (ranges, root):
            inner = Anatomy()
            findings = tuple(add_tensors(self.pickled, ranges, inner, root))
            listed = self._listed = ranges, root, inner.tensors, findings
        anatomy.tensors += listed[2]
        yield from listed[3]

    @cached_property
    def scalars(self) -> Anatomy:
        """An anatomy with nothing but the scalars of the value and the keys of its top level."""
        add_scalars(self.pickled.value, anatomy := Anatomy())
        return anatomy


def read_contents(
    source: Source, start: int, stop: int, anatomy: Anatomy, harmless: tuple[str, ...]
) -> Generator[Finding, None, Contents]:
    """Read a pickle as ``read_judged`` does, or take an equal one that is remembered. Raise Damage."""
    remembered = None
    plain = not anatomy.globals and not anatomy.depth and anatomy.regions is None
    if start <= _SMALL and stop - start <= _SMALL and plain:
        remembered = _read_remembered(source.read(start, stop - start), start, harmless)
    if remembered is None or remembered.results is None:
        return Contents((yield from _read_and_judge(source, start, stop, anatomy, harmless)))
    names, findings = remembered.results
    anatomy.globals += names.globals
    anatomy.unlisted += names.unlisted
    yield from findings
    return remembered


def _read_and_judge(
    source: Source, start: int, stop: int, anatomy: Anatomy, harmless: tuple[str, ...]
) -> Generator[Finding, None, Pickled]:
    """Read a pickle of a file of torch's, and judge the names in it and its protocol. Raise Damage."""
    pickled = yield from read_judged(source, start, stop, anatomy, whole=True, harmless=harmless)
    yield from judge_protocol(pickled, start)
    return pickled


def judge_protocol(pickled: Pickled, start: int) -> Iterator[Finding]:
    """Yield ``needs-trust`` for a protocol with frames: torch/_weights_only_unpickler.py reads none."""
    if pickled.protocol >= _FRAMED:
        text = f"its protocol is {pickled.protocol}, and torch.load(weights_only=True) reads protocol 2"
        yield finding("needs-trust", text, offset=start)


@lru_cache(_REMEMBERED)
def _read_remembered(data: bytes, start: int, harmless: tuple[str, ...]) -> Contents | None:
    """Return the contents of a pickle at ``start``, None for a damaged one, which is not remembered."""
    anatomy, findings = Anatomy(), list[Finding]()
    source = BytesSource(bytes(start) + data + b"\0")  # stands for the file: only the pickle is read
    reading = _read_and_judge(source, start, start + len(data), anatomy, harmless)
    try:
        while True:
            findings.append(next(reading))
    except StopIteration as end:
        return Contents(end.value, (anatomy, tuple(findings)))
    except Damage:
        return None


forget = _read_remembered.cache_clear
"""Forget all remembered pickles: each is read anew."""
