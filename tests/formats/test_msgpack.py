"""MessagePack: any tree that flax can pack is good, and none that is cut off."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from helpers import bad, codes, is_bad, look
from hypothesis import given
from hypothesis import strategies as st
from msgpack_writer import array, packed
from msgspec.msgpack import Ext

from ckpt_tools import Level, verify
from ckpt_tools.formats import BY_NAME, Anatomy
from ckpt_tools.formats.msgpack.contents import item_size

MSGPACK, STREAM = BY_NAME["msgpack"], BY_NAME["msgpack_stream"]
DTYPES = ("float32", "bfloat16", "int8", "bool", "float64", "complex64", "str64", "float8_e4m3fn")


@st.composite
def arrays(draw: st.DrawFn) -> Ext:
    shape, dtype = tuple(draw(st.lists(st.integers(0, 5), max_size=3))), draw(st.sampled_from(DTYPES))
    size = math.prod(shape) * (item_size(dtype) or 0)
    return array(shape, dtype, draw(st.binary(min_size=1, max_size=1)) * size)


NAMES = st.text(max_size=40).filter(lambda name: name.isprintable())
NUMBERS = st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
LEAVES = st.none() | NUMBERS | st.text(max_size=300) | st.binary(max_size=300) | arrays()
TREES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=20) | st.dictionaries(NAMES, v, max_size=20), max_leaves=30
)
STATES = st.dictionaries(NAMES.filter(bool), TREES, min_size=1, max_size=4)


def leaves(tree: Any) -> int:
    """How many arrays there are."""
    if isinstance(tree, Ext):
        return 1
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return sum(map(leaves, inside))


@pytest.mark.slow
@examples(150)
@given(STATES)
def test_a_tree_is_good_and_no_part_of_it(tree: dict[str, Any]) -> None:
    data, anatomy = packed(tree), Anatomy()
    assert bad(look(data, anatomy=anatomy)) == []
    assert (len(anatomy.tensors), anatomy.keys) == (leaves(tree), set(tree))
    assert sum(t.nbytes for t in anatomy.tensors) <= len(data)
    step = max(1, len(data) // 60)
    assert [n for n in range(0, len(data), step) if not is_bad(data[:n], MSGPACK)] == []
    assert [f.code for f in bad(look(data + b"\xc0", MSGPACK))] == ["trailing-data"]


@pytest.mark.slow
@examples(100)
@given(st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map(tuple), LEAVES, min_size=1, max_size=5))
def test_a_stream_is_good_and_no_part_of_it_but_whole_leaves(leaf: dict[tuple[str, ...], Any]) -> None:
    pairs = [packed([list(path), packed(value)]) for path, value in leaf.items()]
    data, borders = b"".join(pairs), {sum(map(len, pairs[:n])) for n in range(len(pairs))}
    assert bad(look(data, STREAM)) == []
    assert [n for n in set(range(len(data))) - borders if not is_bad(data[:n], STREAM)] == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (packed([1, 2]), None), (packed({1: 2}), None), (b"\x80", None), (b"not packed at all", "bad-header"), (bytes(5000), "zero-filled"),
        (b"\x00\x01" + packed({"a": 1}), "bad-header"), (b"", "empty-file"),
    ],
)  # fmt: skip
def test_what_other_programs_keep_under_the_name_is_left_alone(
    data: bytes, says: str | None, tmp_path: Path
) -> None:
    (tmp_path / "cache.msgpack").write_bytes(data)
    reports = (entry.report for entry in verify([str(tmp_path)], Level.STRUCTURE).files)
    found = codes(f for report in reports for f in report.findings)
    assert (says in found) if says else not found


def test_a_step_is_read_as_number_and_as_array() -> None:
    arrays = (array((), "int32", (7).to_bytes(4, "little")), array((1,), "int64", (7).to_bytes(8, "little")))
    for step in (7, *arrays):
        anatomy = Anatomy()
        look(packed({"step": step, "opt": {"step": 6, "other": 5}}), anatomy=anatomy)
        assert anatomy.metadata == {"step": 7, "opt.step": 6}
