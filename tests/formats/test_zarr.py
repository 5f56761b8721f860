"""zarr arrays: chunks are compared with the grid, codecs with what their specification says."""

from __future__ import annotations

import bz2
import gzip
import json
import zlib
from collections.abc import Mapping
from itertools import product
from math import prod

import helpers
import pytest
import zstandard
from counted import at_most, memory_below
from crc32c import crc32c
from examples import examples
from helpers import Fixture, bad, claims, findings, flipped, left_behind, look
from hypothesis import given
from hypothesis import strategies as st
from places import FORMAT_FILES

from ckpt_tools.formats import BY_NAME, Anatomy, structure
from ckpt_tools.formats.common import decode, zstd
from ckpt_tools.formats.tensorstore.zarr import read_array
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import BytesSource

FMT = BY_NAME["zarr"]
PACK = {"zstd": zstandard.compress, "zlib": zlib.compress, "gzip": lambda d: gzip.compress(d, mtime=0), "bz2": bz2.compress}  # fmt: skip
SHAPES = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4)), max_size=3)


def v2(
    shape: list[int], chunks: list[int], dtype: str = "<i4", codec: str | None = None, separator: str = "."
) -> bytes:
    doc = {"chunks": chunks, "compressor": codec and {"id": codec}, "dimension_separator": separator, "dtype": dtype, "fill_value": None,
           "filters": None, "order": "C", "shape": shape, "zarr_format": 2}  # fmt: skip
    return json.dumps(doc).encode()


Codec = Mapping[str, object]


def v3(
    shape: list[int], chunks: list[int], codecs: list[Codec], dtype: str = "int32", keys: str = "default"
) -> bytes:
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    doc = {"chunk_grid": grid, "chunk_key_encoding": {"name": keys}, "codecs": codecs, "data_type": dtype, "fill_value": 0, "node_type": "array",
           "shape": shape, "zarr_format": 3}  # fmt: skip
    return json.dumps(doc).encode()


def sharded(chunk: int, *codecs: Codec) -> Codec:
    """Chunks in shards, whose index is as it is."""
    of = {"chunk_shape": [chunk], "codecs": [BYTES, *codecs], "index_codecs": [BYTES]}
    return {"name": "sharding_indexed", "configuration": of}


