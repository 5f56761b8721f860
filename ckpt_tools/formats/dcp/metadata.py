"""The value of DCP's ``.metadata``, taken out of the stubs of its pickle: entries of the state_dict, and
the places of their bytes in the data files.

Facts: torch/distributed/checkpoint/metadata.py and filesystem.py (_StorageInfo) of torch 2.0 to 2.15;
olmo_core/distributed/checkpoint/filesystem.py, whose writer has a _StorageInfo of its own.
Unknown attributes, and values behind the known values of a TensorProperties, are ignored: torch 2.15 adds
``strides`` to TensorProperties, Megatron-core 0.8 to 0.14 adds the attribute ``mcore_data``, and 0.15 has
classes of its own with ``mcore_data``. A name that differs from a known one in a single bit is damage.

The second half maps the bytes of ``.metadata``: in which opcodes, names and numbers a flipped bit contradicts
something else. It walks the pickle once more, opcode by opcode, as pickletools does (CPython,
Lib/pickletools.py). From the first unknown opcode on, the file counts as unprotected.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from typing import Any, NamedTuple, TypeGuard

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.tensors import near_miss
from ckpt_tools.formats.pickles.machine import GETATTR
from ckpt_tools.formats.pickles.stubs import Call, Global
from ckpt_tools.formats.torch.tensors import ITEMSIZE
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Box, Guard

_PACKAGES = ("torch.distributed.checkpoint.", "torch.distributed._shard.checkpoint.")  # until torch 2.0
_META = tuple(p + "metadata" for p in _PACKAGES)
_PLANNER = tuple(p + "planner" for p in _PACKAGES)
_OLD = ("torch.distributed._shard.sharded_tensor.metadata",)
MCORE = "megatron.core.dist_checkpointing.strategies.torch"
PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
CLASSES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Metadata", "TensorStorageMetadata", "ChunkStorageMetadata"), _META),
    **dict.fromkeys(("BytesStorageMetadata", "MetadataIndex", "StorageMeta"), _META),
    "TensorProperties": _META + _OLD,
    "_MEM_FORMAT_ENCODING": _META,
    "MEM_FORMAT_ENCODING": _OLD,
    "_StorageInfo": (*(p + "filesystem" for p in _PACKAGES), "olmo_core.distributed.checkpoint.filesystem"),
    # Megatron keeps its plans
    **dict.fromkeys(("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData"), _PLANNER),
    **dict.fromkeys(("MCoreMetadata", "MCoreSavePlan"), (MCORE,)),
    **dict.fromkeys(PATHS, ("pathlib", "pathlib._local")),
}
"""Class name -> modules that define it, for the classes of a .metadata that need no trust: plain values, and
the path that the save was given.
"""
_WORDS = {
    "Metadata": (
        "state_dict_metadata planner_data storage_data storage_meta version mcore_data all_local_plans"
    ),
    "MetadataIndex": "fqn offset index",
    "TensorStorageMetadata": "properties size chunks",
    "ChunkStorageMetadata": "offsets sizes",
    "_StorageInfo": "relative_path offset length transform_descriptors",
    "StorageMeta": "checkpoint_id save_id load_id modules",
}
ATTRIBUTES = {name: tuple(words.split()) for name, words in _WORDS.items()}
ATTRIBUTES["MCoreMetadata"] = ATTRIBUTES["Metadata"]
_SPARSE = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
LAYOUTS = ("strided", *_SPARSE, "_mkldnn", "jagged")
MEMORY_FORMATS = ("TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST", "TORCH_PRESERVE_FORMAT")
_PROPERTIES = 5
"""Number of values that a TensorProperties has in every version."""
MAX_RANK = 64
HUGE = 1 << 62


class Chunk(NamedTuple):
    """One chunk of a tensor: ``offsets`` and ``sizes`` in elements; ``at``: its byte offset in .metadata."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    at: int

    @property
    def box(self) -> Box:
        return Box(self.offsets, tuple(o + s for o, s in zip(self.offsets, self.sizes, strict=True)))


