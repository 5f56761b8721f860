"""safetensors: 8-byte little-endian header length, a JSON header, then the tensors without a gap. MindSpore
may add a CRC-32 as metadata.

Facts: safetensors/src/tensor.rs (``SafeTensors::read_metadata``, ``Metadata::validate``, ``HashMetadata``,
``TensorInfo``, ``Dtype``) of 0.5.3 to 0.8.0; for ``crc_num`` mindspore/train/serialization.py
(``_exec_save``) of MindSpore 2.10.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import TypeGuard

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.checksum.sums import Piece
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import HEAD, Anatomy, Damage, limit, make_format
from ckpt_tools.formats.common.json_text import Cursor
from ckpt_tools.formats.common.tensors import (
    MAX_SCALARS,
    MAX_TENSORS,
    MAX_TEXT,
    PROGRESS,
    is_single,
    near_miss,
    remember,
    scalar,
    zero_tail,
)
from ckpt_tools.formats.safetensors import safetensors_index
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Tensor
from ckpt_tools.storage import Source

_ROWS = (
    "BOOL bool 8,U8 uint8 8,I8 int8 8,F8_E5M2 float8_e5m2 8,F8_E4M3 float8_e4m3fn 8,F8_E8M0 float8_e8m0fnu 8,"
    "F8_E4M3FNUZ float8_e4m3fnuz 8,F8_E5M2FNUZ float8_e5m2fnuz 8,I16 int16 16,U16 uint16 16,F16 float16 16,"
    "BF16 bfloat16 16,I32 int32 32,U32 uint32 32,F32 float32 32,I64 int64 64,U64 uint64 64,F64 float64 64,"
    "C64 complex64 64,F4 float4_e2m1fn 4,F6_E2M3 float6_e2m3fn 6,F6_E3M2 float6_e3m2fn 6"
)
DTYPES = {name: (dtype, int(bits)) for name, dtype, bits in map(str.split, _ROWS.split(","))}
"""Name in the file -> (dtype, bits per element); safetensors/src/tensor.rs, ``enum Dtype``."""
META_KEYS = ("format", "crc_num", "remove_redundancy")  # the metadata keys that loaders act on
FORMAT_NAMES = ("pt", "ms", "np", "tf", "flax", "mlx", "paddle")
BOOLEANS = ("True", "False")
INT4 = "Int4"
"""MindSpore's dtype of a tensor of int4 pairs, stored as I8: ``__metadata__`` has it under its name."""


def _read_metadata(header: Cursor, anatomy: Anatomy) -> Iterator[Finding]:
    """Read ``__metadata__``, whose values are texts only, into ``header.texts`` and ``anatomy.metadata``."""
    if header.token("{n") == "n":  # null: safetensors reads it as no metadata
        if not header.text.startswith("ull", header.at):
            raise header.bad("__metadata__ is not an object")
        header.at += 3
        return
    header.at -= 1
    seen: set[str] = set()
    twice = False
    for count, key in enumerate(header.members()):
        start = header.key
        text = header.string()
        if key in seen and not twice:
            twice = True
            why = f"the metadata {key[:200]!r} occurs twice"
            yield finding("duplicate-key", why, offset=header.byte(start))
        if count >= MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS} texts of metadata", header.offset)
        if why := _find_flip(key, text):
            yield finding("bad-header", why, offset=header.byte(start))
        seen.add(key)
        shown = text if len(text) <= MAX_TEXT or key == safetensors_index.KEY else ""
        header.texts[key] = (shown, start, header.at)
        if key in META_KEYS:  # kept, however many others there are: the checks depend on these
            anatomy.metadata[key] = text[:MAX_TEXT]
        else:
            remember(anatomy.metadata, key, text)


