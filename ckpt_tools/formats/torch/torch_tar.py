"""torch.save of 2016 and early 2017: a tar with the members sys_info, pickle, tensors and storages.
torch.load still reads it.

Facts: torch/serialization.py (legacy_load) of torch 2.13; its ``save`` of torch 0.1.6 to 0.1.9; POSIX.1-2008
pax; CPython Lib/tarfile.py.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.archives.tar import NAMES, list_members
from ckpt_tools.formats.common.format import Anatomy, Damage, limit, make_format
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.pickles.scalars import add_scalars
from ckpt_tools.formats.pickles.stubs import Global, Pickled
from ckpt_tools.formats.torch.tensors import ITEMSIZE, STORAGES, count_needed_elements, list_tensors
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Tensor
from ckpt_tools.storage import Source

_HEADS = tuple(n.ljust(64, b"\0") for n in (b"././@PaxHeader", *(n.encode() for n in NAMES)))
_PROTOCOL = 1000
_HUGE = 1 << 62
_SMALL = 512  # bytes of the first read of a small pickle


def magic(head: bytes) -> bool:
    """Return whether the first tar header has the name of a pax header or of a member of torch's."""
    return head in _HEADS


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check an archive's four members against each other; add its tensors to ``anatomy``. Raise Damage."""
    why = "torch's tar format has no checksum over its data: only headers, lengths and pickles were checked"
    yield finding("not-checksummed", why)
    ranges = yield from list_members(source, anatomy)
    for name in NAMES:
        if name not in ranges:
            raise Damage("bad-header", f"the archive has no member {name!r}", source.size)
    at, stop = ranges["sys_info"]
    system = yield from read_judged(source, at, stop, anatomy, first=_SMALL)
    info = system.value if isinstance(system.value, dict) else {}
    if info.get("protocol_version") != _PROTOCOL or type(info.get("little_endian")) is not bool:
        yield finding("bad-header", "the record of the system's type sizes is damaged", offset=at)
    yield from _check_end("sys_info", system, stop)
    what = "a pickle of the protocol and the system's type sizes: some of its values are checked"
    anatomy.explain(at, stop - at, what, Guard.UNPROTECTED)
    storages = yield from _walk_storages(source, *ranges["storages"], anatomy)
    tensors = yield from _walk_tensors(source, *ranges["tensors"], storages, anatomy)
    at, stop = ranges["pickle"]
    what = "the object's pickle: its opcodes and references are checked, not its names and numbers"
    anatomy.explain(at, stop - at, what, Guard.UNPROTECTED)
    pickled = yield from read_judged(source, at, stop, anatomy)
    yield from _check_end("pickle", pickled, stop)
    add_scalars(pickled.value, anatomy)
    yield from _check_references(pickled, storages, tensors, ranges)
    refs = [ref for ref in pickled.persistents if type(ref.pid) is str and ref.pid in tensors]
    stubs = {id(ref): tensors[ref.pid] for ref in refs}
    yield from list_tensors(pickled.value, stubs, anatomy, "")


def _check_references(
    pickled: Pickled, storages: Storages, tensors: Mapping[str, Tensor], ranges: Mapping[str, tuple[int, int]]
) -> Iterator[Finding]:
    """Yield findings for references to objects not in the file, then for objects that nothing refers to."""
    referred = set[str | None]()
    for ref in pickled.persistents:
        if type(ref.pid) is tuple and len(ref.pid) == 3:  # a module's class with its source
            continue
        key = ref.pid if type(ref.pid) is str else None
        referred.add(key)
        if key is None or (key not in tensors and key not in storages):
            why = f"the pickle refers to {str(key)[:80]!r}, which is neither a tensor nor a storage"
            yield finding("missing-storage", why, offset=ref.offset)
    for key in tensors:
        if key not in referred:
            why = f"nothing refers to tensor {key[:80]!r}"
            yield finding("extra-storage", why, offset=ranges["tensors"][0])
    used = referred | {t.storage for t in tensors.values()}
    for key, storage in storages.items():
        if key not in used and not storage.is_root:
            why = f"nothing refers to storage {key[:80]!r}"
            yield finding("extra-storage", why, offset=ranges["storages"][0])


