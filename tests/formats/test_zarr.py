"""zarr arrays: chunks are compared with the grid, codecs with what their specification says."""

from __future__ import annotations

import bz2
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Mapping
from itertools import product
from math import prod

import pytest
import zstandard
from counted import at_most
from crc32c import crc32c
from examples import examples
from helpers import Fixture, bad, claims, findings, left_behind, look
from hypothesis import given
from hypothesis import strategies as st
from places import FORMAT_FILES

from ckpt_tools.formats import BY_NAME, Anatomy, structure
from ckpt_tools.formats.common import decode, zstd
from ckpt_tools.formats.tensorstore.zarr import array_of
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.storage import BytesSource

FMT = BY_NAME["zarr"]
PACK = {
    "zstd": zstandard.compress,
    "zlib": zlib.compress,
    "gzip": lambda d: gzip.compress(d, mtime=0),
    "bz2": bz2.compress,
}
SHAPES = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4)), max_size=3)


def v2(
    shape: list[int], chunks: list[int], dtype: str = "<i4", codec: str | None = None, separator: str = "."
) -> bytes:
    doc = {"chunks": chunks, "compressor": codec and {"id": codec}, "dimension_separator": separator, "dtype": dtype, "fill_value": None,
           "filters": None, "order": "C", "shape": shape, "zarr_format": 2}  # fmt: skip
    return json.dumps(doc).encode()


def v3(
    shape: list[int],
    chunks: list[int],
    codecs: list[Mapping[str, object]],
    dtype: str = "int32",
    keys: str = "default",
) -> bytes:
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    doc = {"chunk_grid": grid, "chunk_key_encoding": {"name": keys}, "codecs": codecs, "data_type": dtype, "fill_value": 0, "node_type": "array",
           "shape": shape, "zarr_format": 3}  # fmt: skip
    return json.dumps(doc).encode()


def seen(files: dict[str, bytes], own: str) -> list[str]:
    said, missing = claims(files)
    assert missing == []
    return sorted({f.code for f in bad(list(findings(files[own], FMT, Anatomy(), said[own])))})


BYTES: Mapping[str, object] = {"name": "bytes", "configuration": {"endian": "little"}}


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
    assert missing == []
    assert set(said) == files.keys() - {".zarray"}
    assert all(seen(files, own) == [] for own in list(said)[:4])
    for own in list(said)[-1:]:
        cut = draw.draw(st.integers(0, len(files[own]) - 1))
        assert seen({**files, own: files[own][:cut]}, own) != []
        assert seen({**files, own: files[own] + b"\1"}, own) != []
        wrong = PACK[codec](bytes(size + 4)) if codec else bytes(size + 4)
        assert seen({**files, own: wrong}, own) != []


