"""The storages that a torch pickle describes, and its tensors with their places in these storages. Shared by
all torch formats.

Argument orders are those of torch/_utils.py (_rebuild_*), persistent ids those of torch/serialization.py
(persistent_id), both read in torch 2.13; element sizes are c10/core/ScalarType.h's.

The name of a tensor is the path of keys, attributes and positions that leads to it in the unpickled value,
joined by dots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.pickles.reader import read_pickle
from ckpt_tools.formats.pickles.stubs import Call, Global, Key, Number, Persistent, Pickled
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import Source

_SIZES = {
    1: (
        "uint8 int8 bool qint8 quint8 quint4x2 quint2x4 bits8 bits1x8 bits2x4 bits4x2 float4_e2m1fn_x2"
        " float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu int1 int2 int3 int4 int5"
        " int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7"
    ),
    2: "float16 bfloat16 int16 uint16 bits16",
    4: "float32 int32 uint32 qint32 complex32",
    8: "float64 int64 uint64 complex64",
    16: "complex128",
}
ITEMSIZE: dict[str, int] = {name: size for size, names in _SIZES.items() for name in names.split()}
_PACKED = {"quint4x2": 2, "quint2x4": 4}
"""Elements per byte; a row of the last dimension begins at a byte (aten/src/ATen/quantized/Quantizer.cpp)."""
_CLASSES = (
    "Byte uint8,Char int8,Bool bool,Short int16,Int int32,Long int64,Half float16,BFloat16 bfloat16,"
    "Float float32,Double float64,ComplexFloat complex64,ComplexDouble complex128,QInt8 qint8,QUInt8 quint8,"
    "QInt32 qint32,QUInt4x2 quint4x2,QUInt2x4 quint2x4,Untyped uint8,_Untyped uint8"
)
STORAGES: dict[str, str] = dict(row.split() for row in _CLASSES.split(","))
_REBUILD = {"_rebuild_tensor": 4, "_rebuild_tensor_v2": 4, "_rebuild_tensor_v3": 7, "_rebuild_qtensor": 4}
_META = "_rebuild_meta_tensor_no_storage"
LOAD_FROM_BYTES = ("torch.storage", "_load_from_bytes")
_HUGE = 1 << 62
_DIMENSIONS = 64
"""The most dimensions of a tensor: torch's own operators take no more (aten/src/ATen/TensorIterator.h)."""


class Storage(NamedTuple):
    """A storage as the pickle describes it: ``numel`` elements, of which a view begins ``view`` bytes later;
    ``offset`` is that of its persistent id.
    """

    key: str
    dtype: str
    numel: int
    view: int
    offset: int

    @property
    def nbytes(self) -> int:
        return self.numel * ITEMSIZE[self.dtype]


class FileRange(NamedTuple):
    """The file offset of a storage, None if it is compressed, and the number of bytes that it really has."""

    offset: int | None
    nbytes: int


def count_needed_elements(shape: Sequence[int], stride: Sequence[int], start: int) -> int:
    """Return how many elements the storage of a tensor must have; about 2**62 for absurd shapes."""
    reach = start + 1
    for n, step in zip(shape, stride, strict=True):
        if not n:
            return 0
        reach = min(reach + (n - 1) * step, _HUGE)
    return reach


def parse_storage(ref: Persistent) -> Storage | Finding | None:
    """Return the storage that a persistent id names, None for a module, a Finding if it is damaged."""
    pid = ref.pid
    if type(pid) is tuple and len(pid) == 4 and pid[0] == "module":
        return None
    is_storage = type(pid) is tuple and len(pid) in (5, 6) and pid[0] == "storage"
    if not is_storage or type(pid[1]) is not Global or type(pid[4]) is not int:
        why = "a persistent id is not the tuple that torch writes for a storage"
        return finding("bad-pickle", why, offset=ref.offset)
    _, cls, key, _, numel = pid[:5]
    if type(key) is not str or not 0 <= numel < _HUGE:
        return finding("bad-pickle", "a storage has a damaged key or number of elements", offset=ref.offset)
    dtype = STORAGES.get(cls.name.removesuffix("Storage"))
    if dtype is None:
        why = f"storage {key[:80]!r} has the unknown class {str(cls)[:120]}"
        return finding("unknown-dtype", why, offset=ref.offset)
    view = pid[5] if len(pid) == 6 else None
    return Storage(key, dtype, numel, _find_view_start(view) * ITEMSIZE[dtype], ref.offset)


