"""TensorFlow's bundles: what is read from real ones, bundles of any structure, and hostile ones in bounded
time and memory.
"""

from __future__ import annotations

import shutil
import struct
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from counted import at_most, memory_below
from examples import examples
from helpers import bad, claims, codes, findings, flipped
from hypothesis import given
from hypothesis import strategies as st
from places import FORMAT_FILES

from ckpt_tools.api import verify
from ckpt_tools.checksum import Extent, Hash
from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.tensorflow import tf_bundle
from ckpt_tools.formats.tensorflow.sstable import MAGIC, slice_key
from ckpt_tools.formats.tensorflow.tf_bundle import StringCrc, VariantCrc
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.storage import BytesSource

sys.path.insert(0, str(FORMAT_FILES.parent))
import make_tensorflow

# a writer that shares no code with the package
from make_tensorflow import block, bundle, crc32c, entry, header, masked, table, varint

GOOD = FORMAT_FILES / "tf_bundle" / "good"


def look(files: dict[str, bytes]) -> dict[str, list[Finding]]:
    """Every file of a bundle -> its findings, those that change the verdict only; members that are missing
    are the index's.
    """
    said, missing = claims(files)
    assert not missing
    found = (
        (n, findings(data, tf_bundle.FORMAT, Anatomy(), said.get(n, ()), n)) for n, data in files.items()
    )
    return {name: bad(list(of)) for name, of in found}


def one(index: bytes) -> list[Finding]:
    """The findings of an index alone."""
    return list(findings(index, tf_bundle.FORMAT, Anatomy(), (), "x.index"))


def test_keys_of_slices_are_those_that_tensorflow_writes() -> None:
    assert slice_key(b"emb2", ((0, 3), (100, 100))) == b"\0emb2\0\1\1\2\x80\x83\xc0\x64\xc0\x64"
    assert slice_key(b"a\0\xff", (None,)) == b"\0a\0\xff\xff\0\0\1\1\1\x80\x7f"
    assert slice_key(b"s", ()) == b"\0s\0\1\0"
    wanted = {63: "bf", 64: "c040", 8191: "dfff", 8192: "e02000", (1 << 62) - 1: "ffbfffffffffffffff"}
    for value, said in wanted.items():  # numbers take as many bytes as they say
        assert slice_key(b"", ((value, 0),))[5:-1].hex() == said


def test_counters_are_kept_among_many_scalars() -> None:
    numbers = {f"a{n}": n for n in range(100)} | {"o/_iterations": 8, "step": 9} | {f"z{n}/iter": n for n in range(100)}  # fmt: skip
    data, entries = b"", {}
    for name, number in numbers.items():
        raw = struct.pack("<q", number)
        entries[f"{name}/.ATTRIBUTES/VARIABLE_VALUE".encode()] = entry(9, [], len(data), 8, crc32c(raw))
        data += raw
    said, _ = claims({"x.index": bundle(entries), "x.data-00000-of-00001": data})
    anatomy = Anatomy()
    assert not list(findings(data, tf_bundle.FORMAT, anatomy, said["x.data-00000-of-00001"]))
    assert (anatomy.metadata["step"], anatomy.metadata["iterations"], anatomy.metadata["a7"]) == (9, 8, 7)
    assert len(anatomy.metadata) < 70


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
STRINGS = st.lists(st.binary(max_size=300), min_size=1, max_size=4)
VALUES = st.dictionaries(NAMES, st.binary(max_size=40) | STRINGS, max_size=30)


def strings(values: list[bytes]) -> tuple[bytes, int]:
    """A string tensor as it lies in a shard, and its CRC."""
    lengths = struct.pack(f"<{len(values)}I", *map(len, values))
    check = struct.pack("<I", masked(crc32c(lengths))) + b"".join(values)
    return b"".join(map(varint, map(len, values))) + check, crc32c(lengths + check)


def made(values: dict[str, bytes | list[bytes]], shards: int, per_block: int) -> dict[str, bytes]:
    """A bundle of byte vectors and of string vectors, dealt out to the shards."""
    data, entries = [b""] * shards, {}
    for n, (name, value) in enumerate(values.items()):
        raw, crc = (value, crc32c(value)) if isinstance(value, bytes) else strings(value)
        at, kind = n % shards, 4 if isinstance(value, bytes) else 7
        entries[name.encode()] = entry(kind, [len(value)], len(data[at]), len(raw), crc, shard=at)
        data[at] += raw
    used = max(1, min(shards, len(values)))
    files = {f"a b.data-{i:05d}-of-{used:05d}": data[i] for i in range(used)}
    return {"a b.index": bundle(entries, header(used), per_block), **files}