class Entry(NamedTuple):
    """One tensor or object of the state_dict; objects have ``dtype`` "" and neither shape nor chunks."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    at: int


class Segment(NamedTuple):
    """One chunk's or object's (``offsets`` None) place in a file; ``hint`` is the index in Entry.chunks."""

    fqn: str
    offsets: tuple[int, ...] | None
    hint: int | None
    path: str
    start: int
    length: int
    transforms: tuple[str, ...]
    at: int


def is_class(value: Any, name: str) -> TypeGuard[Call]:
    """Return whether a value is an object of class ``name`` from one of its modules in CLASSES."""
    func = value.func if type(value) is Call else None
    return type(func) is Global and func.name == name and func.module in CLASSES[name]


def read_state(value: Any, name: str, what: str) -> dict[Any, Any]:
    """Return the attributes of an object of class ``name``. Raise Damage for any other value."""
    if not is_class(value, name) or not isinstance(value.state, dict):
        raise Damage("bad-header", f"{what} is no {name}", getattr(value, "offset", None))
    return value.state


def find_flipped_names(value: Any) -> Iterator[Finding]:
    """Report attributes whose names differ in one bit from a known attribute of their class."""
    known = ATTRIBUTES.get(value.func.name, ())
    for k in value.state:
        if k not in known and type(k) is str and len(k) < 64 and (meant := near_miss(k, known)):
            why = f"{value.func.name} has an attribute {k!r}: that is {meant!r} with a flipped bit"
            yield finding("bad-header", why, offset=value.offset)


def read_lengths(value: Any, what: str, at: int) -> tuple[int, ...]:
    """Return a torch.Size as a tuple of lengths. Raise Damage if the value is anything else."""
    if type(value) not in (tuple, list) or len(value) > MAX_RANK or not all(map(_is_count, value)):
        raise Damage("bad-header", f"{what} is not a tuple of lengths", at)
    return tuple(value)


def read_entries(values: Any) -> Generator[Finding, None, dict[str, Entry]]:
    """Return ``state_dict_metadata`` as name -> Entry; damaged entries are reported and left out."""
    if not isinstance(values, dict):
        raise Damage("bad-header", "state_dict_metadata is not a dict", 0)
    entries: dict[str, Entry] = {}
    checked = set[int]()
    for fqn, value in values.items():
        if type(fqn) is not str:
            why = "a name in state_dict_metadata is not text"
            yield finding("bad-header", why, offset=getattr(value, "offset", None))
            continue
        try:
            if is_class(value, "BytesStorageMetadata"):
                entries[fqn] = Entry("", (), (), value.offset)
                continue
            entries[fqn] = _read_tensor(fqn, value)
            for part in (value, *value.state["chunks"]):
                yield from find_flipped_names(part)
            properties = value.state["properties"]
            if id(properties) not in checked:
                checked.add(id(properties))
                yield from _check_properties(fqn, properties)
        except Damage as e:
            yield e.finding
    return entries


def _read_tensor(fqn: str, value: Any) -> Entry:
    """Return the Entry of a TensorStorageMetadata. Raise Damage."""
    what = f"{fqn[:200]!r} in state_dict_metadata"
    s = read_state(value, "TensorStorageMetadata", what)
    shape, chunks = read_lengths(s.get("size"), f"the size of {what}", value.offset), s.get("chunks")
    if type(chunks) is not list:
        raise Damage("bad-header", f"{what} has no list of chunks", value.offset)
    p = s.get("properties")
    props = p.state if is_class(p, "TensorProperties") else None
    dtype = props[0] if type(props) is tuple and len(props) >= _PROPERTIES else None
    if type(dtype) is not Global or dtype.module != "torch":
        raise Damage("bad-header", f"the properties of {what} are damaged", value.offset)
    pieces = []
    for c in chunks:
        cs = read_state(c, "ChunkStorageMetadata", f"a chunk of {what}")
        offsets, sizes = (
            read_lengths(cs.get(k), f"{k} of a chunk of {what}", c.offset) for k in ("offsets", "sizes")
        )
        if not len(offsets) == len(sizes) == len(shape):
            raise Damage("bad-header", f"a chunk of {what} has another number of dimensions", c.offset)
        pieces.append(Chunk(offsets, sizes, c.offset))
    return Entry(dtype.name, shape, tuple(pieces), value.offset)


def _check_properties(fqn: str, p: Any) -> Iterator[Finding]:
    """Check the tuple of TensorProperties.__getstate__; since torch 2.15 it has the strides, too."""
    dtype, layout, grad, memory, pin = p.state[:_PROPERTIES]
    strides = p.state[_PROPERTIES] if len(p.state) > _PROPERTIES else None
    if dtype.name not in ITEMSIZE:
        yield finding("unknown-dtype", f"{fqn[:200]!r} has the type {dtype.name[:80]!r}", offset=p.offset)
    ok = type(grad) is type(pin) is bool
    if type(layout) is Call:
        known = layout.func == Global("torch.serialization", "_get_layout")
        name = layout.args[0] if known and type(layout.args) is tuple and len(layout.args) == 1 else None
        ok = ok and type(name) is str and name.removeprefix("torch.") in LAYOUTS
    if type(memory) is Call:
        ok = ok and any(_is_member(memory, name) for name in ("_MEM_FORMAT_ENCODING", "MEM_FORMAT_ENCODING"))
    if strides is not None:
        read_lengths(strides, f"the strides of {fqn[:200]!r}", p.offset)
    if not ok:
        why = f"the layout or memory format of {fqn[:200]!r} is none that torch knows"
        yield finding("bad-header", why, offset=p.offset)


def _is_member(value: Call, name: str) -> bool:
    """Return whether a value is a memory format: its number, or its name as in Python 3.11.0 to 3.11.3."""
    if value.func in GETATTR:
        known = {(module, f"{name}.{member}") for module in CLASSES[name] for member in MEMORY_FORMATS}
        return value.named in known
    return is_class(value, name) and value.args in ((0,), (1,), (2,))


def read_segments(values: Any) -> Generator[Finding, None, list[Segment]]:
    """Return the items of ``storage_data`` (MetadataIndex -> _StorageInfo); damaged ones are left out."""
    if not isinstance(values, dict):
        raise Damage("bad-header", "storage_data is not a dict", 0)
    segments: list[Segment] = []
    for key, value in values.items():
        try:
            segments.append(_read_segment(key, value))
            for part in (key, value):
                yield from find_flipped_names(part)
        except Damage as e:
            yield e.finding
    return segments


def _read_segment(key: Any, value: Any) -> Segment:
    """Return the Segment of one item of storage_data. Raise Damage."""
    index = read_state(key, "MetadataIndex", "a key in storage_data")
    info = read_state(value, "_StorageInfo", "a value in storage_data")
    fqn, path, where = index.get("fqn"), info.get("relative_path"), index.get("offset")
    if type(fqn) is not str:
        raise Damage("bad-header", "a key in storage_data has no name", key.offset)
    shown, at = repr(fqn[:200]), value.offset
    what = f"the offset of {shown} in storage_data"
    offsets = None if where is None else read_lengths(where, what, key.offset)
    hint, start, length = index.get("index", ""), info.get("offset"), info.get("length")
    if hint is not None and not _is_count(hint):
        raise Damage("bad-header", f"the index of {shown} in storage_data is not a number", key.offset)
    if not _is_count(start) or not _is_count(length):
        raise Damage("bad-header", f"the place of {shown} in its file is absurd", at)
    if type(path) is not str or not path:
        raise Damage("bad-header", f"the file of {shown} has no name", at)
    texts = info.get("transform_descriptors")
    transforms = [] if texts is None else texts
    if type(transforms) not in (list, tuple) or not all(type(v) is str for v in transforms):
        raise Damage("bad-header", "transform_descriptors is not a list of names", at)
    return Segment(fqn, offsets, hint, path, start, length, tuple(transforms), at)


def _is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is a number of elements or bytes that a file may have; a bool is none."""
    return type(value) is int and 0 <= value < HUGE