def _find_view_start(view: Any) -> int:
    """Return the first element of a storage's view (key, start, size), as torch before 0.4 wrote, else 0."""
    if type(view) is not tuple or len(view) != 3 or type(view[1]) is not int:
        return 0
    return view[1] if 0 <= view[1] < _HUGE else 0


def list_storages(pickled: Pickled) -> Iterator[Storage | Finding]:
    """Yield each storage of a pickle once, and findings for contradictions; set what references mean."""
    by_key: dict[str, Storage] = {}
    for ref in pickled.persistents:
        s = ref.meaning = parse_storage(ref)
        if isinstance(s, Storage):
            first = by_key.setdefault(s.key, s)
            if first is s:
                yield s
            elif first.nbytes != s.nbytes:
                why = f"the pickle gives storage {s.key[:80]!r} two different sizes"
                yield finding("storage-size", why, offset=s.offset)
            elif first.dtype != s.dtype:
                why = f"the pickle names storage {s.key[:80]!r} as {first.dtype} and as {s.dtype}"
                why += f": loaders take {first.dtype} for both"
                yield finding("storage-dtypes", why, offset=s.offset)
        elif s is not None:
            yield s


def list_storage_keys(pickled: Pickled) -> set[str]:
    """Return the keys of all storages that a pickle names, also of damaged ones."""
    pids = [ref.pid for ref in pickled.persistents]
    return {pid[2] for pid in pids if type(pid) is tuple and len(pid) > 2 and type(pid[2]) is str}


def add_tensors(
    pickled: Pickled, ranges: Mapping[str, FileRange], anatomy: Anatomy, root: str = ""
) -> Iterator[Finding]:
    """Yield a finding for each tensor that does not fit its storage, and add the tensors that the value
    reaches to ``anatomy``. ``ranges`` maps keys of storages. Call ``list_storages`` before: it sets what
    references mean.
    """
    made: dict[int, Tensor] = {}
    in_bytes: dict[int, Storage | None] = {}
    for call in pickled.calls:
        func, args, offset = call.func, call.args, call.offset
        if type(func) is Global and func.name in FROM_TYPE and len(args) > 2 and type(args[2]) is tuple:
            func, args = args[0], args[2]  # of a subclass: the function that builds it, and its arguments
        if type(func) is not Global or func.module != "torch._utils":
            continue
        try:
            out = _make_tensor(func.name, args, ranges, in_bytes)
        except _BadTensor as e:
            yield finding(e.code, f"{func.name}: {e}", offset=offset)
            continue
        if out is not None:
            made[id(call)] = out
    yield from list_tensors(pickled.value, made, anatomy, root)


class _BadTensor(Exception):
    """Raised for a tensor that cannot be as the pickle describes it; ``code`` is that of its finding."""

    def __init__(self, why: str, code: str = "bad-pickle") -> None:
        super().__init__(why)
        self.code = code


def _read_sizes(value: Any, what: str) -> tuple[int, ...]:
    """Return the numbers of a shape or stride, which ``what`` names in errors. Raise _BadTensor."""
    func = value.func if type(value) is Call else None
    if type(func) is Global and func.module == "torch.jit._pickle" and value.args:
        value = value.args[0]  # TorchScript writes lists of ints as build_intlist([…])
    if type(value) not in (tuple, list) or len(value) > _DIMENSIONS:
        raise _BadTensor(f"its {what} is not a tuple of at most {_DIMENSIONS} integers")
    for v in value:
        if type(v) is not int:
            raise _BadTensor(f"its {what} is not a tuple of integers")
        if not 0 <= v < _HUGE:
            raise _BadTensor(f"its {what} is negative or absurdly large", "tensor-out-of-bounds")
    return tuple(value)


