"""The JSON header of safetensors: what an entry and the metadata may say.

Facts: safetensors/src/tensor.rs (``HashMetadata``, ``TensorInfo``, ``Dtype``) of 0.5.3 to 0.8.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeGuard

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.json_cursor import Cursor
from ckpt_tools.formats.common.tensors import MAX_TENSORS, MAX_TEXT, near_miss, remember
from ckpt_tools.formats.safetensors import dcp_sharding
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.tensor import Tensor

DTYPES = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "I16": ("int16", 16),
    "U16": ("uint16", 16),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "I32": ("int32", 32),
    "U32": ("uint32", 32),
    "F32": ("float32", 32),
    "I64": ("int64", 64),
    "U64": ("uint64", 64),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F4": ("float4_e2m1fn", 4),
    "F6_E2M3": ("float6_e2m3fn", 6),
    "F6_E3M2": ("float6_e3m2fn", 6),
}
"""Name in the file -> (dtype, bits per element); safetensors/src/tensor.rs, ``enum Dtype``."""
META_KEYS = ("format", "crc_num", "remove_redundancy")
FORMAT_NAMES = ("pt", "ms", "np", "tf", "flax", "mlx", "paddle")
BOOLEANS = ("True", "False")
INT4 = "Int4"
"""MindSpore's word for the dtype of a tensor of int4 pairs, stored as I8 under the tensor's own name in
``__metadata__``.
"""


def metadata(header: Cursor, anatomy: Anatomy) -> Iterator[Finding]:
    """``__metadata__``: texts only."""
    if header.token("{n") == "n":  # null: the reader takes it for nothing
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
        if why := _flipped(key, text):
            yield finding("bad-header", why, offset=header.byte(start))
        seen.add(key)
        kept = text if len(text) <= MAX_TEXT or key == dcp_sharding.KEY else ""
        header.texts[key] = (kept, start, header.at)
        if key in META_KEYS:  # they decide what is checked: kept whatever else there is
            anatomy.metadata[key] = text[:MAX_TEXT]
        else:
            remember(anatomy.metadata, key, text)


def _flipped(key: str, text: str) -> str:
    """What is wrong with an item of the metadata: a word of ours that lost one bit changes what loaders do"""
    if meant := near_miss(key, META_KEYS):
        return f"the metadata key {key!r} is one bit away from {meant!r}"
    if key == "format" and text not in FORMAT_NAMES and (meant := near_miss(text, FORMAT_NAMES)):
        return f"the format {text!r} is one bit away from {meant!r}"
    if key == "remove_redundancy" and text not in BOOLEANS:
        return f"remove_redundancy is {text[:40]!r}, which is neither True nor False"
    return ""


def known_texts(header: Cursor, anatomy: Anatomy) -> Iterator[Finding]:
    """Metadata that names tensors, as MindSpore writes it; call when all tensors are known. Notes which texts
    may change unseen.
    """
    of_mindspore = anatomy.metadata.get("format") == "ms"
    checked = {"format": FORMAT_NAMES, "remove_redundancy": BOOLEANS}
    for key, (text, start, stop) in header.texts.items():
        if key == "crc_num" or text in checked.get(key, ()):
            continue
        why = ""
        if of_mindspore and key in anatomy.keys:
            why = (
                f"the metadata gives tensor {key[:200]!r} the type {text[:40]!r}; loaders know {INT4!r} alone"
                if text != INT4
                else ""
            )
        elif of_mindspore and text == INT4:
            why = f"the metadata says that {key[:200]!r} is {INT4}, and there is no such tensor"
        else:
            header.mark(start, stop, "metadata that nothing checks")
        if why:
            yield finding("bad-header", why, offset=header.byte(start))


def _counts(value: object) -> TypeGuard[list[int]]:
    """Whether a JSON value is a list of unsigned 64-bit integers."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 64 for n in value)


def _is_range(value: object) -> TypeGuard[list[int]]:
    """Whether a JSON value is the offsets of a first byte and behind a last one."""
    return _counts(value) and len(value) == 2 and value[0] <= value[1]


def _some(keys: Iterable[str]) -> str:
    return ", ".join(repr(key[:40]) for key in list(keys)[:4])


def _unknown(dtype: str, shown: str, at: int) -> Finding:
    """What to say of a tensor whose dtype is not known. Raises Damage when it is one that lost a bit."""
    if meant := near_miss(dtype, DTYPES):
        why = f"tensor {shown} has dtype {dtype!r}, one bit away from {meant!r}"
        raise Damage("bad-header", why, at)
    return finding("unknown-dtype", f"tensor {shown} has the unknown dtype {dtype[:40]!r}", offset=at)


def tensor(header: Cursor, name: str, data: int) -> Iterator[Tensor | Finding]:
    """The next entry as a Tensor, its offset in the file, after what is odd about it.

    ``data`` is where the tensors begin.
    """
    start = header.key
    entry = header.entry(name)
    dtype, shape, offsets = (entry.pop(key, None) for key in ("dtype", "shape", "data_offsets"))
    shown = repr(name[:200])
    if not isinstance(dtype, str) or not _counts(shape) or not _is_range(offsets):
        why = f"tensor {shown} has no valid dtype, shape and data_offsets"
        raise Damage("bad-header", why, header.byte(start))
    if entry:
        why = f"tensor {shown} has keys that no writer writes: {_some(entry)}"
        yield finding("odd-header", why, offset=header.byte(start))
    begin, end = offsets
    known = DTYPES.get(dtype)
    if known:
        bits = known[1]
        for n in shape:  # a product beyond 64 bits is refused by the reader, also when a later factor is zero
            if (bits := bits * n) >> 67:
                raise Damage("bad-header", f"the shape of tensor {shown} overflows", header.byte(start))
        if bits != 8 * (end - begin):
            why = f"{dtype} {shape[:8]} takes {bits / 8:g} bytes, its offsets hold {end - begin}"
            raise Damage("tensor-size", f"tensor {shown}: {why}", header.byte(start))
    else:
        yield _unknown(dtype, shown, header.byte(start))
    if (begin == end and len(shape) > 1) or not known or entry:
        header.mark(header.value, header.at, "a tensor's description of which the shape may change unseen")
    yield Tensor(name, known[0] if known else dtype, tuple(shape), end - begin, data + begin)