def _find_flip(key: str, text: str) -> str:
    """Return why a metadata item is damaged, "" if not: a flipped bit in it can change how it is loaded."""
    if meant := near_miss(key, META_KEYS):
        return f"the metadata key {key!r} is one bit away from {meant!r}"
    if key == "format" and text not in FORMAT_NAMES and (meant := near_miss(text, FORMAT_NAMES)):
        return f"the format {text!r} is one bit away from {meant!r}"
    if key == "remove_redundancy" and text not in BOOLEANS:
        return f"remove_redundancy is {text[:40]!r}, which is neither True nor False"
    return ""


def _check_texts(header: Cursor, anatomy: Anatomy) -> Iterator[Finding]:
    """Check metadata that gives tensors a type, as MindSpore writes it. Mark texts that nothing checks."""
    of_mindspore = anatomy.metadata.get("format") == "ms"
    checked = {"format": FORMAT_NAMES, "remove_redundancy": BOOLEANS}
    for key, (text, start, stop) in header.texts.items():
        if key == "crc_num" or text in checked.get(key, ()):
            continue
        why = ""
        if of_mindspore and key in anatomy.keys:
            why = f"the metadata gives {key[:200]!r} the type {text[:40]!r}; loaders know {INT4!r} alone"
            why = "" if text == INT4 else why
        elif of_mindspore and text == INT4:
            why = f"the metadata says that {key[:200]!r} is {INT4}, and there is no such tensor"
        else:
            header.mark(start, stop, "metadata that nothing checks")
        if why:
            yield finding("bad-header", why, offset=header.byte(start))


def _are_uint64(value: object) -> TypeGuard[list[int]]:
    """Return True if a JSON value is a list of unsigned 64-bit integers."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 64 for n in value)


def _is_range(value: object) -> TypeGuard[list[int]]:
    """Return True if a JSON value is [begin, end], in bytes of the data."""
    return _are_uint64(value) and len(value) == 2 and value[0] <= value[1]


def _judge_unknown_dtype(dtype: str, shown: str, at: int) -> Finding:
    """Return the finding on an unknown dtype. Raises Damage if it is a known one with a flipped bit."""
    if meant := near_miss(dtype, DTYPES):
        raise Damage("bad-header", f"tensor {shown} has dtype {dtype!r}, one bit away from {meant!r}", at)
    return finding("unknown-dtype", f"tensor {shown} has the unknown dtype {dtype[:40]!r}", offset=at)


def _read_tensor(header: Cursor, name: str, data: int) -> Generator[Finding, None, Tensor]:
    """Return the tensor in the header's next entry; ``data`` is where the tensors begin. Raises Damage."""
    start = header.key
    entry = header.entry(name)
    dtype, shape, offsets = (entry.pop(key, None) for key in ("dtype", "shape", "data_offsets"))
    shown = repr(name[:200])
    if not isinstance(dtype, str) or not _are_uint64(shape) or not _is_range(offsets):
        why = f"tensor {shown} has no valid dtype, shape and data_offsets"
        raise Damage("bad-header", why, header.byte(start))
    if entry:
        names = ", ".join(repr(key[:40]) for key in list(entry)[:4])
        why = f"tensor {shown} has keys that no writer writes: {names}"
        yield finding("odd-header", why, offset=header.byte(start))
    begin, end = offsets
    dtype_name, bits = DTYPES.get(dtype, (dtype, 0))
    is_known = bits > 0
    if is_known:
        for n in shape:  # safetensors refuses a product beyond 64 bits, also if a later factor is zero
            if (bits := bits * n) >> 67:
                raise Damage("bad-header", f"the shape of tensor {shown} overflows", header.byte(start))
        if bits != 8 * (end - begin):
            why = f"{dtype} {shape[:8]} takes {bits / 8:g} bytes, its offsets hold {end - begin}"
            raise Damage("tensor-size", f"tensor {shown}: {why}", header.byte(start))
    else:
        yield _judge_unknown_dtype(dtype, shown, header.byte(start))
    if (begin == end and len(shape) > 1) or not is_known or entry:
        header.mark(header.value, header.at, "a tensor's description of which the shape may change unseen")
    return Tensor(name, dtype_name, tuple(shape), end - begin, data + begin)