_FIXED = {0x80: 1, 0x95: 8, 0x68: 1, 0x6A: 4, 0x4B: 1, 0x4D: 2, 0x4A: 4}
"""Opcode -> bytes of its argument: PROTO, FRAME, BINGET, LONG_BINGET, BININT1, BININT2 and BININT."""
_COUNTED = {0x8C: 1, 0x58: 4, 0x8A: 1}
"""Opcode -> bytes of the number that gives the argument's length: SHORT_BINUNICODE, BINUNICODE and LONG1."""
_BARE = frozenset(b"\x94\x93)\x81}](Rb\x85\x86\x87tusaeN\x88\x89.")
_TEXT, _INT, _GET = (0x8C, 0x58), (0x4B, 0x4D, 0x4A, 0x8A), (0x68, 0x6A)
_GLOBAL, _MEMOIZE, _FRAME, _PROTO, _BOOLS = 0x93, 0x94, 0x95, 0x80, (0x88, 0x89)
_KINDS = {0x8C: "text", 0x58: "text", 0x93: "global", 0x7D: "dict", 0x5D: "list"} | dict.fromkeys(
    b"\x85\x86\x87tR\x81", "value"
)
_WHAT = "pickle of the state_dict's entries and their places"
_DEPRECATED = "deprecated property of a tensor"
_TARGET = 64 * 1024
MAX_SPOTS = 1 << 16
"""Unprotected ranges that are listed one by one; all bytes behind them are a single range."""
_FIRM = (
    {w for n, modules in CLASSES.items() for w in (n, *modules)}
    | {w for names in ATTRIBUTES.values() for w in names}
    | {f"torch.{n}" for n in LAYOUTS}
    | {"torch", "Size", "torch.serialization", "_get_layout", "1.0.0", "stream.zstd/1"}
    | {d for d in ITEMSIZE if not d.startswith(("int", "uint")) or d.endswith(("8", "16", "32", "64"))}
)
"""Names in which each flipped bit is noticed, as the result is unknown. (Flipped, int1 may become int3.)"""


