"""torch.save's legacy format: five pickles, then each storage as a count and raw elements, checked to the
last byte. It has no checksum.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import product
from typing import Any

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, limit, make_format
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.pickles.scalars import add_scalars
from ckpt_tools.formats.torch.contents import judge_protocol
from ckpt_tools.formats.torch.tensors import (
    NUMBER,
    FileRange,
    Storage,
    add_tensors,
    check_not_tar,
    legacy_magic,
    list_storage_keys,
    list_storages,
)
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

# ---- The pickles of the legacy format that hold nothing of the user's, pickled again.
#
# A pickle has no checksum, but a known value has only one usual encoding: bytes that are one bit away from it
# are damaged. Facts: CPython Lib/pickle.py and Modules/_pickle.c (framing).

_FRAME = 64 * 1024


def encode_plain(value: Any, protocol: int) -> bytes | None:
    """Return the bytes that pickle.dump writes in protocol 2 to 5, None if they fill several frames. Only for
    plain dicts, lists, strings, bools and ints: dumps calls methods of other objects.
    """
    from pickle import dumps  # not at the top: few files are of this format

    out = dumps(value, protocol)
    return None if protocol > 3 and len(out) - 11 >= _FRAME else out  # PROTO and FRAME have 11 bytes


def compare(
    source: Source, start: int, stop: int, usual: Iterable[bytes | None], what: str, *, anatomy: Anatomy
) -> Iterator[Finding]:
    """Explain the bytes from ``start`` to ``stop``, which are ``what``: as guarded by the structure if they
    equal an encoding in ``usual``. Yield ``odd-header`` if they are one bit away from one.
    """
    data = source.read(start, stop - start)
    guard = Guard.UNPROTECTED
    for u in usual:
        if u == data:
            guard = Guard.STRUCTURE
        elif u is not None and len(u) == len(data):
            flipped = int.from_bytes(u, "big") ^ int.from_bytes(data, "big")
            if flipped.bit_count() == 1:
                at = start + len(data) - (flipped.bit_length() + 7) // 8
                yield finding("odd-header", f"{what}: one bit differs from what torch writes", offset=at)
                break
    anatomy.explain(start, stop - start, what, guard)


_PAGE, _TAIL = 4096, 256 * 1024
_PROTOCOL = 1001


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the five pickles and the storages of a file, and add its tensors to ``anatomy``. Raise Damage."""
    why = "torch's old format has no checksum: only lengths and the pickles' own structure were checked"
    yield finding("not-checksummed", why)
    yield from check_not_tar(source)
    at = yield from _read_preamble(source, anatomy)
    pickled = yield from read_judged(source, at, source.size, anatomy)
    yield from judge_protocol(pickled, at)
    own = source.read(0, 2)
    binary = own[:1] == b"\x80"
    if source.read(at, 2) != own and binary:
        yield finding("odd-header", "the object is pickled with another protocol than the rest", offset=at)
    guard = Guard.STRUCTURE if binary else Guard.UNPROTECTED
    anatomy.explain(at, 2, "the protocol of the object's pickle", guard)
    what = "the object's pickle: its opcodes, the sizes of its storages and the extents of its tensors are"
    what += " checked, not its names and numbers"
    anatomy.explain(at + 2, pickled.end - at - 2, what, Guard.UNPROTECTED)
    add_scalars(pickled.value, anatomy)
    keys = yield from read_judged(source, pickled.end, source.size, anatomy)
    storages: dict[str, Storage] = {}
    for s in list_storages(pickled):
        if isinstance(s, Storage):
            storages[s.key] = s
        else:
            yield s
    if type(keys.value) is not list or not all(type(k) is str for k in keys.value):
        raise Damage("bad-pickle", "the list of storage keys is not a list of strings", pickled.end)
    order: list[str] = keys.value
    if len(set(order)) != len(order):
        raise Damage("bad-header", "a storage is listed twice", pickled.end)
    usual = [encode_plain(order, own[1])] if own[1] in range(2, 6) else ()
    yield from compare(source, pickled.end, keys.end, usual, "the list of storage keys", anatomy=anatomy)
    for key in sorted(storages.keys() - set(order)):
        why = f"storage {key[:80]!r} is used by tensors but is not in the file"
        yield finding("missing-storage", why, offset=storages[key].offset)
    damaged = list_storage_keys(pickled) - storages.keys()
    ranges = yield from _walk_storages(source, order, storages, damaged, keys.end, anatomy=anatomy)
    if order and order[-1] in ranges:
        yield from _check_tail(source, storages[order[-1]].nbytes)
    yield from add_tensors(pickled, ranges, anatomy)


