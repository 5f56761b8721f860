"""OCDBT: a small writer of its own makes databases that must be good, and damage in them that must be seen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helpers
import pytest
import zstandard
from counted import at_most, memory_below
from crc32c import crc32c
from examples import examples
from helpers import Fixture, bad, claims, findings, flipped, left_behind, look
from hypothesis import given
from hypothesis import strategies as st
from mindspore_writer import varint
from places import FORMAT_FILES

from ckpt_tools.api import verify
from ckpt_tools.checksum import Extent
from ckpt_tools.formats import BY_NAME, Anatomy, structure
from ckpt_tools.formats.tensorstore import ocdbt
from ckpt_tools.formats.tensorstore.ocdbt import Parts
from ckpt_tools.formats.tensorstore.ocdbt_nodes import decode_body
from ckpt_tools.model.finding import Verdict
from ckpt_tools.storage import BytesSource

FMT = BY_NAME["ocdbt"]
GOOD = FORMAT_FILES / "ocdbt" / "good"


def varints(*numbers: int) -> bytes:
    return b"".join(map(varint, numbers))


def record(magic: str, body: bytes, packed: bool = True) -> bytes:
    inner = zstandard.compress(body) if packed else body
    head = bytes.fromhex(magic) + (len(inner) + 18).to_bytes(8, "little") + bytes([0, packed])
    return head + inner + crc32c(head + inner).to_bytes(4, "little")


def table(paths: list[tuple[str, str]]) -> bytes:
    """A data file table without shared prefixes: (base, rest) of each path."""
    whole = [(b + p).encode() for b, p in paths]
    columns = varints(*[0] * (len(paths) - 1), *map(len, whole), *(len(b.encode()) for b, _ in paths))
    return varint(len(paths)) + columns + b"".join(whole)


Values = Mapping[bytes, bytes | tuple[int, int, int]]
"""By key: the bytes, or (file, offset, length)."""


def leaf(values: Values, files: list[tuple[str, str]], packed: bool = True) -> bytes:
    keys = sorted(values)
    all_of = [values[k] for k in keys]
    far, near = ([v for v in all_of if isinstance(v, kind)] for kind in (tuple, bytes))
    body = b"\0" + table(files) + varint(len(keys)) + varints(*[0] * (len(keys) - 1), *map(len, keys))
    body += b"".join(keys) + varints(*(v[2] if isinstance(v, tuple) else len(v) for v in all_of))
    body += bytes(isinstance(v, tuple) for v in all_of)
    body += varints(*(v[0] for v in far), *(v[1] for v in far)) + b"".join(near)
    return record("0cdb20de", body, packed)


def manifest(roots: list[tuple[str, int, int, int]], packed: bool = True, versions: bytes = b"\0") -> bytes:
    """A manifest: (path, offset, length, height) of the root of each version."""
    n = len(roots)
    paths, offsets, lengths, heights = zip(*roots, strict=True)
    body = bytes(16) + b"\0" + varints(1024, 100_000_000) + b"\4" + (b"\1" + bytes(4) if packed else b"\0")
    body += table([("", p) for p in paths]) + varints(n, *range(1, n + 1)) + bytes(heights)
    body += varints(*range(n), *offsets, *lengths, *[0] * (3 * n)) + bytes(8 * n) + versions
    return record("0cdb3a2a", body, packed)


def below(node: bytes, height: int = 0, **files: bytes) -> dict[str, bytes]:
    """A database whose root is this node, and its other files."""
    more = {name.replace("_", "/"): data for name, data in files.items()}
    return {"d/0": node, **more, "manifest.ocdbt": manifest([("d/0", 0, len(node), height)])}


def codes(files: Mapping[str, bytes]) -> set[str]:
    """What is wrong with a database, over all its files."""
    said, missing = claims(files)
    out = {"missing-part"} if missing else set()
    for own, data in files.items():
        if own in said or own.endswith("ocdbt"):
            out |= helpers.codes(findings(data, FMT, Anatomy(), said.get(own, ())))
    return out


VALUES = st.dictionaries(
    st.binary(min_size=1, max_size=9), st.tuples(st.binary(max_size=40), st.booleans()), min_size=1, max_size=9
)  # fmt: skip


def database(values: Mapping[bytes, tuple[bytes, bool]], packed: bool, base: str) -> dict[str, bytes]:
    data, placed = b"", dict[bytes, bytes | tuple[int, int, int]]()
    for key, (value, far) in values.items():
        placed[key] = (0, len(data), len(value)) if far else value
        data += value if far else b""
    node = leaf(placed, [(base, "d/" + "0" * 32)], packed)
    return {
        base + "d/" + "0" * 32: data,
        "d/" + "1" * 32: node,
        "manifest.ocdbt": manifest([("d/" + "1" * 32, 0, len(node), 0)], packed),
    }


@pytest.mark.slow
@examples(50)
@given(VALUES, st.booleans(), st.sampled_from(["", "ocdbt.process_0/"]), st.data())
def test_databases_are_good_and_every_flip_in_a_node_is_seen(
    values: Mapping[bytes, tuple[bytes, bool]], packed: bool, base: str, draw: st.DataObject
) -> None:
    files = database(values, packed, base)
    assert codes(files) == set()
    for own in ("manifest.ocdbt", "d/" + "1" * 32):
        bit = draw.draw(st.integers(0, 8 * len(files[own]) - 1))
        assert codes({**files, own: flipped(files[own], bit)})
    name = base + "d/" + "0" * 32
    if any(far and value for value, far in values.values()):
        assert codes({**files, name: files[name][:-1]}) == {"truncated"}
        assert codes({**files, name: files[name] + b"x"}) == {"trailing-data"}
        del files[name]
        assert codes(files) == {"missing-part"}


def test_a_value_that_two_trees_name_is_decoded_once() -> None:
    value = max((GOOD / "orbax_zarr2/ocdbt.process_0/d").iterdir(), key=lambda p: p.stat().st_size)
    good = Fixture(value)
    assert len([c for c in good.said[good.own] if isinstance(c.check, Parts)]) > 1
    sums = good.anatomy()[0].sums
    assert len({(s.what, s.offset) for s in sums}) == len(sums)


def test_nodes_that_newer_ones_replaced_are_checked_as_well() -> None:
    node, stale = leaf({b"a": b"1"}, []), leaf({b"a": b"old"}, [])
    files = below(node)
    broken = stale[:-9] + bytes(9)
    for added, found in (
        (stale * 2, set()),
        (broken + stale, {"crc-mismatch"}),
        (stale + stale[:-1], {"trailing-data"}),
    ):
        assert codes({**files, "d/0": node + added}) == found


def test_two_levels_with_a_common_prefix() -> None:
    under = leaf({b"c": b"1", b"d": b"2"}, [])
    body = b"\1" + table([("sub/", "d/1")]) + varints(1, 3, 2) + b"abc" + varints(0, 0, len(under), 0, 0, 0)
    node = record("0cdb20de", body)
    assert codes(below(node, 1, sub_d_1=under)) == set()
    for other in (leaf({b"b": b"1", b"d": b"2"}, []), b"\0" * len(under)):  # a key below the least
        assert codes(below(node, 1, sub_d_1=other)) == {"bad-header"}
    assert codes(below(node, 2, sub_d_1=under)) == {"bad-header"}  # another height


def test_a_tree_that_names_itself_ends() -> None:
    def build(length: int) -> bytes:
        places = varints(1, 1, 0) + b"a" + varints(0, 0, length, 0, 0, 0)
        return record("0cdb20de", b"\2" + table([("", "d/0")]) + places, packed=False)

    files = below(build(len(build(1))), 2)
    with at_most(10_000):
        assert "bad-header" in codes(files)


N = 1 << 20
BEGINS = bytes(17) + varints(1, 1)
BODIES = {
    "zeros": bytes(90 << 20),
    "noise": b"\xff" * N,
    "many_files": BEGINS + b"\4\0" + varint(N) + b"\1" * (3 * N),
    "long_paths": (
        BEGINS + b"\4\0" + varint(9000) + varint(65000) * 8999 + varint(65535) + varint(1) * 8999
        + bytes(9000) + b"a" * 80000
    ),
    "versions": BEGINS + b"\x10\0" + b"\0" + varint(65536) + b"\1" * 70000,
    "manifest_kind": bytes(16) + b"\2" + bytes(100),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_hostile_manifests_cost_little(name: str) -> None:
    data = record("0cdb3a2a", BODIES[name])
    with memory_below(300 << 20), at_most(300_000):
        assert bad(look(data, FMT))


@pytest.mark.parametrize(
    "body",
    [
        b"\0\0" + varint(N) + b"\1" * (3 * N), b"\0\0" + varint(2) + b"\0\1\1" + b"ba" + bytes(20), b"\1\0" + varints(1, 1, 9) + b"a",
        b"\0\0" + varint(9000) + varint(65000) * 8999 + varint(65001) + varint(1) * 8999 + b"a" * 80000,
        *(b"\0\0" + varints(1, 1) + b"a" + varint(5) + kind for kind in (b"\2", b"\1\0\0")), b"\0\0\0", b"",
    ],
)  # fmt: skip
def test_hostile_nodes_cost_little(body: bytes) -> None:
    node = record("0cdb20de", body)
    with at_most(600_000):
        assert codes(below(node, body[:1] == b"\1")) & {"bad-header", "too-complex"}


@pytest.mark.slow
def test_decoded_nodes_leave_nothing_behind() -> None:
    root = Fixture(GOOD / "orbax_zarr2/manifest.ocdbt")
    assert left_behind(lambda: decode_body(BytesSource(root.data), 0, len(root.data), 1)) < 20


def tree(values: Values, size: int) -> tuple[Anatomy, set[str], int]:
    """What one look at the file of values of a database with one leaf learns: with the codes, and how many they
    are.
    """
    files = below(leaf(values, [("", "d/1")]), d_1=zstandard.compress(bytes(size)).ljust(size, b"\0"))
    anatomy = Anatomy()
    found = bad(list(structure(BytesSource(files["d/1"]), anatomy, claims(files)[0]["d/1"][0].check)))
    return anatomy, {f.code for f in found}, len(found)


def read_of(anatomy: Anatomy) -> int:
    return sum(p.length for s in anatomy.sums for p in s.pieces if isinstance(p, Extent))


def test_a_value_that_many_keys_name_is_read_once() -> None:
    size = len(zstandard.compress(bytes(20)))
    anatomy, found, _ = tree({b"%05d" % n: (0, 0, size) for n in range(5000)}, 20)
    assert (found, read_of(anatomy)) == (set(), size)


@pytest.mark.slow
def test_values_over_each_other_are_damage_and_read_once() -> None:
    anatomy, found, count = tree({b"%05d" % n: (0, n, 60_000 - n) for n in range(5000)}, 60_000)
    assert "bad-header" in found and count <= 20
    assert read_of(anatomy) <= 60_000


def test_arrays_that_are_coded_otherwise_share_no_chunk() -> None:
    def meta(size: int) -> bytes:
        doc = {"chunks": [size], "compressor": {"id": "zstd"}, "dtype": "|u1", "fill_value": None, "filters": None, "order": "C"}  # fmt: skip
        return json.dumps({**doc, "shape": [size], "zarr_format": 2}).encode()

    size = len(zstandard.compress(bytes(20)))
    arrays = {b"%05d/.zarray" % n: meta(20 + n) for n in range(50)}
    anatomy, found, _ = tree(arrays | {b"%05d/0" % n: (0, 0, size) for n in range(50)}, 20)
    assert found == {"bad-header"} and len(anatomy.sums) <= 1
    assert tree(arrays | {b"00000/0": (0, 0, size), b"copy/0": (0, 0, size)}, 20)[1] == set()


def interior(places: list[tuple[int, int]], common: int = 0) -> bytes:
    """A node above leaves at these places of d/1; ``common`` bytes of each key begin all keys below it."""
    n, every = len(places), varints(*[0] * len(places))
    keys = [b"%06d" % i for i in range(n)]
    body = b"\1" + table([("", "d/1")]) + varint(n) + every[1:]
    body += (
        varints(*map(len, keys))
        + varint(common) * n
        + b"".join(keys)
        + every
        + varints(*(o for o, _ in places), *(length for _, length in places))
    )
    return record("0cdb20de", body + every * 3)


@pytest.mark.slow
@pytest.mark.parametrize("common", [0, 6])
def test_a_node_is_read_as_often_as_its_meaning_differs(common: int, monkeypatch: pytest.MonkeyPatch) -> None:
    under = leaf({b"a%05d" % n: b"v" for n in range(100)}, [])
    node = interior([(0, len(under))] * 3000, common)
    files = {"d/0": node, "d/1": under, "manifest.ocdbt": manifest([("d/0", 0, len(node), 1)] * 16)}
    said, decoded = claims(files)[0], list[bytes]()

    def decode(*record: Any) -> bytes:
        decoded.append(decode_body(*record))
        return decoded[-1]

    monkeypatch.setattr(ocdbt.ocdbt_nodes, "decode_body", decode)
    assert bad(list(findings(node, FMT, Anatomy(), said["d/0"]))) == []
    assert len(decoded) == 1  # sixteen versions name it, all alike
    assert [f.code for f in bad(list(findings(under, FMT, Anatomy(), said["d/1"])))] == ["too-complex"]
    assert len(decoded) == 1 + 16


def test_nodes_over_each_other_are_damage() -> None:
    under = b"".join(leaf({b"a": b"v%d" % n}, [], packed=False) for n in range(40))
    node = interior([(n, len(under) - n) for n in range(1000)])
    assert "bad-header" in codes(below(node, 1, d_1=under))


@pytest.mark.slow
def test_nodes_that_decode_into_far_more_stop() -> None:
    one = leaf({b"a": bytes(60_000_000)}, [])
    files = below(interior([(n * len(one), len(one)) for n in range(40)]), 1, d_1=one * 40)
    assert "too-complex" in {f.code for f in findings(files["d/1"], FMT, Anatomy(), claims(files)[0]["d/1"])}


def test_a_file_whose_name_is_that_of_a_data_file_may_be_none(tmp_path: Path) -> None:
    home = tmp_path / "10" / "default"
    shutil.copytree(GOOD / "orbax_zarr2", home)
    (home / "d" / ("a" * 32)).write_bytes(b"a file of such a name that is none of ours")
    seen = verify([str(tmp_path)], settle=0)
    assert seen.verdict is Verdict.OK and not any(f.report.path.endswith("a" * 32) for f in seen.files)