def summed(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(4, "little")


def seen(files: dict[str, bytes], own: str) -> list[str]:
    said, missing = claims(files)
    assert missing == []
    return sorted(helpers.codes(findings(files[own], FMT, Anatomy(), said[own])))


BYTES: Codec = {"name": "bytes", "configuration": {"endian": "little"}}
CRC: Codec = {"name": "crc32c"}


@pytest.mark.slow
@examples(60)
@given(SHAPES, st.sampled_from([None, *PACK]), st.sampled_from([".", "/"]), st.data())
def test_whole_arrays_are_good_and_their_damage_is_seen(
    dims: list[tuple[int, int]], codec: str | None, separator: str, draw: st.DataObject
) -> None:
    shape, chunks = [s for s, _ in dims], [c for _, c in dims]
    size = 4 * prod(chunks)
    files = {".zarray": v2(shape, chunks, codec=codec, separator=separator)}
    for index in product(*(range(-(-s // c)) for s, c in dims)):
        plain = draw.draw(st.binary(min_size=size, max_size=size))
        files[separator.join(map(str, index)) or "0"] = PACK[codec](plain) if codec else plain
    said, missing = claims(files)
    assert (missing, set(said)) == ([], files.keys() - {".zarray"})
    assert all(seen(files, own) == [] for own in list(said)[:4])
    for own in list(said)[-1:]:
        cut = draw.draw(st.integers(0, len(files[own]) - 1))
        longer = PACK[codec](bytes(size + 4)) if codec else bytes(size + 4)
        for wrong in (files[own][:cut], files[own] + b"\1", longer):
            assert seen({**files, own: wrong}, own) != []


@given(st.binary(min_size=4, max_size=64), st.data())
def test_a_crc_codec_sees_every_bit(plain: bytes, draw: st.DataObject) -> None:
    n = len(plain) // 4
    text, chunk = v3([n], [n], [BYTES, CRC]), summed(plain[: 4 * n])
    assert seen({"zarr.json": text, "c/0": chunk}, "c/0") == []
    bit = draw.draw(st.integers(0, 8 * len(chunk) - 1))
    assert seen({"zarr.json": text, "c/0": flipped(chunk, bit)}, "c/0") == ["crc-mismatch"]


def test_a_checksum_over_compressed_bytes() -> None:
    plain, packer = bytes(range(48)), {"name": "zstd"}
    for chain, body in (
        ([BYTES, packer, CRC], summed(zstandard.compress(plain))),
        ([BYTES, CRC, packer], zstandard.compress(summed(plain))),
    ):
        files = {"zarr.json": v3([3, 4], [3, 4], chain), "c/0/0": body}
        assert seen(files, "c/0/0") == []
        assert seen({**files, "c/0/0": body[:-1]}, "c/0/0") != []


@pytest.mark.parametrize(
    ("text", "dtype", "shape", "nbytes"),
    [
        (v2([5, 8], [3, 8]), "int32", (5, 8), 160), (v2([], [], "|b1"), "bool", (), 1), (v2([4], [4], "bfloat16"), "bfloat16", (4,), 8),
        (v2([4], [4], "int4"), "int4", (4,), 4), (v2([4], [4], "float8_e4m3b11fnuz"), "float8_e4m3b11fnuz", (4,), 4),
        (v2([2], [2], ">c16"), "complex128", (2,), 32), (v3([2], [2], [BYTES], "complex64"), "complex64", (2,), 16),
        (v3([2], [2], [BYTES], "bool"), "bool", (2,), 2),
    ],
)  # fmt: skip
def test_tensors(text: bytes, dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
    anatomy = Anatomy()
    assert bad(look(text, FMT, anatomy)) == []
    assert anatomy.tensors == [Tensor("array", dtype, shape, nbytes, None, "chunks")]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (v2([3, 2], [2, 2]), ["0.0", "1.0"]), (v2([3], [2], separator="/"), ["0", "1"]), (v3([3, 2], [2, 2], [BYTES]), ["c/0/0", "c/1/0"]),
        (v3([], [], [BYTES]), ["c"]), (v3([], [], [BYTES], keys="v2"), ["0"]), (v3([0, 2], [2, 2], [BYTES]), []),
    ],
)  # fmt: skip
def test_names_of_chunks(text: bytes, names: list[str]) -> None:
    assert [*read_array(json.loads(text)).names()] == names  # type: ignore[union-attr]


def test_a_chunk_that_is_not_there_is_no_damage() -> None:
    said, missing = claims({".zarray": v2([6], [2]), "0": bytes(8)})
    assert (list(said), missing) == (["0"], [])


@pytest.mark.parametrize(
    "text",
    [
        b'{"zarr_format": 3, "node_type": "group", "attributes": {}}',
        b"{\n  " + v3([4], [4], [BYTES]).replace(b"regular", b"later")[1:],
        v3([4], [4], [{"name": "numcodecs.later", "configuration": {}}]),
        v2([4], [4], codec="later"),
    ],
)
def test_what_is_not_known_is_no_damage(text: bytes) -> None:
    assert FMT.magic(text[:64]) and bad(look(text, FMT)) == []
    files = {"zarr.json" if b'format": 3' in text else ".zarray": text, "c/0": b"whatever", "0": b"whatever"}
    assert all(seen(files, own) == [] for own in claims(files)[0])


def test_an_unknown_type_leaves_sizes_open() -> None:
    found = look(v2([4], [4], "posit16"), FMT)
    assert [(f.code, f.severity) for f in found] == [("unknown-dtype", Severity.NOTE)]
    assert seen({".zarray": v2([4], [4], "posit16"), "0": b"12345"}, "0") == []


@pytest.mark.slow
def test_some_flips_in_zstd_data_break_its_decoding() -> None:
    floats, integers = "orbax_tree/good/files_zarr2/params.dense.w/0.0", "zarr/good/v2_zstd/0.0"
    for name, least in (floats, 0.03), (integers, 0.5):
        good = Fixture(FORMAT_FILES / name)
        places = range(0, 8 * len(good.data), 7)
        seen = sum(good.notices(flipped(good.data, bit)) for bit in places)
        assert least < seen / len(places) < 0.9  # float noise is stored nearly as it is, so little can break


@pytest.mark.share(4)
@pytest.mark.slow
@pytest.mark.parametrize("codec", [*PACK])
def test_a_bomb_stops_where_the_chunk_should_end(codec: str) -> None:
    packer = zstandard.ZstdCompressor(write_content_size=False)
    bomb = packer.compress(bytes(1 << 28)) if codec == "zstd" else PACK[codec](bytes(1 << 26))
    files = {".zarray": v2([1000], [1000], codec=codec), "0": bomb}
    assert seen({**files, "0": PACK[codec](bytes(4000))}, "0") == []  # what is imported once does not count
    with memory_below(20 << 20), at_most(30_000):
        assert seen(files, "0") == ["bad-compression"]


@pytest.mark.slow
@pytest.mark.parametrize("codec", [*PACK])
@pytest.mark.parametrize("broken", [False, True])
def test_a_decoder_does_not_outlive_its_chunk(codec: str, broken: bool) -> None:
    files = {".zarray": v2([1000], [1000], codec=codec), "0": PACK[codec](bytes(3000 if broken else 4000))}
    said, _ = claims(files)
    assert left_behind(lambda: list(findings(files["0"], FMT, Anatomy(), said["0"]))) < 20


def frame(blocks: int, said: int | None = None) -> bytes:
    """A zstd frame of so many blocks of 128 KiB of zeros, four bytes each."""
    head = b"\0\x58" if said is None else b"\xc0\x58" + said.to_bytes(8, "little")
    every = (1 << 17 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    return zstd.MAGIC + head + every * (blocks - 1) + bytes([every[0] | 1]) + every[1:]


GIB = 1 << 30
UNKNOWN = v2([4], [4], "posit16", "zstd")


@pytest.mark.share(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "chunk", "code", "decoded"),
    [
        (UNKNOWN, frame(1 << 13), [], GIB),
        (UNKNOWN, frame(1 << 13, GIB), [], GIB),
        (UNKNOWN, frame(1 << 13, GIB - 1), ["bad-compression"], GIB),
        (UNKNOWN, frame(1 << 15), [], 4 * GIB),
        (UNKNOWN, frame((1 << 15) + 1), ["too-complex"], 0),
        (UNKNOWN, frame(1 << 15, 5 * GIB), ["bad-compression"], 4 * GIB),
        (UNKNOWN, frame(1 << 18), ["too-complex"], 2 * 1101 << 20),  # too many blocks to count
        (v2([8 * GIB], [8 * GIB], "|u1", "zstd"), frame(1 << 16), ["too-complex"], 0),
        (v2([GIB], [GIB], "|u1", "zstd"), frame(1 << 18), ["bad-compression"], GIB + (1 << 17)),
    ],
)  # fmt: skip
def test_what_comes_out_of_a_frame_is_bounded(
    text: bytes, chunk: bytes, code: list[str], decoded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    came_out = counted(monkeypatch)
    assert seen({".zarray": text, "0": chunk}, "0") == code
    assert came_out[0] <= decoded + (1 << 20)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list of one number: the bytes that came out of all decoders."""
    came_out, write = [0], decode._Counter.write

    def counting(self: decode._Counter, data: bytes) -> int:
        came_out[0] += len(data)
        return write(self, data)

    monkeypatch.setattr(decode._Counter, "write", counting)
    return came_out


@pytest.mark.share(2)
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "code"), [("posit16", "too-complex"), ("|u1", "bad-compression")])
def test_a_bz2_bomb_of_any_size_stops(dtype: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    came_out = counted(monkeypatch)
    bomb = bz2.compress(bytes(200 << 20))
    assert len(bomb) < 1000
    assert seen({".zarray": v2([1000], [1000], dtype, "bz2"), "0": bomb}, "0") == [code]
    assert came_out[0] < 130 << 20
    assert seen({".zarray": v2([1000], [1000], dtype, "bz2"), "0": bz2.compress(bytes(1000))}, "0") == []
    assert seen({".zarray": v2([GIB], [GIB], "|u1", "bz2"), "0": bomb}, "0") == ["too-complex"]


@pytest.mark.slow
def test_many_small_bombs_in_one_file_are_one() -> None:
    parts, one = 400, frame(1024)  # 128 MiB out of 4 KB
    codec = sharded(1 << 27, {"name": "zstd"})
    index = b"".join(n.to_bytes(8, "little") for i in range(parts) for n in (i * len(one), len(one)))
    files = {"zarr.json": v3([parts << 27], [parts << 27], [codec], "uint8"), "c/0": one * parts + index}
    anatomy, said = Anatomy(), claims(files)[0]
    found = list(structure(BytesSource(files["c/0"]), anatomy, said["c/0"][0].check))
    assert [f.code for f in found] == ["too-complex"]
    assert len(anatomy.sums) == 32
    few = {"zarr.json": v3([8 << 27], [8 << 27], [codec], "uint8"), "c/0": one * 8 + index[: 16 * 8]}
    assert seen(few, "c/0") == []


@pytest.mark.slow
def test_a_long_chain_of_codecs_is_not_followed() -> None:
    chunk = bytes(range(48))
    for _ in range(15):
        chunk = summed(chunk)
    assert seen({"zarr.json": v3([12], [12], [BYTES, *[CRC] * 15]), "c/0": chunk}, "c/0") == []
    for codecs in ([BYTES, *[CRC] * 16], [sharded(12, *[CRC] * 20_000)]):
        assert [f.code for f in look(v3([12], [12], codecs), FMT)] == ["too-complex"]


WINDOWS = [zstd.MAGIC + b"\0\xff" + b"\1\0\0", zstd.MAGIC + b"\xe0" + b"\xff" * 8 + b"\1\0\0"]


@pytest.mark.parametrize("chunk", [*WINDOWS, pytest.param(zstd.MAGIC + b"\0\x58" + bytes(1 << 20), marks=pytest.mark.slow)])  # fmt: skip
def test_huge_windows_and_endless_blocks_are_refused(chunk: bytes) -> None:
    with at_most(1_000_000):
        assert seen({".zarray": v2([1000], [1000], codec="zstd"), "0": chunk}, "0") != []


@pytest.mark.parametrize(
    "text",
    [
        v2([1 << 62, 1 << 62], [1, 1]), v2([1 << 62], [1 << 62]), v3([1 << 40], [1 << 40], [sharded(1)]),
        json.dumps({"zarr_format": 3, "node_type": "array", "codecs": [[[]]] * 9000, "shape": [], "data_type": {}, "chunk_grid": [], "chunk_key_encoding": 1, "fill_value": 0}).encode(),
    ],
)  # fmt: skip
def test_absurd_numbers_cost_nothing(text: bytes) -> None:
    with at_most(10_000):
        own = "zarr.json" if b'"node_type"' in text else ".zarray"
        look(text, FMT)
        claims({own: text, "0": b"", "c/0": bytes(64)})
        assert seen({own: text, "c/0": bytes(64)}, "c/0") is not None
