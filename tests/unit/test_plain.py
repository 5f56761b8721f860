"""What goes to other machines is plain data, and comes back as what it was."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import FORMAT_FILES

from ckpt_tools.checksum import CRC32, CRC32C
from ckpt_tools.discovery.walk import discover
from ckpt_tools.formats.dcp.data_files import Piece
from ckpt_tools.inspection.indexes import Indexes
from ckpt_tools.model.plain import decode, encode
from ckpt_tools.model.tensor import Box

BARE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    BARE,
    lambda of: (
        st.lists(of)
        | st.tuples(of, of)
        | st.dictionaries(st.text(), of)
        | st.frozensets(st.text())
        | st.builds(Box, of, of)
    ),
    max_leaves=20,
)


def plain(value: object) -> bool:
    return all(map(plain, value)) if type(value) is tuple else type(value) in (int, str, bytes, type(None))


@pytest.mark.slow
@given(VALUES)
def test_values_come_back(value: object) -> None:
    sent = encode(value)
    assert plain(sent)
    assert decode(sent) == value and type(decode(sent)) is type(value)


def test_constants_are_the_same_there() -> None:
    assert decode(encode(CRC32)) is CRC32 and decode(encode(CRC32C)) is CRC32C
    assert pickle.loads(pickle.dumps(CRC32C)) is CRC32C


@pytest.mark.slow
def test_claims_of_every_fixture_come_back() -> None:
    """What an index says of the files beside it, in every format that has one."""
    seen = set()
    for root in FORMAT_FILES.iterdir():
        indexes = Indexes(discover(str(root)).indexes)
        for path in indexes.members():
            for claim in indexes.claims(path):
                if not claim.joint:
                    sent = encode(claim)
                    made = decode(sent)
                    assert plain(sent) and encode(made) == sent, (path, claim)
                    assert type(made) is type(claim)
                    seen.add(claim.format)
    assert seen >= {
        "dcp",
        "mcore_integrity",
        "ocdbt",
        "orbax_tree",
        "tf_bundle",
        "zarr",
        "onnx",
        "torchsnapshot",
    }


@pytest.mark.parametrize(
    "value",
    [
        open,
        print,
        object(),
        lambda: None,
        partial(print, 1),
        type,
        Path("x"),
        1j,
        bytearray(b"x"),
        range(3),
        Box,
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_is_no_plain_data_is_refused(value: object) -> None:
    if value is Box:
        assert decode(encode(value)) is Box  # a name of ours
        return
    with pytest.raises(TypeError):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [
        ("named", "os", "system"), ("named", "builtins", "eval"), ("named", "ckpt_toolsx", "a"), ("named", "ckpt_tools.model.part", "os.system"),
        ("record", "subprocess", "Popen", "true"), ("record", "ckpt_tools.inspection.loadability", "load", "torch"), ("record", "ckpt_tools.storage", "LocalSource", "/etc/passwd"),
        ("partial", ("named", "os", "system"), ("tuple", "true"), ("dict",)), ("what", 1), ("__class__",),
    ],
)  # fmt: skip
def test_only_names_of_ours_are_looked_up(data: object) -> None:
    with pytest.raises((TypeError, KeyError)):
        decode(data)


def test_records_keep_their_fields() -> None:
    piece = Piece(5, 10, "model.w", "float32", (2, 3), ())
    assert decode(encode([piece])) == [piece]
