"""MindSpore's .ckpt, plain and encrypted: what is seen, what cannot be seen, and that no bytes make the
checks fail otherwise.
"""

from __future__ import annotations

import math
import struct
import zlib

import helpers
import pytest
from examples import examples
from helpers import findings, flipped, protected
from hypothesis import given
from hypothesis import strategies as st
from mindspore_writer import field, record, table, tensor, varint
from places import FORMAT_FILES

from ckpt_tools.formats.common.format import HEAD, Anatomy
from ckpt_tools.formats.common.tensors import near_miss
from ckpt_tools.formats.mindspore import mindspore_ckpt
from ckpt_tools.formats.mindspore.mindspore_ckpt import MAP_TYPES, OPAQUE, TYPES
from ckpt_tools.inspection.check import regions_of
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard

CRC = (FORMAT_FILES / "mindspore_ckpt/good/tiny-crc.ckpt").read_bytes()
ITEM = {
    "Bool": 1, "Int8": 1, "Int4": 1, "UInt16": 2, "Float16": 2, "BFloat16": 2, "Int32": 4, "Float32": 4, "Int64": 8,
    "Float64": 8, "Complex128": 16,
}  # fmt: skip


def look(data: bytes, anatomy: Anatomy | None = None) -> list[Finding]:
    """All findings of the structure check and of the stored checksums."""
    return list(findings(data, mindspore_ckpt.FORMAT, Anatomy() if anatomy is None else anatomy))


def codes(data: bytes) -> set[str]:
    """The findings that are more than notes."""
    return helpers.codes(look(data))


def metadata(data: bytes) -> dict[str, object]:
    anatomy = Anatomy()
    look(data, anatomy)
    return dict(anatomy.metadata)


def sealed(*records: bytes, over: bytes | None = None) -> bytes:
    data = b"".join(records)
    return data + b"crc_num" + zlib.crc32(data if over is None else over).to_bytes(10, "big")


W = record("w", (2, 3), "Float32", bytes(range(24)))
B = record("b", (4,), "Int8", b"abcd")
KEYS = tensor((3,), "int32", bytes(12))
M = table("m", KEYS, tensor((3, 2), "float32", bytes(24)), KEYS)


@pytest.mark.parametrize(
    ("dims", "kind", "content", "shape"),
    [  # of dims (0,) are the scalars of 1.x
        ((), "Float32", bytes(4), ()), ((0,), "Float32", bytes(4), ()), ((0,), "Float32", b"", (0,)), ((0, 3), "Float16", b"", (0, 3)),
        ((5,), "Int4", bytes(5), (5,)), ((2,), "Complex128", bytes(32), (2,)), ((3,), "Float8E4M3FN", bytes(3), (3,)),
        ((0,), "str", "héllo 层".encode("utf-32-le"), ()), ((0,), "str", b"", ()), ((), "random_op", b"anything", ()),
    ],
)  # fmt: skip
def test_conventions(dims: tuple[int, ...], kind: str, content: bytes, shape: tuple[int, ...]) -> None:
    anatomy = Anatomy()
    assert [f.code for f in look(record("x", dims, kind, content), anatomy)] == ["not-checksummed"]
    (only,) = anatomy.tensors
    assert (only.name, only.shape, only.nbytes) == ("x", shape, len(content))
    assert record("x", dims, kind, content)[only.offset :] == content


