"""The JSON header of safetensors, read entry by entry, so that neither the nesting nor the size of hostile JSON costs more than its text.

Facts: safetensors/src/tensor.rs (``HashMetadata``, ``TensorInfo``, ``Dtype``) of 0.5.3 to 0.8.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ckpt_tools.codes import finding
from ckpt_tools.formats._base import Anatomy, Damage
from ckpt_tools.formats._tensors import MAX_NAME, MAX_TENSORS, MAX_TEXT, near_miss, remember
from ckpt_tools.model import Finding, Tensor

MAX_ENTRY = 4096
"""Characters of one tensor's description; real ones have about 70."""
DTYPES = {
    "BOOL": ("bool", 8), "U8": ("uint8", 8), "I8": ("int8", 8), "F8_E5M2": ("float8_e5m2", 8), "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8), "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8), "I16": ("int16", 16),
    "U16": ("uint16", 16), "F16": ("float16", 16), "BF16": ("bfloat16", 16), "I32": ("int32", 32), "U32": ("uint32", 32),
    "F32": ("float32", 32), "I64": ("int64", 64), "U64": ("uint64", 64), "F64": ("float64", 64), "C64": ("complex64", 64),
    "F4": ("float4_e2m1fn", 4), "F6_E2M3": ("float6_e2m3fn", 6), "F6_E3M2": ("float6_e3m2fn", 6),
}  # fmt: skip
"""Name in the file -> (dtype, bits per element); safetensors/src/tensor.rs, ``enum Dtype``."""
META_KEYS = ("format", "crc_num", "remove_redundancy")
FORMAT_NAMES = ("pt", "ms", "np", "tf", "flax", "mlx", "paddle")

_BLANK = re.compile(r"[ \t\r\n]*")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _integer(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)  # the reader takes "-0" for a fraction, and so refuses it as a count


class Header:
    """A cursor over the header's text; every complaint is a Damage at a byte offset of the file (exact while the text is ASCII)."""

    def __init__(self, text: str) -> None:
        import json

        self.text, self.at = text, 0
        self.decoder = json.JSONDecoder(object_pairs_hook=_once, parse_int=_integer)

    def bad(self, why: str) -> Damage:
        return Damage("bad-header", why, 8 + self.at)

    def token(self, wanted: str) -> str:
        """The next character that is not blank, if it is one of ``wanted``."""
        at = _BLANK.match(self.text, self.at).end()  # type: ignore[union-attr]  # it matches everywhere
        self.at, found = at, self.text[at : at + 1]
        if not found or found not in wanted:
            raise self.bad(f"{self.text[at : at + 40]!r} in the header where one of {wanted!r} belongs")
        self.at += 1
        return found

    def string(self) -> str:
        """The JSON string at the cursor."""
        self.token('"')
        try:
            text, self.at = self.decoder.raw_decode(self.text, self.at - 1)
            text.encode()  # a lone surrogate is refused by every reader
        except ValueError as e:
            raise self.bad(f"an invalid text in the header: {e}") from None
        return str(text)

    def members(self) -> Iterator[str]:
        """The keys of the object at the cursor; the consumer moves the cursor over each value."""
        self.token("{")
        start, more = self.at, self.token('"}')
        if more == "}":
            return
        self.at, more = start, ","
        while more == ",":
            key = self.string()
            if len(key) > MAX_NAME:
                raise Damage("too-complex", f"a name of {len(key)} characters", 8 + self.at)
            self.token(":")
            yield key
            more = self.token(",}")

    def entry(self, name: str) -> dict[str, Any]:
        """A tensor's description. It ends at its first closing brace, or, with keys that hold objects, at one of the next."""
        self.token("{")
        self.at -= 1
        close, why = self.at, "no closing brace"
        while (close := self.text.find("}", close, self.at + MAX_ENTRY) + 1) > 0:
            try:
                entry: dict[str, Any] = self.decoder.decode(self.text[self.at : close])
            except (ValueError, RecursionError) as e:
                why = str(e)
                continue
            self.at = close
            return entry
        raise self.bad(f"the description of tensor {name!r} is invalid: {why}")


def metadata(header: Header, anatomy: Anatomy) -> Iterator[Finding]:
    """``__metadata__``: texts only. A word of ours that lost one bit is damage: it changes what loaders do."""
    if header.token("{n") == "n":  # null: the reader takes it for nothing
        if not header.text.startswith("ull", header.at):
            raise header.bad("__metadata__ is not an object")
        header.at += 3
        return
    header.at -= 1
    seen: set[str] = set()
    twice = False
    for count, key in enumerate(header.members()):
        text = header.string()
        if key in seen and not twice:
            twice = True
            yield finding("duplicate-key", f"the metadata {key!r} occurs twice", offset=8 + header.at)
        if count >= MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS} texts of metadata", 8 + header.at)
        if meant := near_miss(key, META_KEYS):
            yield finding("bad-header", f"the metadata key {key!r} is one bit away from {meant!r}", offset=8 + header.at)
        elif key == "format" and text not in FORMAT_NAMES and (meant := near_miss(text, FORMAT_NAMES)):
            yield finding("bad-header", f"the format {text!r} is one bit away from {meant!r}", offset=8 + header.at)
        seen.add(key)
        if key in META_KEYS:  # they decide what is checked: kept whatever else there is
            anatomy.metadata[key] = text[:MAX_TEXT]
        else:
            remember(anatomy.metadata, key, text)


def _counts(value: object) -> bool:
    """Whether a JSON value is a list of unsigned 64-bit integers."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 64 for n in value)


def tensor(header: Header, name: str, data: int) -> Iterator[Tensor | Finding]:
    """The next entry as a Tensor, its offset in the file, after what is odd about it. ``data`` is where the tensors begin."""
    at, entry = 8 + header.at, header.entry(name)
    dtype, shape, offsets = (entry.pop(key, None) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _counts(shape) or not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Damage("bad-header", f"tensor {name!r} has no valid dtype, shape and data_offsets", at)
    if entry:
        yield finding("odd-header", f"tensor {name!r} has keys that no writer writes: {', '.join(map(repr, list(entry)[:4]))}", offset=at)
    begin, end = offsets
    known = DTYPES.get(dtype)
    if known:
        bits = known[1]
        for n in shape:  # a product beyond 64 bits is refused by the reader, also when a later factor is zero
            if (bits := bits * n) >> 67:
                raise Damage("bad-header", f"the shape of tensor {name!r} overflows", at)
        if bits != 8 * (end - begin):
            raise Damage("tensor-size", f"tensor {name!r}: {dtype} {shape[:8]} takes {bits / 8:g} bytes, its offsets hold {end - begin}", at)
    elif meant := near_miss(dtype, DTYPES):
        raise Damage("bad-header", f"tensor {name!r} has dtype {dtype!r}, one bit away from {meant!r}", at)
    else:
        yield finding("unknown-dtype", f"tensor {name!r} has the unknown dtype {dtype!r}", offset=at)
    yield Tensor(name, known[0] if known else dtype, tuple(shape), end - begin, data + begin)