def _check_end(name: str, pickled: Pickled, stop: int) -> Iterator[Finding]:
    """Yield ``trailing-data`` unless member ``name``, which ends at ``stop``, ends with its pickle."""
    if pickled.end != stop:
        why = f"member {name!r} has {stop - pickled.end:,} bytes after its pickle"
        yield finding("trailing-data", why, offset=pickled.end)


def _read_count(
    source: Source, at: int, stop: int, least: int, name: str, *, anatomy: Anatomy
) -> Generator[Finding, None, tuple[int, int]]:
    """Return a member's number of items, of ``least`` bytes each, and where they begin. Raise Damage."""
    pickled = yield from read_judged(source, at, stop, anatomy, first=_SMALL)
    n = pickled.value
    if type(n) is not int or not 0 <= n * least <= stop - pickled.end:
        raise Damage("bad-header", f"member {name!r} does not have room for as many items as it says", at)
    return n, pickled.end


def _is_key(value: Any) -> bool:
    """Return whether a value may be the key of a storage or a tensor: a number below 2**64."""
    return type(value) is int and 0 <= value <= _HUGE * 4


def _read_item(
    source: Source, at: int, stop: int, name: str, anatomy: Anatomy
) -> Generator[Finding, None, tuple[tuple[Any, Any, Any], int]]:
    """Read an item's pickle (key, location or storage's key, class); return it and its end. Raise Damage."""
    pickled = yield from read_judged(source, at, stop, anatomy, first=_SMALL)
    v = pickled.value
    good = type(v) is tuple and len(v) == 3 and _is_key(v[0]) and type(v[2]) is Global
    if not good or not (v[1] is None or type(v[1]) is str or _is_key(v[1])):
        raise Damage("bad-pickle", f"an item of member {name!r} is not the tuple that torch writes", at)
    return v, pickled.end


class _Storage(NamedTuple):
    """A storage of the archive; other storages may be views of it, which makes it a root."""

    dtype: str
    offset: int
    nbytes: int
    is_root: bool = False


Storages = dict[str, _Storage]
"""Key of a storage -> the storage."""


def _walk_storages(
    source: Source, at: int, stop: int, anatomy: Anatomy
) -> Generator[Finding, None, Storages]:
    """Read the member ``storages``: a count; for each storage (key, location, class), an int64 count and the
    elements; then a list of views. Return all storages. Raise Damage.
    """
    storages: Storages = {}
    n, end = yield from _read_count(source, at, stop, 20, "storages", anatomy=anatomy)
    anatomy.explain(at, end - at, "member 'storages': a pickle of the number of storages", Guard.UNPROTECTED)
    for _ in range(n):
        (key, _, cls), data = yield from _read_item(source, end, stop, "storages", anatomy)
        dtype = STORAGES.get(cls.name.removesuffix("Storage"))
        if dtype is None:  # then nobody knows where the next storage begins
            raise Damage("unknown-dtype", f"storage {key} has the unknown class {str(cls)[:120]}", end)
        what = f"storage {key}: a pickle of its key, location and class"
        anatomy.explain(end, data - end, what, Guard.UNPROTECTED)
        count = int.from_bytes(source.read(data, 8), "little") if data + 8 <= stop else _HUGE
        nbytes = count * ITEMSIZE[dtype]
        end = data + 8 + nbytes
        if end > stop:
            why = f"storage {key} says it has {count:,} elements; its member has no room for them"
            raise Damage("storage-size", why, data)
        if str(key) in storages:
            yield finding("bad-header", f"storage {key} is there twice", offset=data)
        storages[str(key)] = _Storage(dtype, data + 8, nbytes)
        what = f"storage {key}: its number of elements, from which the next one's place follows"
        anatomy.explain(data, 8, what)
        anatomy.explain(data + 8, nbytes, f"storage {key}: the format has no checksum", Guard.UNPROTECTED)
    views = yield from read_judged(source, end, stop, anatomy, first=_SMALL)
    what = "member 'storages': a pickle of the storages that are views of others"
    anatomy.explain(end, stop - end, what, Guard.UNPROTECTED)
    for view in views.value if type(views.value) is list else (None,):
        if type(view) is not tuple or len(view) != 4 or not all(_is_key(v) for v in view):
            raise Damage("bad-pickle", "the list of storages that are views is damaged", end)
        key, root, start, count = view  # the last two in elements
        whole = storages.get(str(root))
        if whole is None or (start + count) * ITEMSIZE[whole.dtype] > whole.nbytes:
            why = f"storage {key} is a view of storage {root}, which is not there or too small"
            yield finding("tensor-out-of-bounds", why, offset=end)
            continue
        item = ITEMSIZE[whole.dtype]
        storages[str(root)] = whole._replace(is_root=True)
        storages[str(key)] = _Storage(whole.dtype, whole.offset + start * item, count * item)
    yield from _check_end("storages", views, stop)
    return storages


