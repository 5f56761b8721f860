"""safetensors: the reader's own rules, MindSpore's crc_num, hostile headers, and agreement with the
safetensors library where it is installed.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import helpers
import pytest
from counted import memory_below
from examples import examples
from helpers import findings, flipped, protected
from hypothesis import given
from hypothesis import strategies as st
from places import FORMAT_FILES
from safetensors_writer import entry, made, packed

from ckpt_tools.formats.common.format import HEAD, Anatomy, structure
from ckpt_tools.formats.safetensors import safetensors
from ckpt_tools.inspection.check import regions_of
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Level, Region
from ckpt_tools.storage import BytesSource, LocalSource, Source

# its law is checked wherever it is at hand
library: Any = import_module("safetensors") if find_spec("safetensors") else None
if library is not None and tuple(map(int, library.__version__.split(".")[:2])) < (0, 8):
    library = None  # it refuses the dtypes of six bits and fewer, and those of eight that 0.8 has first

GOOD = FORMAT_FILES / "safetensors/good"
TINY, CRC = ((GOOD / f"{n}.safetensors").read_bytes() for n in ("tiny", "mindspore-crc"))
BITS = {"BOOL": 8, "U8": 8, "F8_E4M3": 8, "I16": 16, "BF16": 16, "F32": 32, "I32": 32, "I64": 64, "F64": 64, "C64": 64}  # fmt: skip


def look(data: bytes | Source, anatomy: Anatomy | None = None) -> list[Finding]:
    """All findings of the structure check and of the stored checksums."""
    return list(findings(data, safetensors.FORMAT, Anatomy() if anatomy is None else anatomy))


def codes(data: bytes | Source) -> set[str]:
    """The findings that are more than notes."""
    return helpers.codes(look(data))


def crc_num(tensors: dict[str, tuple[str, list[int], bytes]]) -> str:
    """As MindSpore counts: a rank-0 integer is that many zero bytes."""
    crc = 0
    for name in sorted(tensors):
        dtype, shape, content = tensors[name]
        if not shape and dtype[0] in "IU":
            content = bytes(int.from_bytes(content, "little"))
        crc = zlib.crc32(content, zlib.crc32(name.encode(), crc))
    return str(crc)


A = {"a": entry("F32", [2], 0, 8)}
"""Two floats."""
MS = {"w": ("F32", [3], b"abcdefghijkl"), "epoch_num": ("I64", [], struct.pack("<q", 3)), "lr": ("F32", [], struct.pack("<f", 0.5)), "global_step": ("I32", [1], struct.pack("<i", 9))}  # fmt: skip


def floats(**changed: object) -> bytes:
    return made({"a": A["a"] | changed}, bytes(8))


def one_byte(told: str) -> bytes:
    """A file of one byte, of which this is told."""
    return made(f'{{"a":{{"dtype":"U8",{told}}}}}', b"a")


RULES = {
    "truncated": [struct.pack("<Q", 100_000_000) + b'{"a"'],
    "bad-header": [
        struct.pack("<Q", 1 << 63) + b"{}", struct.pack("<Q", 0),
        *map(made, ("[]", '"text"', "{}\0\0", "{}\f", "{,}", '{"a":1}', '{"a":{}}')), one_byte('"shape":[],"data_offsets":[-0,1]'),
        made('{"a":["F32",[2],[0,8]]}', bytes(8)), made(json.dumps(A)[:-1] + ",}", b"\1" * 8), made(json.dumps(A)[:-1], b"\1" * 8),
        floats(shape=[2.0]), floats(shape=[True, 2]), floats(shape="2"), floats(shape=[-2]), floats(data_offsets=[0, 8, 8]),
        floats(data_offsets=[8, 0]), made({"a": entry("F32", [1 << 64, 0], 0, 0)}), made({"a": entry("F32", [1 << 63, 4, 0], 0, 0)}),
        one_byte('"shape":[%s],"data_offsets":[0,1]' % ("1" * 4000)),
        made({"a": entry("U8", [2], 0, 2), "z": entry("U8", [0], 1, 1)}, b"ab"), made({"a": entry("U8", [1], 1, 2)}, b"ab"),
        *(made({"a": entry(one_bit_off, [1], 0, 4)}, b"abcd") for one_bit_off in ("G32", "f32")),
        *map(made, ('{"__metadata__":nope}', '{"__metadata__":{"a":null}}', '{"__metadata__":{},"__metadata__":{}}')),
        *map(made, ('{"__metadata__":{"fopmat":"pt"}}', '{"__metadata__":{"format":"qt"}}', '{"__metadata__":{"crc_num":"4294967296"}}')),
        made('{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a"),
        one_byte('"dtype":"U8","shape":[1],"data_offsets":[0,1]'),
    ],
    "tensor-size": [floats(shape=[3]), made({"a": entry("F4", [1], 0, 1)}, bytes(1))],  # half a byte
    "unknown-dtype": [made({"a": entry("X9", [1], 0, 2)}, b"ab")],
    "odd-header": [
        made('\n { "a" :\t{"shape":[ ], "dtype":"U8" ,"data_offsets": [0 ,1]} } \n', b"a"),
        one_byte('"shape":[1],"data_offsets":[0,1],"x":{"y":[{}]}'),
    ],
    "duplicate-key": [made(json.dumps(A)[:-1] + "," + json.dumps(A)[1:], b"\1" * 8)],
    "": [
        made({"a": entry("F6_E2M3", [4], 0, 3)}, b"abc"), made({"a": entry("U8", [2], 0, 2), "z": entry("U8", [0], 2, 2)}, b"ab"),
        made({"a": entry("U8", [1], 0, 1), "b": entry("F32", [1], 1, 5)}, b"abcde"),  # not aligned, but the reader takes it
        *map(made, ('{"__metadata__":null}', '{"__metadata__":{"format":"my own"}}', '{"__metadata__":{"crc_num":"0"}}')),
        made('{"\\u00e9\\"}":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("data", "code"), [(data, code) for code, of in RULES.items() for data in of])
def test_rules(data: bytes, code: str) -> None:
    assert codes(data) == ({code} if code else set())
    check_against_the_library(data)


def test_fixtures_are_for_the_library_what_they_are_here() -> None:
    for path in FORMAT_FILES.glob("safetensors/*/*.safetensors"):
        check_against_the_library(path.read_bytes())
        if library is not None and path.parent == GOOD:
            library.deserialize(path.read_bytes())


def check_against_the_library(data: bytes) -> None:
    """What the library refuses is an error here too; the reverse need not hold, for the library overlooks
    some damage.
    """
    if library is None:
        return
    try:
        library.deserialize(data)
    except library.SafetensorError:
        found = look(data)
        assert any(f.severity is Severity.ERROR or f.code in ("unknown-dtype", "too-complex") for f in found)


def test_tensors_and_metadata() -> None:
    anatomy = Anatomy()
    assert [f.code for f in look(TINY, anatomy)] == ["not-checksummed"]
    assert anatomy.metadata == {"format": "pt", "note": 'a "quoted" line\n'}
    assert {t.name: (t.dtype, t.shape) for t in anatomy.tensors} == {
        "steps": ("int64", ()), "a.bias": ("float32", (8,)), "a.weight": ("float32", (8, 6)), "none": ("float32", (0, 3)),
        "层": ("float32", (2,)),
    }  # fmt: skip
    steps = next(t for t in anatomy.tensors if t.name == "steps")
    assert steps.offset is not None and TINY[steps.offset : steps.offset + 8] == struct.pack("<q", 5)
    assert anatomy.keys == {t.name for t in anatomy.tensors} and protected(anatomy) == 0


def test_mindspore_scalars() -> None:
    anatomy = Anatomy()
    assert not look(CRC, anatomy)
    told = {"epoch_num": 3, "step_num": 1_200_000, "global_step": 12, "loss_scale": 1024.0, "done": True}
    assert {name: anatomy.metadata[name] for name in told} == told


def test_crc_num_of_our_own_writer() -> None:
    meta, anatomy = {"format": "ms", "crc_num": crc_num(MS)}, Anatomy()
    assert not look(packed(MS, meta), anatomy)
    assert protected(anatomy) == sum(len(c) for n, (t, s, c) in MS.items() if s or "I" not in t)
    for value, code in ((4, "crc-mismatch"), (-1, "crc-mismatch"), (1 << 41, "crc-mismatch"), (1 << 35, "too-complex")):  # fmt: skip
        assert codes(packed(MS | {"epoch_num": ("I64", [], struct.pack("<q", value))}, meta)) == {code}
    assert codes(packed(MS | {"w": ("F32", [3], b"abcdefghijkL")}, meta)) == {"crc-mismatch"}


def test_crc_num_is_found_behind_many_texts() -> None:
    meta = {f"k{i}": "v" for i in range(100)} | {"crc_num": "1"}
    assert codes(packed(MS, meta)) == {"crc-mismatch"}


def rows(zeros_from: int, then: int = 0) -> bytes:
    """100 rows of 132 bytes, then ``then`` more tensors of 40 bytes; zeros from an offset of the file on."""
    more = {f"b{i}": ("F32", [10], b"\2" * 40) for i in range(then)}
    data = packed({"a": ("F32", [100, 33], b"\1" * 13200), **more})
    return data[:zeros_from].ljust(len(data), b"\0")


NO_PAGE, WHOLE_ROWS, WHOLE_TENSORS = 8192 + 300, len(rows(0)) - 132 * 8, len(rows(0, 3)) - 120
"""Where zeros that begin there may be genuine."""


@pytest.mark.parametrize(
    ("data", "seen"),
    [(rows(8192), True), (rows(4096, 3), True), (rows(NO_PAGE), False), (rows(WHOLE_ROWS), False), (rows(WHOLE_TENSORS, 3), False)],
)  # fmt: skip
def test_zero_tail(data: bytes, seen: bool) -> None:
    assert codes(data) == ({"zero-tail"} if seen else set())


def test_long_zero_tail_costs_few_reads(tmp_path: Path) -> None:
    """1 GiB of which all but 1 MiB was never written."""
    path = tmp_path / "x.safetensors"
    head = made({"w": entry("F32", [8136, 32993], 0, 8136 * 32993 * 4)})
    with path.open("wb") as f:
        f.write((head + b"\1" * (1 << 20))[: 1 << 20])
        f.truncate(len(head) + 8136 * 32993 * 4)
    with LocalSource(str(path)) as source:
        found = list(structure(source, Anatomy(), safetensors.FORMAT.checks[Level.STRUCTURE]))
        assert [(f.code, f.offset) for f in found][-1] == ("zero-tail", 1 << 20)
        assert source.bytes_read < 200_000


def mapped(data: bytes) -> list[Region]:
    """The map of the file's bytes."""
    anatomy = Anatomy(regions=[])
    assert not [f for f in look(data, anatomy) if f.severity > Severity.NOTE]
    return list(regions_of(anatomy, len(data)))


