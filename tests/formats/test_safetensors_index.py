"""Indexes of sharded models: what they say about their shards, total_size over all of them, hostile ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from counted import at_most, memory_below
from examples import examples
from helpers import codes
from hypothesis import given
from hypothesis import strategies as st
from places import FORMAT_FILES
from safetensors_writer import packed

from ckpt_tools.formats.common.format import Anatomy, Claim, structure
from ckpt_tools.formats.safetensors import safetensors, safetensors_index
from ckpt_tools.inspection.check import inspect
from ckpt_tools.inspection.indexes import Indexes
from ckpt_tools.inspection.recognise import allow_by_name
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Level
from ckpt_tools.storage import BytesSource

GOOD = FORMAT_FILES / "safetensors_index/good"


def read(data: bytes) -> tuple[list[Finding], Anatomy]:
    anatomy = Anatomy()
    check = safetensors_index.FORMAT.checks[Level.STRUCTURE]
    return list(structure(BytesSource(data), anatomy, check)), anatomy


def index(weight_map: object, metadata: object = None, **more: object) -> bytes:
    return json.dumps({"metadata": metadata or {}, "weight_map": weight_map} | more).encode()


def shard(*tensors: tuple[str, int], meta: dict[str, str] | None = None) -> bytes:
    """A safetensors file of byte vectors."""
    return packed({name: ("U8", [size], b"\1" * size) for name, size in tensors}, meta)


def check(claim: Claim, data: bytes) -> dict[str, Finding]:
    """The findings of a claim about a shard."""
    anatomy, source = Anatomy(), BytesSource(data)
    list(structure(source, anatomy, safetensors.FORMAT.checks[Level.STRUCTURE]))
    return {f.code: f for f in structure(source, anatomy, claim.check)}


A, B = shard(("a", 3), ("b", 4)), shard(("c", 5))
MAP = {"a": "1", "b": "1", "c": "2"}


def claims(weight_map: dict[str, str] = MAP, **metadata: object) -> dict[str, Claim]:
    found, anatomy = read(index(weight_map, metadata))
    assert found == []
    return anatomy.members


def test_what_an_index_says() -> None:
    told = {"total_size": 12, "global_step": 7, "odd": float("inf"), "nested": {"a": 1}}
    found, anatomy = read(index(MAP, told, other=[1, {}]))
    assert found == []
    assert {name: claim.whole for name, claim in anatomy.members.items()} == {"1": False, "2": False}
    assert anatomy.keys == {"a", "b", "c"}
    assert anatomy.metadata == {"total_size": 12, "global_step": 7, "odd": "inf"}


OURS = "model.safetensors.index.json pytorch_model.bin.index.json model.safetensors.index.fp16.json x.bin.index.json"
OTHERS = "config.json index.json tf_model.h5.index.json param_name_map.json site.index.json model.safetensors"


@pytest.mark.parametrize("name", f"{OURS} {OTHERS}".split())
def test_names(name: str) -> None:
    found, ours = allow_by_name(name), name in OURS.split()
    assert (safetensors_index.FORMAT in found, safetensors_index.FORMAT in found[:1]) == (ours, ours)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (shard(("a", 3), meta={"b": "a"}), set()),  # tied: its metadata says so
        (shard(("a", 3), meta={"b": "x"}), {"missing-tensor"}), (B, {"missing-tensor", "duplicate-tensor"}),
        (A[:50], {"missing-tensor"}), (shard(), {"missing-tensor"}),
    ],
)  # fmt: skip
def test_a_shard_against_its_index(data: bytes, found: set[str]) -> None:
    assert set(check(claims()["1"], data)) == found


# total_size


def test_the_sum_is_reported_once_by_the_shard_that_completes_it() -> None:
    said = claims(total_size=99)
    assert check(said["2"], B) == {}
    assert set(check(said["1"], A)) == {"odd-header"}
    assert check(said["2"], B) == {}  # a second look at another level
    again = check(said["1"], A)["odd-header"]
    assert again.severity is Severity.NOTE
    assert "is 99, the 2 shards hold 12 bytes" in again.message


def test_the_sum_waits_for_missing_and_broken_shards() -> None:
    said = claims(total_size=99)
    assert check(said["1"], A) == check(said["1"], A) == {}
    said = claims(total_size=99)
    check(said["1"], A[:50])
    assert check(said["2"], B) == {}
    assert check(said["1"], A)  # repaired in between


@pytest.mark.parametrize(
    ("total", "severity"),
    [  # mlx sums the files; one bit of a digit makes 13 and 52 of 12
        *((total, None) for total in (12, 12.0, len(A) + len(B))),
        *((total, Severity.WARNING) for total in (13, 52)), *((total, Severity.NOTE) for total in (11, 0, "many", None)),
    ],
)  # fmt: skip
def test_total_size(total: object, severity: Severity | None) -> None:
    said = claims(total_size=total)
    check(said["1"], A)
    found = check(said["2"], B).get("odd-header")
    assert (found and found.severity) == severity


def test_tied_tensors_of_torch_shards_count_once_or_twice() -> None:
    """huggingface_hub counts a storage once, transformers before 4.3 counted every name."""
    directory = GOOD / "torch"
    text = json.loads((directory / "pytorch_model.bin.index.json").read_text())
    for total, fine in (632, True), (632 + 320, True), (1000, False):
        text["metadata"]["total_size"] = total
        members = read(json.dumps(text).encode())[1].members.items()
        reports = (inspect(str(directory / name), Level.STRUCTURE, claims=[of])[0] for name, of in members)
        assert ("odd-header" not in {f.code for r in reports for f in r.findings}) is fine


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "..", "", "\0"])
def test_paths_stay_inside(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors.index.json"
    path.write_bytes(index({"a": name}))
    assert not (indexes := Indexes([str(path)])).claims(str(path))
    assert codes(indexes.findings[str(path)]) == {"path-escape"}


# Hostile indexes

HOSTILE = {
    "arrays": b'{"metadata": ' + b"[" * 200_000, "objects": b'{"metadata": ' + b'{"a":' * 40_000,
    "objects in a section": b'{"x": ' + b'{"a":' * 40_000, "lists in metadata": b'{"metadata": {"a": [' + b"[]," * 60_000,
    "sections": b"{" + b",".join(b'"%d":1' % i for i in range(6_000)) + b"}",
    "metadata": b'{"metadata": {' + b",".join(b'"%d":1' % i for i in range(6_000)) + b"}}",
    "one key": b'{"weight_map": {' + b",".join([b'"":""'] * 30_000) + b"}}",
    "one tensor": b'{"weight_map": {' + b",".join(b'"a":"%d"' % i for i in range(20_000)) + b"}}",
    "escapes": b'{"weight_map": {' + b",".join(b'"\\u0041%d":""' % i for i in range(12_000)),
    "a long name": b'{"weight_map": {"' + b"n" * 200_000 + b'": ""}}', "a number": b'{"metadata": {"total_size": ' + b"9" * 200_000 + b"}}",
    "blanks": b'{"metadata": {' + b" " * 200_000, "backslashes": b'{"weight_map": {"' + b"\\" * 200_000,
    "quotes": b'{"weight_map": {' + b'"' * 200_000, "zeros": b'{"weight_map": {' + bytes(200_000),
    "not ascii": b'{"weight_map": {' + "é".encode() * 100_000,
}  # fmt: skip


@pytest.mark.share(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_indexes(name: str) -> None:
    """Bounded in time, memory and number of findings, and none is taken for good, unless it is."""
    with memory_below(12 << 20), at_most(1_600_000):
        found, _ = read(HOSTILE[name])
    assert codes(found) and len(found) < 50
    assert sum(len(f.message) for f in found) < 20_000


@pytest.mark.slow
def test_a_million_entries() -> None:
    """The largest index that is read whole: half a second, and no quadratic step over shards."""
    row = b'"model.layers.%d.mlp.experts.weight":"model-%05d.safetensors"'
    entries = b",".join(row % (i, i % 10_000) for i in range(80_000))
    with at_most(3_000_000):
        found, anatomy = read(b'{"weight_map":{' + entries + b"}}")
        assert found == []
        assert len(anatomy.members) == 10_000
        for claim in list(anatomy.members.values())[:100]:
            check(claim, A)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in "MAX_TENSORS", "MAX_SHARDS":
        with monkeypatch.context() as m:
            m.setattr(safetensors_index, bound, 2)
            assert codes(read(index({"a": "1", "b": "2"}))[0]) == set()
            assert codes(read(index({"a": "1", "b": "2", "c": "3"}))[0]) == {"too-complex"}
    monkeypatch.setattr(safetensors_index, "MAX_INDEX", 30)
    assert codes(read(index(MAP))[0]) == {"too-complex"}


# Laws


LETTERS = st.characters(exclude_categories=["Cs"])
WEIGHTS = st.dictionaries(st.text(LETTERS, max_size=12), st.text(LETTERS, max_size=8), min_size=1, max_size=8)
VALUES = st.none() | st.integers() | st.floats() | st.text(LETTERS, max_size=9) | st.lists(st.integers())
METADATA = st.dictionaries(st.text(LETTERS, max_size=12), VALUES, max_size=4)


@pytest.mark.slow
@examples(150)
@given(WEIGHTS, METADATA, st.sampled_from([None, 0, 2]), st.booleans())
def test_any_index_is_read_as_json_reads_it(
    weights: dict[str, str], metadata: dict[str, Any], indent: int | None, ascii_: bool
) -> None:
    value = {"metadata": metadata, "weight_map": weights}
    data = json.dumps(value, indent=indent, ensure_ascii=ascii_).encode()
    found, anatomy = read(data)
    assert codes(found) - {"bad-header"} == set()  # a key may be one bit away from total_size
    if not found:
        assert (anatomy.keys, set(anatomy.members)) == (set(weights), set(weights.values()))
    assert safetensors_index.FORMAT.magic(data[:64])
