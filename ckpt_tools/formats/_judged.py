"""Reads pickles from a file together with the verdict on what they name; the shared first step of every format that holds a pickle."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from ckpt_tools.codes import finding
from ckpt_tools.formats._base import Anatomy, Damage
from ckpt_tools.formats._globals import judge
from ckpt_tools.formats._pickle import LIMIT, Global, NeedMore, Pickled, read_pickle
from ckpt_tools.model import Finding
from ckpt_tools.storage import Source

_FIRST = 64 * 1024
_LOAD_FROM_BYTES = ("torch.storage", "_load_from_bytes")
_MANY = 32


def read_judged(
    source: Source, start: int, stop: int, anatomy: Anatomy, *, whole: bool = False, harmless: tuple[str, ...] = (), first: int = _FIRST
) -> Generator[Finding, None, Pickled]:
    """Read the pickle that begins at ``start`` and may use the file up to ``stop``; its ``end`` is an offset of the file. Raises Damage.

    ``whole`` reads all bytes at once; otherwise ``first`` bytes are read first, and four times as much as long as the pickle goes on.
    What the pickle names is judged also when it is damaged further on.
    """
    seen: dict[Global, int] = {}
    n = min(stop - start, LIMIT if whole else first)
    data = source.read(start, n)
    while True:
        try:
            pickled = read_pickle(data, base=start, seen=seen)
            break
        except NeedMore as e:
            if start + e.upto <= stop and e.upto <= LIMIT:
                n = min(stop - start, LIMIT, max(4 * len(data), e.upto))
                data += source.read(start + len(data), n - len(data))
                continue
            yield from _judged(seen, anatomy, harmless)
            if start + e.upto <= stop:
                raise Damage("too-complex", f"the pickle has more than {LIMIT:,} bytes; the rest was not read", start + LIMIT) from None
            if stop == source.size:
                raise Damage("truncated", "the file ends before its pickle does", stop) from None
            raise
        except Damage:
            yield from _judged(seen, anatomy, harmless)
            raise
    yield from _nested(pickled, seen, 3)
    yield from _judged(seen, anatomy, harmless)
    return pickled._replace(end=start + pickled.end)


def _judged(seen: dict[Global, int], anatomy: Anatomy, harmless: tuple[str, ...]) -> Iterator[Finding]:
    known = set(anatomy.globals)
    anatomy.globals.extend(n for n in (f"{g.module[:256]} {g.name[:256]}" for g in seen) if n not in known)
    yield from judge(seen, harmless=harmless)


def _nested(pickled: Pickled, seen: dict[Global, int], depth: int) -> Iterator[Finding]:
    """Storages pickled outside torch.save hide a whole legacy file in bytes (torch/storage.py, _load_from_bytes): add what it names."""
    # Each bytes object once: a stream may hand out the same one again and again.
    hidden = list({id(c.args[0]): c for c in pickled.calls if c.func == _LOAD_FROM_BYTES and c.args and type(c.args[0]) is bytes}.values())
    for call in hidden[:_MANY] if depth else ():
        data, at = call.args[0], 0
        for p in _pickles(data, seen, call.offset):
            at = p.end
            yield from _nested(p, seen, depth - 1)
        if not at:
            yield finding("unsafe-pickle", "the pickle hides bytes for torch.load that are no legacy torch file", offset=call.offset)
    if len(hidden) > (_MANY if depth else 0):
        yield finding("too-complex", "the pickle hides more files for torch.load than are looked into", offset=hidden[-1].offset)


def _pickles(data: bytes, seen: dict[Global, int], offset: int) -> Iterable[Pickled]:
    at, found = 0, dict[Global, int]()
    try:
        for _ in range(5):
            pickled = read_pickle(data, at, seen=found)
            at = pickled.end
            yield pickled
    except Damage:
        pass
    for name in found:  # offsets inside the hidden bytes would mislead: give that of the call
        seen.setdefault(name, offset)
