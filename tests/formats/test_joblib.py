"""Files of joblib.dump: arrays in the stream of a pickle, and what another unpickler would make of them."""

from __future__ import annotations

import io
import pickle
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from examples import examples
from helpers import bad, look
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from places import FORMAT_FILES

from ckpt_tools.formats import BY_NAME, Anatomy
from ckpt_tools.formats.common.format import structure
from ckpt_tools.formats.pickles.joblib_arrays import WRAPPER
from ckpt_tools.inspection.check import inspect
from ckpt_tools.model.report import Level
from ckpt_tools.storage import BytesSource

TYPES = (
    arrays.scalar_dtypes()
    | arrays.unicode_string_dtypes()
    | arrays.byte_string_dtypes()
    | arrays.nested_dtypes(max_leaves=3, max_itemsize=100)
    | st.just(np.dtype(object))
)
ARRAYS = st.builds(np.zeros, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), TYPES)


class NumpyArrayWrapper:
    """As joblib's, by whose name it is pickled."""


NumpyArrayWrapper.__module__ = WRAPPER.module


class Dumper(pickle._Pickler):  # type: ignore[name-defined]
    """What joblib's NumpyPickler writes (joblib/numpy_pickle.py)."""

    def __init__(self, file: Any, protocol: int, padded: bool) -> None:
        super().__init__(file, protocol)
        self.file, self.padded = file, padded

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if obj is not NumpyArrayWrapper:
            super().save_global(obj, name)
            return
        if self.proto >= 4:
            self.save(WRAPPER.module)
            self.save(WRAPPER.name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(f"c{WRAPPER.module}\n{WRAPPER.name}\n".encode())
        self.memoize(obj)

    dispatch: ClassVar[Any] = {**pickle._Pickler.dispatch, type: save_global}  # type: ignore[attr-defined]

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if type(obj) is not np.ndarray:
            super().save(obj, save_persistent_id)
            return
        wrapper = NumpyArrayWrapper()
        state = {"subclass": np.ndarray, "shape": obj.shape, "order": "C", "dtype": obj.dtype}
        wrapper.__dict__ = {**state, "allow_mmap": False}
        if self.padded:
            wrapper.__dict__["numpy_array_alignment_bytes"] = 16
        super().save(wrapper)
        if self.proto >= 4:
            self.framer.commit_frame(force=True)
        if obj.dtype.hasobject:
            pickle.dump(obj, self.file, protocol=5)
            return
        if self.padded:
            n = 16 - (self.file.tell() + 1) % 16
            self.file.write(bytes([n]) + b"\xff" * n)
        self.file.write(obj.tobytes())


def dumped(value: Any, protocol: int = 4, padded: bool = True) -> bytes:
    out = io.BytesIO()
    Dumper(out, protocol, padded).dump(value)
    return out.getvalue()


def test_the_dumper_writes_what_joblib_does() -> None:
    """An array of zeros is one whose bytes are known."""
    real = (FORMAT_FILES / "pickle_plain/good/protocol-3.joblib").read_bytes()
    mine = dumped({"params": {"w": np.zeros((3, 4), "f4")}}, 3)
    at = real.index(b"NumpyArrayWrapper")
    assert mine[: mine.index(b"NumpyArrayWrapper")][-24:] == real[at - 24 : at]
    assert b"numpy_array_alignment_bytes" in mine


@pytest.mark.slow
@examples(200)
@given(
    them=st.lists(ARRAYS, min_size=1, max_size=4),
    protocol=st.integers(2, 5),
    padded=st.booleans(),
    packed=st.booleans(),
    at=st.integers(0, 1 << 20),
)
def test_what_joblib_writes_is_good_and_no_cut_of_it_is(
    them: list[Any], protocol: int, padded: bool, packed: bool, at: int
) -> None:
    data = dumped({"step": 7, **{f"a{i}": one for i, one in enumerate(them)}}, protocol, padded)
    fmt = BY_NAME["joblib" if packed else "pickle_plain"]
    data = zlib.compress(data, 3) if packed else data
    anatomy = Anatomy()
    found = [*structure(BytesSource(data), anatomy, fmt.checks[Level.STRUCTURE])]
    assert bad(found) == []
    assert anatomy.metadata["step"] == 7
    assert bad(look(data[: at % len(data)], fmt))


@pytest.mark.slow
def test_a_large_array_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.joblib"
    path.write_bytes(dumped({"w": np.ones((1 << 22,)), "after": 3}))
    report, anatomy = inspect(str(path), Level.STRUCTURE)
    assert bad(report.findings) == [] and report.bytes_read < 1 << 20
    assert [(t.name, t.nbytes) for t in anatomy.tensors] == [("w", 1 << 25)]
    path.write_bytes(path.read_bytes()[: 1 << 24])
    assert [f.code for f in bad(inspect(str(path), Level.STRUCTURE)[0].findings)] == ["truncated"]


@pytest.mark.parametrize("packed", [False, True])
def test_elements_that_another_unpickler_takes_for_opcodes(packed: bool) -> None:
    """Without a padding before them pickle.load runs what joblib.load takes for numbers."""
    hidden = np.frombuffer(b"cos\nsystem\n(S'echo unsafe'\ntR.", "u1")
    for padded, codes in ((False, {"unsafe-pickle"}), (True, set())):
        data = dumped([hidden], 2, padded)
        fmt = BY_NAME["joblib" if packed else "pickle_plain"]
        found = look(zlib.compress(data) if packed else data, fmt)
        assert {f.code for f in bad(found)} == codes


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"shapeq", b"shapfq"), (b"O8", b"f8"), (b"f4", b"f8"), (b"f4", b"q4"), (b"K\x10ub", b"K\x20ub"), (b"K\x10ub", b"K\x11ub")],
)  # fmt: skip
def test_a_description_that_is_not_as_joblib_writes_it(old: bytes, new: bytes) -> None:
    """Nobody knows where such a pickle goes on."""
    data = dumped([np.array([None]), np.ones(3, "f4"), "x" * 8], 2)
    assert old in data
    assert bad(look(data.replace(old, new), BY_NAME["pickle_plain"]))


def test_what_decodes_into_too_much_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt_tools.formats.pickles.joblib._FLOOR", 1 << 20)
    found = look(zlib.compress(bytes(1 << 22), 9), BY_NAME["joblib"])
    assert {f.code for f in bad(found)} == {"unread-pickle"}