def _walk_tensors(
    source: Source, at: int, stop: int, storages: Storages, anatomy: Anatomy
) -> Generator[Finding, None, dict[str, Tensor]]:
    """Read the member ``tensors``: a count; for each tensor (key, storage's key, class), dimensions, sizes,
    strides, first element. Return the tensors by key. Raise Damage.
    """
    tensors: dict[str, Tensor] = {}
    n, end = yield from _read_count(source, at, stop, 32, "tensors", anatomy=anatomy)
    what = "member 'tensors': keys, sizes and strides, checked against the storages' sizes only"
    anatomy.explain(at, stop - at, what, Guard.UNPROTECTED)
    for _ in range(n):
        (key, storage_key, _), begin = yield from _read_item(source, end, stop, "tensors", anatomy)
        # the writer leaves the other four bytes undefined
        dims = struct.unpack("<i4x", source.read(begin, 8))[0] if begin + 8 <= stop else -1
        end = begin + 16 + 16 * dims
        if not 0 <= dims <= 64 or end > stop:
            raise Damage("bad-header", f"tensor {key} says it has {dims} dimensions", begin)
        numbers = struct.unpack(f"<{2 * dims + 1}q", source.read(begin + 8, end - begin - 8))
        if str(key) in tensors or str(key) in storages:
            yield finding("duplicate-tensor", f"tensor {key} is there twice", offset=begin)
        if storage_key is None:  # a tensor that never had elements
            tensors[str(key)] = Tensor("", "", (), 0)
            continue
        storage = storages.get(str(storage_key))
        if storage is None:
            why = f"tensor {key} needs storage {str(storage_key)[:80]!r}, which is not there"
            yield finding("missing-storage", why, offset=begin)
            continue
        item, shape, stride, first = ITEMSIZE[storage.dtype], numbers[:dims], numbers[dims:-1], numbers[-1]
        need = count_needed_elements(shape, stride, first) * item if min(numbers) >= 0 else _HUGE
        if not dims:  # before 0.4, a tensor without dimensions had no elements
            shape, need = (0,), 0
        nbytes = item * math.prod(shape)
        if need > storage.nbytes or nbytes > _HUGE:
            why = f"tensor {key} needs {need:,} bytes of storage {storage_key}, which has {storage.nbytes:,}"
            yield finding("tensor-out-of-bounds", why, offset=begin)
            continue
        offset = storage.offset + first * item
        tensors[str(key)] = Tensor("", storage.dtype, shape, nbytes, offset, str(storage_key))
    if end != stop:
        why = f"member 'tensors' has {stop - end:,} bytes after its last tensor"
        yield finding("trailing-data", why, offset=end)
    return tensors


FORMAT = make_format("torch_tar", magic, _structure)