def _read_preamble(source: Source, anatomy: Anatomy) -> Generator[Finding, None, int]:
    """Check the pickles of the magic number, the protocol and the writer's system; return where they end."""
    number = yield from read_judged(source, 0, source.size, anatomy)
    protocol = yield from read_judged(source, number.end, source.size, anatomy)
    system = yield from read_judged(source, protocol.end, source.size, anatomy)
    expected = ((number.value, NUMBER), (protocol.value, _PROTOCOL))
    if any(type(value) is not int or value != wanted for value, wanted in expected):
        yield finding("bad-header", "the magic number or the protocol is not torch's", offset=0)
    if not _is_system(system.value):
        yield finding("bad-header", "the record of the system's type sizes is damaged", offset=protocol.end)
    end, what = system.end, "the magic number, the protocol and the sizes of the system's types"
    usual = list[bytes]()
    for pickled_by, long in product(range(2, 6), (8, 4)):
        sizes = {"short": 2, "int": 4, "long": long}
        info = {"protocol_version": _PROTOCOL, "little_endian": True, "type_sizes": sizes}
        usual.append(b"".join(encode_plain(v, pickled_by) or b"" for v in (NUMBER, _PROTOCOL, info)))
    usual = [u for u in usual if len(u) == end]
    if not usual:  # pickled in a protocol that torch does not use itself
        anatomy.explain(0, end, what, Guard.UNPROTECTED)
        return end
    order = usual[0].index(b"\x88")
    yield from compare(source, 0, order, [u[:order] for u in usual], what, anatomy=anatomy)
    unused = "the byte order of the writer, which loaders ignore"
    anatomy.explain(order, min(1, end - order), unused, Guard.UNPROTECTED)
    yield from compare(source, order + 1, end, [u[order + 1 :] for u in usual], what, anatomy=anatomy)
    return end


def _is_system(info: Any) -> bool:
    """Return whether a value is torch's record of the writer's protocol, byte order and sizes of types."""
    if not isinstance(info, dict) or len(info) != 3:
        return False
    sizes = info.get("type_sizes")
    return (
        info.get("protocol_version") == _PROTOCOL
        and type(info.get("little_endian")) is bool
        and isinstance(sizes, dict)
        and len(sizes) == 3
        and (sizes.get("short"), sizes.get("int")) == (2, 4)
        and sizes.get("long") in (4, 8)
    )


def _walk_storages(
    source: Source,
    order: list[str],
    storages: dict[str, Storage],
    damaged: set[str],
    at: int,
    *,
    anatomy: Anatomy,
) -> Generator[Finding, None, dict[str, FileRange]]:
    """Check the storages from ``at`` on, whose keys are listed in ``order``: each an int64 count
    (THPStorage_writeFileRaw), then its elements. Return their ranges by key. Raise Damage.
    """
    ranges: dict[str, FileRange] = {}
    end = at + sum(8 + (storages[k].nbytes if k in storages else 0) for k in order)
    if end > source.size and storages.keys() >= set(order):
        why = f"the file has {source.size:,} bytes; its pickles describe {end:,}"
        raise Damage("truncated", why, source.size)
    for key in order:
        s, title = storages.get(key), f"storage {key[:80]!r}"
        if s is None:
            if key in damaged:  # reported already; the next storage begins nobody knows where
                return ranges
            why = f"{title} is in the file, but no tensor refers to it"  # torch.load stops here, too
            raise Damage("extra-storage", why, at, Severity.ERROR)
        if at + 8 > source.size:
            raise Damage("truncated", "the file ends before its storages do", source.size)
        count = int.from_bytes(source.read(at, 8), "little")
        if count != s.numel:
            why = f"{title} says it has {count:,} elements, its tensors say {s.numel:,}"
            yield finding("storage-size", why, offset=at)
        ranges[key] = FileRange(at + 8, s.nbytes)
        anatomy.explain(at, 8, f"{title}: its number of elements, which its tensors repeat")
        anatomy.explain(at + 8, s.nbytes, f"{title}: the format has no checksum", Guard.UNPROTECTED)
        at += 8 + s.nbytes
    if at < source.size:
        yield finding("trailing-data", f"{source.size - at:,} bytes follow the last storage", offset=at)
    return ranges


def _check_tail(source: Source, nbytes: int) -> Iterator[Finding]:
    """Yield ``zero-tail`` for pages never written: zeros at the end of the last storage, of ``nbytes``."""
    window = min(nbytes, _TAIL, source.size)
    data = source.read(source.size - window, window)
    run = window - len(data.rstrip(b"\0"))
    start = source.size - run
    at_page = -start % _PAGE < 16  # a value may itself end in zero bytes just before the page
    if 512 <= run < window and at_page:
        why = f"the last {run:,} bytes are zero, from a page boundary inside the last storage on"
        yield finding("zero-tail", why, offset=start)


FORMAT = make_format("torch_legacy", legacy_magic, _structure, loader="torch")