def free(data: bytes) -> list[bytes]:
    """What the map calls unprotected."""
    return [data[r.offset : r.offset + r.length] for r in mapped(data) if r.guard is Guard.UNPROTECTED]


def test_the_map_is_exact_beside_names_of_any_script() -> None:
    """Offsets are bytes, not characters."""
    tensors = {"层": ("F32", [2, 3], bytes(range(24))), "é\\": ("I64", [], bytes(8))}
    found = free(packed(tensors, {"note": "ü", "format": "pt"}))
    raw = json.dumps({"层": 0, "é\\": 0})[1:-1].split(": 0")
    names = {raw[0].strip('"'), raw[1].strip(', "'), json.dumps({"note": "ü"})[1:-1]}
    assert {text.decode() for text in found if not text.startswith(bytes(range(9)))} == names
    text = '{"层":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"ü":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}'
    assert free(made(text.encode(), b"ab")) == ["层".encode(), "ü".encode(), b"ab"]


def test_the_map_with_a_checksum() -> None:
    """crc_num counts names and data in, so nothing is left but metadata of others and shapes of nothing."""
    assert {r.guard for r in mapped(CRC)} == {Guard.CHECKSUM, Guard.STRUCTURE}
    tensors = {"w": ("F32", [3], b"abcdefghijkl"), "none": ("F32", [0, 2], b"")}
    found = free(packed(tensors, {"format": "ms", "crc_num": crc_num(tensors), "mine": "x"}))
    said = [json.loads(b"{" + f + b"}" if f[:1] == b'"' else f) for f in found]
    assert said == [{"mine": "x"}, entry("F32", [0, 2], 12, 12)]