MAX_HEADER = 100_000_000
"""Bytes; safetensors reads no larger header (MAX_HEADER_SIZE), but no writer checks that."""
_LONGEST_HEADER = 1 << 40
"""Bytes; a larger number in the first 8 bytes is no length of a header."""
_LAST_END = re.compile(rb"\[\s*\d+\s*,\s*(\d+)\s*\]\s*\}\s*\}\s*$")
"""The end offset of the last tensor, at the end of a header."""
MAX_ZEROS, ABSURD = 1 << 34, 1 << 40  # zero bytes in all that crc_num covers, and the value of one integer
_ZEROS = bytes(1 << 20)
_BLANK = " \t\r\n"


def _magic(head: bytes) -> bool:
    """Return True for a plausible length, "{", and the beginning of a JSON object behind it."""
    start = head[8:].lstrip(b" \t\r\n")
    return (
        2 <= int.from_bytes(head[:8], "little") <= _LONGEST_HEADER
        and start[:1] == b"{"
        and start[1:].lstrip(b" \t\r\n")[:1] in (b'"', b"}", b"")
    )


def _read_header(source: Source, *, mapped: bool) -> tuple[Cursor, int]:
    """Return a cursor over the JSON header, and the offset of the tensors behind it. Raises Damage."""
    if source.size < 8:
        raise Damage("truncated", f"{source.size} of the 8 bytes of the header's length", source.size)
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER and _magic(source.read(0, min(HEAD, source.size))):
        # the last tensor's end, at the end of the header, tells whether the file is whole
        tail = source.read(max(0, length - 4096), 4096) if length < source.size else b""
        last = _LAST_END.search(tail + source.read(length, 8) if length + 8 <= source.size else b"")
        text = f"a header of {length:,} bytes, and safetensors reads no more than {MAX_HEADER:,}"
        if last is None or int(last[1]) != source.size - length - 8:
            raise Damage("bad-header", text, 0)
        hint = "a copy of it would be refused as well: split its tensors over several files"
        raise Damage("bad-header", f"the file is whole, but it has {text}: no loader opens it", 0, hint=hint)
    if not 2 <= length <= MAX_HEADER:
        raise Damage("bad-header", f"a header of {length} bytes", 0)
    if length > source.size - 8:
        why = f"the header should end at byte {8 + length}, the file ends at {source.size}"
        raise Damage("truncated", why, source.size)
    try:
        return Cursor(source.read(8, length).decode(), mapped=mapped), 8 + length
    except UnicodeDecodeError as e:
        raise Damage("bad-header", "the header is not UTF-8", 8 + e.start) from None


def _read_entries(header: Cursor, data: int, anatomy: Anatomy) -> Iterator[Finding]:
    """Fill ``anatomy`` with tensors, in file order, and metadata. The last entry of a tensor name counts."""
    tensors: dict[str, Tensor] = {}
    twice = False
    for count, name in enumerate(header.members()):
        if count > MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS} tensors", header.offset)
        if name == "__metadata__":
            if name in anatomy.keys:
                raise header.bad("__metadata__ occurs twice")
            yield from _read_metadata(header, anatomy)
        else:
            if name in tensors and not twice:
                twice = True
                why = f"tensor {name[:200]!r} is described twice; readers take the last one"
                yield finding("duplicate-key", why, offset=header.offset)
            header.mark(header.key + 1, header.key_end - 1, "a tensor's name", summed=True)
            tensors[name] = yield from _read_tensor(header, name, data)
        anatomy.keys.add(name)
    if header.text[header.at :].strip(_BLANK):
        raise header.bad("text follows the end of the header's object")
    anatomy.keys.discard("__metadata__")
    yield from _check_texts(header, anatomy)
    anatomy.tensors = sorted(tensors.values(), key=lambda t: (t.offset or 0, t.nbytes, t.name))
    if safetensors_index.KEY in header.texts:
        text, start, _ = header.texts[safetensors_index.KEY]
        yield from safetensors_index.read_boxes(text, anatomy, header.byte(start))