@pytest.mark.slow
@examples(60)
@given(values=VALUES, shards=st.integers(1, 4), per_block=st.integers(1, 20), data=st.data())
def test_any_bundle_is_good_until_a_bit_flips(
    values: dict[str, bytes | list[bytes]], shards: int, per_block: int, data: st.DataObject
) -> None:
    files = made(values, shards, per_block)
    assert look(files) == {name: [] for name in files}
    name = data.draw(st.sampled_from([n for n in files if files[n]]))
    raw = flipped(files[name], data.draw(st.integers(0, len(files[name]) * 8 - 1)))
    assert codes(findings(raw, tf_bundle.FORMAT, Anatomy(), claims(files)[0].get(name, ()), name))


@examples(100)
@given(
    values=st.lists(st.binary(max_size=300), max_size=8),
    cuts=st.lists(st.integers(0, 2500), max_size=5),
    flip=st.integers(0, 1 << 20),
)
def test_string_sums_do_not_depend_on_how_the_bytes_arrive(
    values: list[bytes], cuts: list[int], flip: int
) -> None:
    raw, crc = strings(values)
    variants, running = b"", b""
    for v in values:
        running += struct.pack("<Q", len(v)) + v
        check = struct.pack("<I", masked(crc32c(running)))
        variants, running = variants + varint(len(v)) + v + check, running + check

    def digest(made: Hash, raw: bytes) -> int | bytes:
        ends = sorted({0, len(raw), *(c for c in cuts if c < len(raw))})
        for start, stop in pairwise(ends):
            made.update(memoryview(raw)[start:stop])
        return made.digest()

    assert digest(StringCrc(len(values), "little"), raw) == crc
    assert digest(VariantCrc(len(values), "little"), variants) == crc32c(running)
    for kind, whole, right in (StringCrc, raw, crc), (VariantCrc, variants, crc32c(running)):
        assert digest(kind(len(values), "little"), whole + b"\0") != right
        if whole:
            assert digest(kind(len(values), "little"), whole[:-1]) != right
            assert digest(kind(len(values), "little"), flipped(whole, flip % (8 * len(whole)))) != right


@pytest.mark.parametrize("kind", [StringCrc, VariantCrc])
@pytest.mark.parametrize(
    "raw", [b"\xff" * 40, b"\x80\0" + b"\0" * 30, b"", b"\x05", b"\xff" * 9 + b"\x7f" + b"\0" * 20]
)
def test_what_is_no_string_tensor_has_no_sum(kind: type[StringCrc | VariantCrc], raw: bytes) -> None:
    it = kind(1, "little")
    it.update(raw)
    assert it.digest() == b""


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's own CRC takes a second per megabyte."""
    from crc32c import crc32c as fast

    monkeypatch.setattr(make_tensorflow, "crc32c", fast)


@pytest.mark.slow
@pytest.mark.usefixtures("fast")
def test_huge_keys_out_of_shared_prefixes_stop() -> None:
    pairs = [(b"", header()), (b"k" * 30_000, entry(4, [0], 0, 0, 0))]
    contents = bytearray(block(pairs)[:-8])
    for n in range(20_000):  # each shares 29,996 bytes with the one before it
        contents += varint(29_996) + b"\4\2" + struct.pack(">I", (ord("l") << 24) + n) + b"\x08\x04"
    contents += struct.pack("<II", 0, 1)
    with memory_below(100 << 20), at_most(12_000_000):
        found = one(table([bytes(contents)], [b"z"]))
    assert [f.code for f in found] == ["too-complex"]


@pytest.mark.usefixtures("fast")
@pytest.mark.exhaustive
def test_many_slices_take_linear_time() -> None:
    slices = [[(n, 1)] for n in range(40_000)]
    with at_most(12_000_000):
        found = one(bundle({b"w": entry(4, [1 << 40], 0, 0, 0, slices=slices)}))
    assert [f.code for f in found] == ["missing-storage"] * 16


@pytest.mark.slow
def test_many_overlaps_are_counted_once_each_up_to_a_bound() -> None:
    entries = {b"%05d" % n: entry(4, [10], n, 10, 0) for n in range(500)}
    found = look({"x.index": bundle(entries), "x.data-00000-of-00001": bytes(509)})["x.data-00000-of-00001"]
    assert sum(f.code == "bad-header" for f in found) == 16