def test_tabs_in_the_header_are_not_called_protected() -> None:
    """One bit makes a carriage return of a tab, and both are blanks."""
    data = made('{\t"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a")
    assert not codes(data.replace(b"\t", b"\r"))
    assert [r.guard for r in mapped(data)] == [Guard.STRUCTURE, Guard.UNPROTECTED, Guard.UNPROTECTED]


@pytest.mark.slow
@examples(60)
@given(st.data())
def test_what_the_map_calls_protected_is(data: st.DataObject) -> None:
    raw = data.draw(files())[1]
    r = data.draw(st.sampled_from([r for r in mapped(raw) if r.guard is not Guard.UNPROTECTED]))
    bit = data.draw(st.integers(8 * r.offset, 8 * (r.offset + r.length) - 1))
    assert codes(flipped(raw, bit)), (bit, r)


@pytest.mark.parametrize(
    ("meta", "code"),
    [  # MindSpore's loader knows no other type, and 'b' is tied to 'a'
        ("ms a Int4", ""), ("ms a Float9", "bad-header"), ("pt b Int4", ""), ("pt b a", ""), ("ms remove_redundancy True", ""),
    ],
)  # fmt: skip
def test_metadata_about_tensors(meta: str, code: str) -> None:
    form, key, value = meta.split()
    found = codes(packed({"a": ("I8", [2], b"ab")}, {"format": form, key: value}))
    assert found == ({code} if code else set())


def test_findings_of_one_kind_are_counted() -> None:
    found = look(packed({f"p{i}": ("X9", [0], b"") for i in range(500)}))
    assert len(found) < 25
    assert found[-2].message.startswith("and ") or found[-1].message.startswith("and ")


NAMES = st.text(max_size=20).filter(lambda n: n != "__metadata__" and n.isprintable())
NOTES = st.dictionaries(st.sampled_from(["note", "step", "x y"]), st.text(max_size=10), max_size=3)


@st.composite
def files(draw: st.DrawFn) -> tuple[set[str], bytes]:
    """A valid file and its names."""
    tensors = {}
    for name in draw(st.lists(NAMES, max_size=6, unique=True)):
        dtype, shape = draw(st.sampled_from(sorted(BITS))), draw(st.lists(st.integers(0, 5), max_size=4))
        size = BITS[dtype] // 8 * math.prod(shape)
        content = bytes([draw(st.integers(0, 255))]) * size
        if not shape and dtype[0] == "I":  # a count that MindSpore could have turned into bytes
            content = draw(st.integers(0, 9999)).to_bytes(size, "little")
        tensors[name] = (dtype, shape, content)
    meta = draw(st.none() | NOTES)
    if draw(st.booleans()):
        meta = (meta or {}) | {"format": "ms", "crc_num": crc_num(tensors)}
    return set(tensors), packed(tensors, meta)


@pytest.mark.slow
@examples(150)
@given(files())
def test_valid_files_pass(drawn: tuple[set[str], bytes]) -> None:
    names, data = drawn
    anatomy = Anatomy()
    assert not [f for f in look(data, anatomy) if f.severity > Severity.NOTE]
    assert {t.name for t in anatomy.tensors} == names == anatomy.keys
    assert safetensors.FORMAT.magic(data[:HEAD])


@pytest.mark.slow
@examples(300)
@given(files(), st.data())
def test_damaged_files_do_not_surprise(drawn: tuple[set[str], bytes], data: st.DataObject) -> None:
    raw, (_, whole) = bytearray(drawn[1]), drawn
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
        if b'"crc_num"' in whole and at >= 8 + struct.unpack("<Q", whole[:8])[0]:
            assert codes(bytes(raw))
    else:
        raw[at : data.draw(st.integers(at, min(at + 20, len(raw))))] = data.draw(st.binary(max_size=20))
    codes(bytes(raw))
    check_against_the_library(bytes(raw))


HOSTILE = {
    "arrays": '{"a":' + "[" * 2_000_000, "objects": '{"a":' * 400_000,
    "objects in an entry": '{"a":{"dtype":"F32","x":' + '{"a":' * 400_000,
    "entries": "{" + ",".join(f'"{i}":{{}}' for i in range(200_000)) + "}", "lists": '{"a":[' + "[]," * 700_000,
    "braces in a text": '{"a":{"dtype":"' + "}" * 2_000_000, "one key": '{"__metadata__":{' + ",".join(['"":""'] * 50_000) + "}}",
    "a long name": '{"' + "\\u0041" * 300_000 + '":{}}', "blanks": "{" + " " * 2_000_000, "backslashes": '{"' + "\\" * 2_000_000,
    "digits": '{"a":{"dtype":"F32","shape":[' + "9" * 2_000_000 + "]}}",
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers(name: str) -> None:
    """Neither depth nor breadth costs more than a few times the header."""
    data = made(HOSTILE[name])
    with memory_below(12 * len(data)):
        found = look(data)
    assert len(found) <= 3 and max(f.severity for f in found) > Severity.NOTE
    assert all(len(f.message) < 10_000 for f in found)


def test_a_header_above_the_librarys_limit_is_told_as_that(tmp_path: Path) -> None:
    """safetensors/safetensors#668: the library writes such files, and reads none of them."""
    from ckpt_tools.inspection.check import inspect

    length = 100_000_008
    last = b'"z":{"dtype":"F32","shape":[1],"data_offsets":[96,100]}}   '
    path = tmp_path / "data.safetensors"
    for size, is_whole in ((100, True), (96, False)):
        with path.open("wb") as f:  # sparse: blanks would do as well
            f.write(struct.pack("<Q", length) + b'{"a":{"dtype":"F32"')
            f.seek(8 + length - len(last))
            f.write(last)
            f.truncate(8 + length + size)
        report, _ = inspect(str(path), Level.STRUCTURE)
        (found,) = report.findings
        assert report.format == "safetensors"
        assert found.code == "bad-header" and "100,000,000" in found.message
        assert ("the file is whole" in found.message) == is_whole
        assert ("split" in found.hint) == is_whole


def test_bytes_behind_the_last_tensor_are_told_with_where_to_cut() -> None:
    anatomy = Anatomy()
    data = TINY + b"1234"
    *_, found = structure(BytesSource(data), anatomy, safetensors.FORMAT.checks[Level.STRUCTURE])
    assert (found.code, found.offset) == ("trailing-data", len(TINY))
    assert f"whole up to byte {len(TINY)}" in found.message
    assert f"truncate -s {len(TINY)} PATH" in found.hint