def _find_storage(name: str, args: tuple[Any, ...], in_bytes: dict[int, Storage | None]) -> object:
    """Return the storage that is the first argument of torch's ``_rebuild_…``. In a call of
    ``_load_from_bytes``, it is the fourth pickle in the bytes, whose ids ``in_bytes`` maps to the storages
    found. Raise _BadTensor.
    """
    if len(args) < _REBUILD[name] or type(args[0]) not in (Persistent, Call):
        raise _BadTensor("its first argument is not a storage, or arguments are missing")
    if type(args[0]) is Persistent:
        return args[0].meaning
    call = args[0]
    data = call.args[0] if call.func == LOAD_FROM_BYTES and call.args else None
    if not isinstance(data, bytes):
        return None
    if id(data) not in in_bytes:
        head, at, value = data[:4096], 0, None  # torch's pickles need less than 1000
        try:
            for _ in range(4):
                pickled = read_pickle(head, at)
                value, at = pickled.value, pickled.end
        except Damage:
            value = None
        storage = parse_storage(value) if type(value) is Persistent else None
        in_bytes[id(data)] = storage if isinstance(storage, Storage) else None
    return in_bytes[id(data)]


def _make_tensor(
    name: str, args: tuple[Any, ...], ranges: Mapping[str, FileRange], in_bytes: dict[int, Storage | None]
) -> Tensor | None:
    """Return the tensor that torch's ``_rebuild_…`` makes; None for other functions. Raise _BadTensor."""
    if name == _META and len(args) > 1 and type(args[0]) is Global:
        return Tensor("", args[0].name, _read_sizes(args[1], "shape"), 0)
    if name not in _REBUILD:
        return None
    storage, in_file = _find_storage(name, args, in_bytes), type(args[0]) is Persistent
    if not isinstance(storage, Storage):
        return None  # list_storages() yields a finding
    dtype = storage.dtype
    if name == "_rebuild_tensor_v3" and type(args[6]) is Global:  # others have the storage's dtype
        dtype = args[6].name
    shape, stride = _read_sizes(args[2], "shape"), _read_sizes(args[3], "stride")
    (start,) = _read_sizes((args[1],), "offset")
    nbytes, need, span = _measure(dtype, shape, stride, start)
    file_range, have = ranges.get(storage.key) if in_file else None, storage.nbytes
    have = (have if file_range is None else min(have, file_range.nbytes)) - storage.view
    if need > have:
        what = f"the tensor needs {need:,} bytes of storage {storage.key[:80]!r}, which has {have:,}"
        raise _BadTensor(what, "tensor-out-of-bounds")
    key = storage.key[:80] if in_file else ""
    if file_range is None or file_range.offset is None:
        return Tensor("", dtype, shape, nbytes, None, key)
    at = file_range.offset + storage.view + start * ITEMSIZE[dtype]
    return Tensor("", dtype, shape, nbytes, at, key, _find_pieces(dtype, at, nbytes, span))


def _find_pieces(dtype: str, at: int, nbytes: int, span: int) -> tuple[tuple[int, int], ...]:
    """Return () for a contiguous tensor, else one (offset, bytes). An expanded tensor has few bytes, which
    stand for many elements; for a strided one, which has gaps between its elements, the bytes are 0.
    """
    if not nbytes or span == nbytes or dtype in _PACKED:
        return ()
    return ((at, span if span < nbytes else 0),)