@pytest.mark.slow
def test_bytes_that_many_tensors_claim_are_read_once() -> None:
    n, size = 3000, 4096
    entries = {b"%05d" % k: entry(6, [size - k % 7], k % 7, size - k % 7, 0) for k in range(n)}
    files = {"x.index": bundle(entries), "x.data-00000-of-00001": bytes(size)}
    (claim,) = claims(files)[0]["x.data-00000-of-00001"]
    anatomy = Anatomy()
    found = list(claim.check(BytesSource(files["x.data-00000-of-00001"]), anatomy))
    assert {f.code for f in found} == {"bad-header"}
    assert len(anatomy.tensors) == n
    assert sum(p.length for s in anatomy.sums for p in s.pieces if isinstance(p, Extent)) <= size


@pytest.mark.parametrize(
    "raw",
    [
        bytes(4096),
        *(numbers + MAGIC for numbers in (bytes(40), b"\xff" * 40, b"\x80" * 40, b"\x80\0" * 20, MAGIC * 5)),
    ],
)
def test_a_footer_alone_is_damage(raw: bytes) -> None:
    assert max(f.severity for f in one(raw)) is Severity.ERROR


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("ckpt-7.data-00000-of-00001", "ckpt-7.index"), ("variables.data-00011-of-00256", "variables.index"), ("x.data-100000-of-100001", "x.index"),
        ("data-00000-of-00001", None), ("x.data-0-of-1", None), ("ckpt.index", None), ("x.data-00000-of-00001.tempstate123", None),
    ],
)  # fmt: skip
def test_a_shard_s_name_tells_its_index(name: str, index: str | None) -> None:
    assert tf_bundle.FORMAT.index_of(name) == ((index,) if index else ())


def test_other_software_s_index_files_are_left_alone(tmp_path: Path) -> None:
    others = {"faiss": b"IxFI" + bytes(200), "zeros": bytes(8192), "empty": b"", "j": b'{"a": 1}'}
    for name, data in others.items():
        (tmp_path / f"{name}.index").write_bytes(data)
    assert all(f.report.findings == () for f in verify([str(tmp_path)], settle=0).files)


@pytest.mark.parametrize("damage", [b"", bytes(500), b"\1" * 500, "half", "bit", "head"])
def test_shards_beside_a_damaged_index_are_not_judged(tmp_path: Path, damage: bytes | str) -> None:
    shutil.copytree(GOOD / "v1-sharded", tmp_path / "x")
    index = tmp_path / "x/model.ckpt-5.index"
    raw = index.read_bytes()
    damaged = {"half": raw[:200], "bit": flipped(raw, 480), "head": b"\1" + raw[1:]}
    index.write_bytes(damage if isinstance(damage, bytes) else damaged[damage])
    reports = {Path(f.report.path).name: f.report for f in verify([str(tmp_path)], settle=0).files}
    assert reports.pop("model.ckpt-5.index").verdict is Verdict.BROKEN
    assert [[f.code for f in r.findings] for r in reports.values()] == [["unreadable"]] * 4


def naming(path: str) -> bytes:
    return f'model_checkpoint_path: "{path}"\nall_model_checkpoint_paths: "{path}"\n'.encode()


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        *((naming(f"{home}model.ckpt-5"), []) for home in ("", "/elsewhere/")),
        *((naming(f"{home}model.ckpt-9"), ["dangling-tracker"]) for home in ("", "/elsewhere/")),
        (naming("model\0-5"), ["dangling-tracker"]),
        *(
            (text, ["bad-tracker"])
            for text in (naming("model.ckpt-5")[:-9], b"", bytes(100), naming("model.ckpt-5") + b"garbage")
        ),
    ],
)
def test_the_state_file_beside_a_bundle(tmp_path: Path, text: bytes, codes: list[str]) -> None:
    shutil.copytree(GOOD / "v1-sharded", tmp_path / "x")
    (tmp_path / "x/checkpoint").write_bytes(text)
    assert [f.code for f in verify([str(tmp_path)], settle=0).findings if f.severity > Severity.NOTE] == codes


def looked_at(name: str) -> set[str]:
    return {Path(f.report.path).name for f in verify([str(GOOD / "manager" / name)]).files}


def test_one_file_is_looked_at_with_what_its_index_says_and_nothing_else() -> None:
    data = "ckpt-2.data-00000-of-00001"
    assert looked_at(data) == {data}
    for name in ("ckpt-2.index", "ckpt-2"):  # what they have in common names the index
        assert looked_at(name) == {"ckpt-2.index", data}