class Op(NamedTuple):
    """One opcode of a pickle: where it begins and ends, and its argument as written."""

    at: int
    code: int
    arg: bytes
    end: int

    @property
    def text(self) -> str:
        return self.arg.decode("utf-8", "replace")


def read_ops(data: bytes) -> Iterator[Op]:
    """Yield the opcodes of a pickle of protocol 4 or 5, up to the first opcode that no .metadata has."""
    at = 0
    while at < len(data):
        code, start = data[at], at + 1
        if code in _COUNTED:
            n = _COUNTED[code]
            start, length = start + n, int.from_bytes(data[start : start + n], "little")
        elif code in _FIXED or code in _BARE:
            length = _FIXED.get(code, 0)
        else:
            return
        yield Op(at, code, data[start : start + length], start + length)
        at = start + length


def explain(
    data: bytes, anatomy: Anatomy, names: Collection[str], extra: Collection[str], *, sizes: bool
) -> None:
    """Add what the bytes of a good .metadata are, and what protects them, to ``anatomy.regions``.
    ``names`` are texts that the file repeats, ``extra`` unknown attributes that other programs added.
    ``sizes``: whether shapes and offsets are compared with the data files and with each other.
    """
    walk = _Walk(names, sizes)
    at, end, left = 0, 0, MAX_SPOTS
    rest = "what another program added, or wrote in another way"
    for op in read_ops(data):
        if op.code in _TEXT and op.text in extra:
            break
        why, start = walk.find_weak_bytes(op)
        if why:
            anatomy.explain(at, start - at, _WHAT)
            anatomy.explain(start, op.end - start, why, Guard.UNPROTECTED)
            at, left = op.end, left - 1
            if not left:
                rest = "a pickle of more unprotected places than are told apart"
                break
        end = op.end
    else:
        anatomy.explain(at, end - at, _WHAT)
        at = end
    anatomy.explain(at, len(data) - at, rest, Guard.UNPROTECTED)


class _Walk:
    """One walk over the opcodes: the memo, and the last opcode, text and global before the next opcode."""

    def __init__(self, names: Collection[str], sizes: bool) -> None:
        self._names, self._sizes = {*names, *_FIRM}, sizes
        self._memo: list[tuple[str, str]] = []  # of each stored value: one of _KINDS, and its text or name
        self._last = 0  # the opcode before this one
        self._text = ""  # the last text: the key of the value that follows
        self._global = ""  # the last global

    def find_weak_bytes(self, op: Op) -> tuple[str, int]:
        """Return why a change in an opcode may go unseen ("": it may not), and where the weak bytes begin."""
        why, start = "", op.end - len(op.arg)
        if op.code in _TEXT:
            self._text = op.text
            if self._text not in self._names:
                # The length is weak as well: bytes cut off the text may happen to be valid opcodes.
                why, start = "text that is stored once: a name, an id, the path of the save", op.at
        elif op.code == _GLOBAL:
            self._global, self._text = self._text, ""
        elif op.code == _MEMOIZE:
            text = self._global if self._last == _GLOBAL else self._text
            self._memo.append((_KINDS.get(self._last, ""), text))
        elif op.code in _GET:
            why = self._find_weak_reference(op)
        elif op.code in _INT:
            why = self._find_weak_number()
        elif op.code in _BOOLS:
            why, start = _DEPRECATED, op.at
        elif op.code == _PROTO:
            why = "protocol: 4 and 5 do not differ here"
        elif op.code == _FRAME and (op.at != 2 or int.from_bytes(op.arg, "little") >= _TARGET):
            why = "length of a frame"
        self._last = op.code
        return why, start

    def _find_weak_reference(self, op: Op) -> str:
        """Return why a changed reference to the memo may go unseen, or "" if it may not."""
        index = int.from_bytes(op.arg, "little")
        kind, text = self._memo[index] if index < len(self._memo) else ("", "")
        if kind == "global":
            self._global = text
        self._text = text if kind == "text" else ""
        others = (index ^ 1 << bit for bit in range(8 * len(op.arg)))
        if any(other < len(self._memo) and self._memo[other][0] == kind for other in others):
            return "reference to a value stored before: one that leads to an equal value is not noticed"
        return ""

    def _find_weak_number(self) -> str:
        """Return why a changed number may go unseen, or "" if it may not; the last text names it."""
        if self._global.endswith("MEM_FORMAT_ENCODING"):
            return _DEPRECATED
        is_compared = self._sizes or self._text in ("offset", "length", "index")
        return "" if is_compared else "shape or offset: only what lies outside of its tensor is noticed"