DAMAGED = {
    "truncated": [  # at the end of the file: a piece may be missing
        record("x", (2, 3), "Float32", bytes(20)), W + b"\x0a" + varint(1 << 62) + b"\x0a\x01x",
    ],
    "tensor-size": [
        record("x", (2, 3), "Float32", bytes(20)) + B, record("x", (2, 3), "Float32", bytes(28)), record("x", (0,), "str", b"abcde"),
        record("x", (2,), "str", bytes(8)),
    ],
    "bad-header": [
        record("x", (0,), "str", struct.pack("<I", 0x110000)), record("x", (2,), "float32", bytes(8)), record("x", (1,) * 65, "Int8", b"a"),
        record("", (1,), "Int8", b"a"), record("a\nb", (1,), "Int8", b"a"), record("x" * 5000, (1,), "Int8", b"a"),
        record("x", (8,), "Int8", b"abcd") + record("x", (4,), "Int8", b"abcd"),
        field(1, field(1, b"x") + field(2, field(3, b"") + field(2, b"Int8"))),
        field(1, field(2, tensor((1,), "Int8", b"a")) + field(1, b"x")),
        table("m", tensor((1,), "int32", bytes(4)), tensor((1,), "float32", bytes(4))), W + b"\x0a\x80\x00", W + b"garbage",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("data", "code"), [(data, code) for code, of in DAMAGED.items() for data in of])
def test_damage(data: bytes, code: str) -> None:
    assert codes(data) == {code}


def test_metadata_is_bounded_but_keeps_the_progress() -> None:
    many = b"".join(record(f"p{i}", (1,), "Int32", struct.pack("<i", i)) for i in range(200))
    many += record("long", (0,), "str", "x".encode("utf-32-le") * 300)
    found = metadata(many + record("step_num", (), "Int64", struct.pack("<q", 7)))
    assert found["step_num"] == 7 and len(found) <= 66 and "long" not in found


def test_scalars_that_json_cannot_hold_become_text() -> None:
    nan = record("a", (), "Float32", struct.pack("<f", float("nan")))
    found = metadata(nan + record("b", (), "BFloat16", b"\x80\xff"))
    assert found == {"crc_trailer": False, "a": "nan", "b": "-inf"}


def test_either_crc_of_a_map_parameter_is_right() -> None:
    for data in sealed(W, M, B), sealed(W, M, B, over=W + B), sealed(M, over=b""), sealed(M, M, B, over=B):
        anatomy = Anatomy()
        assert not look(data, anatomy)
        assert protected(anatomy) == len(data) - 17 - data.count(M) * len(M)
    assert codes(sealed(W, M, B, over=W + M)) == {"crc-mismatch"}


def test_either_crc_of_a_random_op_is_right() -> None:
    """An intermediate generation wrote it straight to the file, past the CRC."""
    state = record("random_op", (), "random_op", b"\x08\x07")
    for data in sealed(state, W, B), sealed(state, W, B, over=W + B):
        assert not look(data)
    assert codes(sealed(state, W, B, over=state + W)) == {"crc-mismatch"}


def test_scalars_of_two_generations_do_not_mix() -> None:
    new, old = record("a", (), "Int32", bytes(4)), record("b", (0,), "Int32", bytes(4))
    text = record("c", (0,), "str", "x".encode("utf-32-le"))
    empty, state = record("d", (0,), "Int32", b""), record("e", (), "random_op", b"x")
    assert codes(new + old) == codes(sealed(old, W, new)) == {"odd-header"}
    assert not codes(new + text + empty + state) and not codes(old + text + empty + state)


def test_no_known_type_is_one_bit_from_another() -> None:
    """Otherwise a flipped bit in a type could pass, and the map would be wrong."""
    for types in TYPES, MAP_TYPES:
        known = [*types, *OPAQUE]
        assert not [name for name in known if near_miss(name, [k for k in known if k != name])]


def guards(data: bytes) -> dict[Guard, set[int]]:
    """The bytes of each guard, of a file that is explained to the last byte."""
    anatomy = Anatomy(regions=[])
    assert not helpers.codes(look(data, anatomy))
    regions = regions_of(anatomy, len(data))
    assert "unexplained" not in {r.what for r in regions}
    return {
        g: {i for r in regions if r.guard is g for i in range(r.offset, r.offset + r.length)} for g in Guard
    }


def test_zero_tail_inside_the_last_tensor() -> None:
    data = record("w", (100, 33), "Float32", b"\1" * 132 * 100)
    size = len(data)
    # whole rows of zeros may be genuine
    for zeros_from, found in ((8192, {"zero-tail"}), (size - 132 * 10, set()), (8180, set()), (size, set())):
        assert codes(data[:zeros_from].ljust(size, b"\0")) == found


KINDS = st.sampled_from(sorted(ITEM))
NAMES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=200)


@st.composite
def records(draw: st.DrawFn) -> tuple[list[str], bytes]:
    """A valid file and its tags; contents are made of a seed, so that long ones cost no draw."""
    tags = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    data = b""
    for name in tags:
        kind, dims = draw(KINDS), draw(st.lists(st.integers(1, 9), max_size=4))
        data += record(name, dims, kind, bytes([draw(st.integers(0, 255))]) * (ITEM[kind] * math.prod(dims)))
    return tags, sealed(data) if draw(st.booleans()) else data


@pytest.mark.slow
@examples(150)
@given(records())
def test_valid_files_pass(made: tuple[list[str], bytes]) -> None:
    names, data = made
    anatomy = Anatomy()
    assert not helpers.codes(look(data, anatomy))
    assert [t.name for t in anatomy.tensors] == names and anatomy.keys == set(names)
    assert mindspore_ckpt.FORMAT.magic(data[:HEAD])


@pytest.mark.slow
@examples(60)
@given(records(), st.data())
def test_every_flip_is_seen_where_the_map_says_so(made: tuple[list[str], bytes], data: st.DataObject) -> None:
    raw = made[1]
    sure = sorted(set(range(len(raw))) - guards(raw)[Guard.UNPROTECTED])
    for at in data.draw(st.lists(st.sampled_from(sure), max_size=40)):
        for bit in range(8 * at, 8 * at + 8):
            assert codes(flipped(raw, bit)), bit


def test_what_follows_a_trailer_is_said_to_do_so() -> None:
    for more in (CRC[-17:], b"x"):
        found = next(f for f in look(CRC + more) if f.severity is Severity.ERROR)
        assert (found.code, found.offset) == ("trailing-data", len(CRC))