def _check_tiling(tensors: list[Tensor], data: int, size: int) -> None:
    """Raise Damage unless the tensors fill the bytes from ``data`` to ``size``, without hole or overlap."""
    at = data
    for t in tensors:
        if t.offset != at:
            what = "overlaps the one before it" if (t.offset or 0) < at else "leaves a hole before it"
            why = f"tensor {t.name[:200]!r} begins at byte {t.offset} instead of {at}: it {what}"
            raise Damage("bad-header", why, t.offset)
        at += t.nbytes
    if size < at:
        raise Damage("truncated", f"the data should end at byte {at}, the file ends at {size}", size)
    if size > at:
        text = f"{size - at} bytes follow the last tensor: it is whole up to byte {at}"
        hint = f"if they were only appended, cut it there (truncate -s {at} PATH); else restore it"
        raise Damage("trailing-data", text, at, hint=hint)


def _add_checksum(source: Source, anatomy: Anatomy, text: str, at: int) -> Iterator[Finding]:
    """Add MindSpore's ``crc_num``: CRC-32 over name and ``bytes(array)`` of every tensor, by name. For a
    rank-0 integer bytes(array) is as many zeros as its value: an absurd value is damage in itself.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 1 << 32):
        raise Damage("bad-header", f"crc_num is {text[:40]!r}, which is no CRC-32", at)
    pieces: list[Piece] = []
    zeros = 0
    for t in sorted(anatomy.tensors, key=lambda t: t.name):
        pieces.append(t.name.encode())
        offset = t.offset or 0
        if t.shape or "int" not in t.dtype:
            pieces.append(Extent(offset, t.nbytes))
            continue
        value = scalar(source.read(offset, t.nbytes), t.dtype)
        if not isinstance(value, int) or not 0 <= value < ABSURD:
            why = f"the integer {t.name[:200]!r} is {value}: MindSpore could not have written crc_num over it"
            yield finding("crc-mismatch", why, offset=offset)
            return
        anatomy.explain(offset, t.nbytes, "a single integer: crc_num counts in as many zeros")
        zeros += value
        if zeros > MAX_ZEROS:
            why = f"crc_num covers {zeros} bytes of padding for integers: it was not checked"
            yield finding("too-complex", why, offset=at)
            return
        pieces += [_ZEROS] * (value >> 20) + [_ZEROS[: value & 0xFFFFF]]
    anatomy.sums.append(Sum("MindSpore's crc_num", int(text), tuple(pieces), at))


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check header and tiling. Reads the header, a few scalars of MindSpore files, and the last page."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    header, data = _read_header(source, mapped=anatomy.regions is not None)
    if header.text[0] in _BLANK:
        header.at = len(header.text) - len(header.text.lstrip(_BLANK))
        why = "the header begins with blanks, which its specification forbids"
        yield finding("odd-header", why, offset=8)
    yield from _read_entries(header, data, anatomy)
    _check_tiling(anatomy.tensors, data, source.size)
    anatomy.explain(0, 8, "the header's length")
    crc = anatomy.metadata.get("crc_num")
    if anatomy.metadata.get("format") == "ms":
        for t in anatomy.tensors:
            if is_single(t.dtype, t.shape) and (t.name in PROGRESS or len(anatomy.metadata) < MAX_SCALARS):
                remember(anatomy.metadata, t.name, scalar(source.read(t.offset or 0, t.nbytes), t.dtype))
    if isinstance(crc, str):
        yield from _add_checksum(source, anatomy, crc, header.byte(header.texts["crc_num"][1]))
    else:
        yield finding("not-checksummed", "the format has no checksum, and none was added to it")
    if anatomy.sums:
        header.free = [span for span in header.free if not span.summed]
    else:
        anatomy.explain(data, source.size - data, "tensors without a checksum", Guard.UNPROTECTED)
    header.explain(anatomy, "the JSON header")
    if lost := zero_tail(source, anatomy.tensors, data):
        yield lost


FORMAT = make_format("safetensors", _magic, _structure, loader="safetensors")
