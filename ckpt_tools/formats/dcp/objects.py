"""Objects of DCP that are no archives: plain pickles, and compressed ones. ``dcp.load`` hands each to
torch.load, which unpickles it without asking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from ckpt_tools.formats.common.decode import decompress
from ckpt_tools.formats.common.format import HEAD, Anatomy, Damage, inside
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.torch import torch_legacy
from ckpt_tools.formats.torch.legacy_magic import legacy_magic
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Level
from ckpt_tools.storage import Source

PACKED, _UNPACKED = 1 << 20, 8 << 20
"""Bytes of a compressed object, and of what it decodes into, that are looked at."""
_PICKLES = frozenset({"unsafe-pickle", "unread-pickle", "suspect-call", "needs-trust"})


def pickles(source: Source, anatomy: Anatomy, start: int, length: int) -> Iterator[Finding]:
    """What the pickles at ``start`` name: torch's old format has five,
    any other caller of pickle reads one.
    """
    if legacy_magic(source.read(start, min(HEAD, length))):
        box = Anatomy(regions=None)
        yield from told_of(inside(source, start, length, torch_legacy.FORMAT.checks[Level.STRUCTURE], box))
        anatomy.named(box)
        return
    try:
        yield from read_judged(source, start, start + length, anatomy)
    except Damage as e:
        yield e.finding


def unlikely_pickles(source: Source, anatomy: Anatomy, start: int, length: int) -> Iterator[Finding]:
    """The same of bytes that do not begin as a pickle does: that they are none is no damage."""
    box = Anatomy()
    yield from told_of(pickles(source, box, start, length))
    anatomy.named(box)


def told_of(found: Iterable[Finding], offset: int | None = None) -> Iterator[Finding]:
    """What findings say about pickles, and nothing else; ``offset`` replaces theirs."""
    for f in found:
        if f.code in _PICKLES:
            yield f if offset is None else replace(f, offset=offset)


def unpacked(data: bytes) -> bytes | None:
    """What zstd data decodes into; None where it does not, or into too much."""
    try:
        return decompress(data, _UNPACKED)
    except Damage:
        return None