@given(st.binary(max_size=64), st.data())
def test_a_crc_codec_sees_every_bit(plain: bytes, draw: st.DataObject) -> None:
    plain = plain[: len(plain) // 4 * 4]
    text = v3([len(plain) // 4], [max(1, len(plain) // 4)], [BYTES, {"name": "crc32c"}])
    chunk = bytearray(plain + crc32c(plain).to_bytes(4, "little"))
    if not plain:
        return
    assert seen({"zarr.json": text, "c/0": bytes(chunk)}, "c/0") == []
    bit = draw.draw(st.integers(0, 8 * len(chunk) - 1))
    chunk[bit // 8] ^= 1 << bit % 8
    assert seen({"zarr.json": text, "c/0": bytes(chunk)}, "c/0") == ["crc-mismatch"]


def test_a_checksum_over_compressed_bytes() -> None:
    plain = bytes(range(48))
    packed = zstandard.compress(plain)
    for chain, body in (
        ([BYTES, {"name": "zstd"}, {"name": "crc32c"}], packed + crc32c(packed).to_bytes(4, "little")),
        (
            [BYTES, {"name": "crc32c"}, {"name": "zstd"}],
            zstandard.compress(plain + crc32c(plain).to_bytes(4, "little")),
        ),
    ):
        files = {"zarr.json": v3([3, 4], [3, 4], chain), "c/0/0": body}
        assert seen(files, "c/0/0") == []
        assert seen({**files, "c/0/0": body[:-1]}, "c/0/0") != []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (v2([5, 8], [3, 8]), Tensor("array", "int32", (5, 8), 160, None, "chunks")),
        (v2([], [], "|b1"), Tensor("array", "bool", (), 1, None, "chunks")),
        (v2([4], [4], "bfloat16"), Tensor("array", "bfloat16", (4,), 8, None, "chunks")),
        (v2([4], [4], "int4"), Tensor("array", "int4", (4,), 4, None, "chunks")),
        (v2([4], [4], "float8_e4m3b11fnuz"), Tensor("array", "float8_e4m3b11fnuz", (4,), 4, None, "chunks")),
        (v2([2], [2], ">c16"), Tensor("array", "unknown", (2,), 0, None, "chunks")),
        (v3([2], [2], [BYTES], "complex64"), Tensor("array", "complex64", (2,), 16, None, "chunks")),
        (v3([2], [2], [BYTES], "bool"), Tensor("array", "bool", (2,), 2, None, "chunks")),
    ],
)
def test_tensors(text: bytes, expected: Tensor) -> None:
    anatomy = Anatomy()
    assert bad(look(text, FMT, anatomy)) == []
    if expected.dtype == "unknown":  # big-endian numbers have the same size
        expected = Tensor("array", "complex128", (2,), 32, None, "chunks")
    assert anatomy.tensors == [expected]


def test_names_of_chunks() -> None:
    assert [*array_of(json.loads(v2([3, 2], [2, 2]))).names()] == ["0.0", "1.0"]  # type: ignore[union-attr]
    assert [*array_of(json.loads(v2([3], [2], separator="/"))).names()] == ["0", "1"]  # type: ignore[union-attr]
    assert [*array_of(json.loads(v3([3, 2], [2, 2], [BYTES]))).names()] == ["c/0/0", "c/1/0"]  # type: ignore[union-attr]
    assert [*array_of(json.loads(v3([], [], [BYTES]))).names()] == ["c"]  # type: ignore[union-attr]
    assert [*array_of(json.loads(v3([], [], [BYTES], keys="v2"))).names()] == ["0"]  # type: ignore[union-attr]
    assert [*array_of(json.loads(v3([0, 2], [2, 2], [BYTES]))).names()] == []  # type: ignore[union-attr]


def test_a_chunk_that_is_not_there_is_no_damage() -> None:
    said, missing = claims({".zarray": v2([6], [2]), "0": bytes(8)})
    assert list(said) == ["0"]
    assert missing == []


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
    assert FMT.magic(text[:64])
    assert bad(look(text, FMT)) == []
    files = {"zarr.json" if b'format": 3' in text else ".zarray": text, "c/0": b"whatever", "0": b"whatever"}
    assert all(seen(files, own) == [] for own in claims(files)[0])


def test_an_unknown_type_leaves_sizes_open() -> None:
    found = look(v2([4], [4], "posit16"), FMT)
    assert [(f.code, f.severity) for f in found] == [("unknown-dtype", Severity.NOTE)]
    assert seen({".zarray": v2([4], [4], "posit16"), "0": b"12345"}, "0") == []


@pytest.mark.parametrize("name", ["v3_sharded/c/0/0", "v2_zstd/0.0", "v2_raw/0.0"])
def test_only_checksums_count_as_coverage(name: str) -> None:
    guards = {(r.what.split(":")[0], r.guard) for r in Fixture(FORMAT_FILES / "zarr/good" / name).regions()}
    summed = {what for what, guard in guards if guard is Guard.CHECKSUM}
    assert summed == ({"CRC-32C of the index of the chunk"} if "shard" in name else set())


@pytest.mark.slow
def test_some_flips_in_zstd_data_break_its_decoding() -> None:
    for name, least in (
        ("orbax_tree/good/files_zarr2/params.dense.w/0.0", 0.03),
        ("zarr/good/v2_zstd/0.0", 0.5),
    ):
        good, seen = Fixture(FORMAT_FILES / name), 0
        data = bytearray(good.data)
        places = range(0, 8 * len(data), 7)
        for bit in places:
            data[bit // 8] ^= 1 << bit % 8
            seen += good.notices(bytes(data))
            data[bit // 8] ^= 1 << bit % 8
        assert least < seen / len(places) < 0.9  # float noise is stored nearly as it is, so little can break


def test_without_zstandard_the_framing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {".zarray": v2([3], [3], codec="zstd"), "0": zstandard.compress(bytes(12))}
    monkeypatch.setattr(zstd, "find_spec", lambda _: None)
    said, _ = claims(files)
    found = [*findings(files["0"], FMT, Anatomy(), said["0"])]
    assert [f.code for f in found] == ["needs-extra"]
    assert "pip install zstandard" in found[0].message
    assert seen({**files, "0": files["0"][:-1]}, "0") == ["truncated"]
    assert seen({**files, "0": zstandard.compress(bytes(16))}, "0") == ["bad-header"]


@pytest.mark.share(4)
@pytest.mark.slow
@pytest.mark.parametrize("codec", [*PACK])
def test_a_bomb_stops_where_the_chunk_should_end(codec: str) -> None:
    packer = zstandard.ZstdCompressor(write_content_size=False)
    bomb = packer.compress(bytes(1 << 28)) if codec == "zstd" else PACK[codec](bytes(1 << 26))
    files = {".zarray": v2([1000], [1000], codec=codec), "0": bomb}
    assert seen({**files, "0": PACK[codec](bytes(4000))}, "0") == []  # what is imported once does not count
    tracemalloc.start()
    with at_most(30_000):
        assert seen(files, "0") == ["bad-compression"]
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


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
    came_out, write = [0], decode._Count.write

    def counting(self: decode._Count, data: bytes) -> int:
        came_out[0] += len(data)
        return write(self, data)

    monkeypatch.setattr(decode._Count, "write", counting)
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
    sharded = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [1 << 27],
            "codecs": [BYTES, {"name": "zstd"}],
            "index_codecs": [BYTES],
        },
    }
    index = b"".join(
        (i * len(one)).to_bytes(8, "little") + len(one).to_bytes(8, "little") for i in range(parts)
    )
    files = {"zarr.json": v3([parts << 27], [parts << 27], [sharded], "uint8"), "c/0": one * parts + index}
    anatomy, said = Anatomy(), claims(files)[0]
    found = list(structure(BytesSource(files["c/0"]), anatomy, said["c/0"][0].check))
    assert [f.code for f in found] == ["too-complex"]
    assert len(anatomy.sums) == 32
    few = {"zarr.json": v3([8 << 27], [8 << 27], [sharded], "uint8"), "c/0": one * 8 + index[: 16 * 8]}
    assert seen(few, "c/0") == []


@pytest.mark.slow
def test_a_long_chain_of_codecs_is_not_followed() -> None:
    plain, summed = bytes(range(48)), {"name": "crc32c"}
    chunk = plain
    for _ in range(15):
        chunk += crc32c(chunk).to_bytes(4, "little")
    assert seen({"zarr.json": v3([12], [12], [BYTES, *[summed] * 15]), "c/0": chunk}, "c/0") == []
    found = look(v3([12], [12], [BYTES, *[summed] * 16]), FMT)
    assert [f.code for f in found] == ["too-complex"]
    inner = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [12],
            "codecs": [BYTES, *[summed] * 20_000],
            "index_codecs": [BYTES],
        },
    }
    assert [f.code for f in look(v3([12], [12], [inner]), FMT)] == ["too-complex"]