def _measure(dtype: str, shape: tuple[int, ...], stride: tuple[int, ...], start: int) -> tuple[int, int, int]:
    """Return a tensor's bytes, those that its storage must have, and its span. Raise _BadTensor."""
    if len(shape) != len(stride):
        raise _BadTensor("its shape and stride differ in length")
    numel, reach = 1, start + 1
    for n, step in zip(shape, stride, strict=True):
        numel *= n
        reach += (n - 1) * step
        if not -_HUGE < reach < _HUGE or numel > _HUGE:  # keeps the numbers small, whatever the rank
            raise _BadTensor("it is absurdly large", "tensor-out-of-bounds")
    item = ITEMSIZE.get(dtype)
    if item is None:
        raise _BadTensor(f"it has the unknown dtype {dtype[:80]}", "unknown-dtype")
    span = (reach - start) * item
    if dtype not in _PACKED:
        return numel * item, reach * item if numel else 0, span
    row = shape[-1] if numel and shape else numel  # elements; its last byte need not be full
    packed = numel // max(row, 1) * -(-row // _PACKED[dtype])
    return packed, packed, span


# ---- How torch's legacy format begins, and a tar that may begin so as well.


NUMBER = 0x1950A86A20F9469CFC6C
_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")  # LONG1 0x1950a86a20f9469cfc6c, STOP


def legacy_magic(head: bytes) -> bool:
    """Return whether ``head`` begins with a pickle of torch's magic number: text, binary, or framed."""
    return head.startswith(b"L%dL\n." % NUMBER) or (is_proto(head) and head.find(_MAGIC) in (2, 11))


def is_proto(head: bytes) -> bool:
    """Return whether ``head`` begins with the opcode PROTO, as pickles of protocols 2 to 5 do."""
    return head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5")


def check_not_tar(source: Source) -> Iterator[Finding]:
    """Yield ``unsafe-pickle`` if a pickle is a tar as well: torch.load would unpickle the tar's members."""
    import tarfile  # not at the top: most files hold no bare pickle

    block = source.read(0, tarfile.BLOCKSIZE) if source.size >= tarfile.BLOCKSIZE else b""
    with suppress(tarfile.HeaderError):
        tarfile.TarInfo.frombuf(block, "utf-8", "replace")
        why = "the file is a tar archive as well: torch.load would unpickle its members instead"
        yield finding("unsafe-pickle", f"{why} of what was read here", offset=0)


_V2 = ("torch._utils", "_rebuild_tensor_v2")
_WRAPPERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")
_SPARSE = {2: ("indices", "values"), 3: ("compressed_indices", "plain_indices", "values")}
"""Names of the tensors that make a sparse tensor, by their number: COO has 2, CSR and its kin 3."""
_NESTED = ("buffer", "sizes", "strides", "storage_offsets")
_DEEP = 256  # levels of containers; tensors below are not listed
_MANY = 500_000  # containers that are walked: a tensor takes two or three
_CONTAINERS = (dict, list, tuple, Call, Persistent)
FROM_TYPE = ("_rebuild_from_type_v2", "_rebuild_from_type")


def list_tensors(value: Any, made: Mapping[int, Tensor], anatomy: Anatomy, root: str) -> Iterator[Finding]:
    """Add the tensors in ``value`` to ``anatomy``; ``made`` maps the ids of stubs to tensors, ``root`` begins
    their names. Yield ``too-complex`` if there are too many names or levels. Each container is walked once.
    """
    visited: set[int] = set()
    left = 64 << 20  # characters of all names: real files have a few millions
    levels: list[tuple[str, Iterator[tuple[str, Any]]]] = [(root, iter((("", value),)))]
    while levels:
        parent, entries = levels[-1]
        entry = next(entries, None)
        if entry is None:
            levels.pop()
            continue
        name, v = entry
        path = ".".join(filter(None, (parent, name)))[:4096]
        left -= len(path)
        if left < 0 or len(visited) > _MANY:
            yield finding("too-complex", "the pickle's tensors have more names than are listed")
            return
        tensor = made.get(id(v))
        if tensor is not None:
            t = tensor  # replace() takes five times as long
            anatomy.tensors.append(Tensor(path, t.dtype, t.shape, t.nbytes, t.offset, t.storage, t.pieces))
            if type(v) is not Call or v.func == _V2:
                continue  # most tensors: nothing below them
        if id(v) in visited:
            continue
        visited.add(id(v))
        children = _find_children(v) if tensor is None else _find_parts(v)
        first = next(children, None)
        if first and len(levels) > _DEEP + 1:
            why = f"the pickle is nested more than {_DEEP} levels deep below {path[:80]!r}"
            yield finding("too-complex", f"{why}; tensors there are not listed")
            return
        if first:
            levels.append((path, chain((first,), children)))


def _find_children(v: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each container and call directly inside ``v``: name is a key or an index."""
    if isinstance(v, dict):
        yield from ((text(k), c) for k, c in v.items() if isinstance(c, _CONTAINERS))
    elif isinstance(v, (list, tuple)):
        yield from ((str(i), c) for i, c in enumerate(v) if isinstance(c, _CONTAINERS))
    elif type(v) is Call:
        yield from _find_children_of_call(v)


def _find_children_of_call(v: Call) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each container and call in a call; arguments of torch's own have names."""
    name, args = _find_function_name(v.func), v.args
    if name in _WRAPPERS:
        yield from (("", c) for c in args[:1] if isinstance(c, _CONTAINERS))
        yield from _find_parts(v)
    elif name in FROM_TYPE and len(args) > 2 and type(args[2]) is tuple:
        yield from _find_children(args[2][0] if len(args[2]) == 1 else args[2])
        yield from _find_parts(v)
    elif name == "_rebuild_sparse_tensor" and len(args) > 1 and type(args[1]) is tuple:
        parts = _list_calls(args[1])  # the tensors that make the sparse one
        yield from zip(_SPARSE.get(len(parts), ()), parts, strict=False)
    elif name == "_rebuild_nested_tensor":
        yield from zip(_NESTED, args, strict=False)
    else:
        for more in (args, v.items, v.entries, v.state):
            if isinstance(more, (dict, list, tuple)):
                yield from _find_children(more)


def _list_calls(values: tuple[Any, ...]) -> list[Call]:
    return [c for c in values if type(c) is Call]


def _find_function_name(func: Any) -> str:
    """Return the name of a function without its module, "" if it is no global."""
    return func.name if type(func) is Global else ""


def _find_parts(v: Call) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of a tensor's parts: scales if it is quantized, attributes of a subclass."""
    func, inner, state = _find_function_name(v.func), v.args, None
    if func in FROM_TYPE and len(v.args) > 3:
        func, inner, state = _find_function_name(v.args[0]), v.args[2], v.args[3]
    elif func == "_rebuild_parameter_with_state" and len(v.args) > 3:
        state = v.args[3]
    if func == "_rebuild_qtensor" and type(inner) is tuple and len(inner) > 4 and type(inner[4]) is tuple:
        yield from zip(("scales", "zero_points"), _list_calls(inner[4]), strict=False)
    for attributes in state if type(state) is tuple else (state,):  # (__dict__, __slots__) or __dict__ alone
        if isinstance(attributes, dict):
            yield from _find_children(attributes)


def text(key: Any) -> str:
    """Return a dict key as a printable name of at most 256 characters."""
    if type(key) is Number:
        key = key.value
    if type(key) is Key and type(key.value) is tuple and len(key.value) < 10:
        out = f"({', '.join(map(_format_plain, key.value))})"
    else:
        out = key if type(key) is str else _format_plain(key)
    return out[:256].encode("utf-8", "backslashreplace").decode() if not out.isascii() else out[:256]


def _format_plain(value: Any) -> str:
    """Return a text's repr, a number as digits, "?" for any other value and for huge numbers."""
    if type(value) is str:
        return repr(value[:256])
    small = type(value) is int and value.bit_length() <= 64
    return str(value) if value is None or type(value) in (float, bool) or small else "?"