@pytest.mark.parametrize(
    "window", [zstd.MAGIC + b"\0\xff" + b"\1\0\0", zstd.MAGIC + b"\xe0" + b"\xff" * 8 + b"\1\0\0"]
)
def test_a_huge_window_is_refused(window: bytes) -> None:
    assert seen({".zarray": v2([1000], [1000], codec="zstd"), "0": window}, "0") != []


@pytest.mark.slow
def test_endless_blocks_end() -> None:
    with at_most(1_000_000):
        assert (
            seen(
                {".zarray": v2([1000], [1000], codec="zstd"), "0": zstd.MAGIC + b"\0\x58" + bytes(1 << 20)},
                "0",
            )
            != []
        )


@pytest.mark.parametrize(
    "text",
    [
        v2([1 << 62, 1 << 62], [1, 1]),
        v2([1 << 62], [1 << 62]),
        v3([1 << 40], [1 << 40], [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": [BYTES], "index_codecs": [BYTES]}}]),
        json.dumps({"zarr_format": 3, "node_type": "array", "codecs": [[[]]] * 9000, "shape": [], "data_type": {}, "chunk_grid": [], "chunk_key_encoding": 1, "fill_value": 0}).encode(),
    ],
)  # fmt: skip
def test_absurd_numbers_cost_nothing(text: bytes) -> None:
    with at_most(10_000):
        own = "zarr.json" if b'"node_type"' in text else ".zarray"
        look(text, FMT)
        claims({own: text, "0": b"", "c/0": bytes(64)})
        assert seen({own: text, "c/0": bytes(64)}, "c/0") is not None
