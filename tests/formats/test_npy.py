"""NumPy's arrays, in its own files and in the pickles of joblib.dump: whatever type, shape and order they write
is good, every cut of it is seen, and what another unpickler would make of them.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from examples import examples
from helpers import bad, look, zipped
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from places import FORMAT_FILES

from ckpt_tools.formats import BY_NAME, Anatomy, format_of
from ckpt_tools.formats.common.format import Damage, structure
from ckpt_tools.formats.numpy.header import read_header
from ckpt_tools.formats.pickles.reader import WRAPPER
from ckpt_tools.inspection.check import inspect
from ckpt_tools.model.report import Level
from ckpt_tools.storage import BytesSource

pytestmark = pytest.mark.filterwarnings("ignore:Stored array in format")

STRINGS = arrays.unicode_string_dtypes() | arrays.byte_string_dtypes()
PLAIN = arrays.scalar_dtypes() | STRINGS | arrays.array_dtypes(max_size=3)
TYPES = PLAIN | arrays.nested_dtypes(max_leaves=4, max_itemsize=200)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
ARRAYS = st.builds(np.zeros, SHAPES, TYPES, st.sampled_from("CF"))


def saved(*them: Any) -> bytes:
    out = io.BytesIO()
    for one in them:
        np.save(out, one)
    return out.getvalue()


@pytest.mark.slow
@examples(400)
@given(one=ARRAYS, at=st.integers(0, 1 << 20))
def test_what_numpy_writes_is_good_and_no_cut_of_it_is(one: Any, at: int) -> None:
    data, anatomy = saved(one), Anatomy()
    found = bad(look(data, BY_NAME["npy"], anatomy))
    assert (found, sum(t.nbytes for t in anatomy.tensors)) == ([], one.nbytes)
    assert bad(look(data[: at % len(data)], BY_NAME["npy"]))


@pytest.mark.slow
@examples(60)
@given(them=st.dictionaries(st.text(min_size=1, max_size=60), ARRAYS, min_size=1), deflated=st.booleans())
def test_an_archive_of_what_numpy_writes_is_good(them: dict[str, Any], deflated: bool) -> None:
    out = io.BytesIO()
    kept = {name: one for name, one in them.items() if name.isprintable() and not set("/\\.") & set(name)}
    (np.savez_compressed if deflated else np.savez)(out, **{f"a{name}": one for name, one in kept.items()})
    if kept:
        found = bad(look(out.getvalue(), BY_NAME["npz"], anatomy := Anatomy()))
        wanted = sum(one.nbytes for one in kept.values())
        assert (found, sum(t.nbytes for t in anatomy.tensors)) == ([], wanted)


@pytest.mark.slow
@examples(300)
@given(st.text("{}[]()'\",: \\\n0123456789LTFrueals<f4descrfortan_oshp", max_size=80))
def test_a_header_is_a_header_or_damage(text: str) -> None:
    with suppress(Damage):
        assert read_header(text, 0).shape is not None


def test_names_and_numbers_of_an_archive(tmp_path: Path) -> None:
    state = {"w": np.ones((2, 3), "f4"), "step": 300}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", step=np.int64(200), w=np.ones((90, 90)), f=np.ones((2, 3), order="F"))
        report, anatomy = inspect(str(tmp_path / "a.npz"), Level.STRUCTURE)
        assert (report.format, report.metadata["step"], anatomy.keys) == ("npz", 200, {"step", "w", "f"})
        assert {t.name: t.shape for t in anatomy.tensors} == {"step": (), "w": (90, 90), "f": (3, 2)}
        save(tmp_path / "b.npz", state=np.array(state))
        assert inspect(str(tmp_path / "b.npz"), Level.STRUCTURE)[0].metadata["step"] == 300
    np.save(tmp_path / "c.npy", np.array(state), allow_pickle=True)
    assert inspect(str(tmp_path / "c.npy"), Level.STRUCTURE)[0].metadata["step"] == 300


@pytest.mark.slow
def test_settings_of_any_length_before_the_leaves_of_a_model(tmp_path: Path) -> None:
    for n in range(90):
        path = tmp_path / f"{n}.eqx"
        path.write_bytes(b'{"name": "%s"}\n' % (b"x" * n) + saved(np.ones(3)))
        report, _ = inspect(str(path), Level.STRUCTURE)
        assert (report.format, report.tensors, bad(report.findings)) == ("eqx", 1, [])


def _members(n: int, array: bytes, first: str = "") -> bytes:
    return zipped(
        {**({first: b""} if first else {}), **{f"{i}.npy": array for i in range(n)}}, zipfile.ZIP_DEFLATED
    )


@pytest.mark.parametrize(("first", "name"), [("", "npz"), ("notes.txt", "zip_archive")])
def test_deflated_pickles_are_inflated_within_a_bound(
    first: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = saved(np.array(["x" * 100_000], dtype=object))
    monkeypatch.setattr("ckpt_tools.formats.numpy.npz._OBJECTS", 250_000)
    codes = [f.code for f in look(_members(4, objects, first), format_of(name))]
    assert codes.count("unread-pickle") == 2


class Calls:
    def __reduce__(self) -> Any:
        return os.mkdir, ("made",)


class EmptyBlocks:
    """A compressor that begins with blocks in which nothing is."""

    def __init__(self, blocks: int) -> None:
        self.made, self.own = b"\0\0\0\xff\xff" * blocks, zlib.compressobj(wbits=-15)

    def compress(self, data: bytes) -> bytes:
        first, self.made = self.made, b""
        return first + self.own.compress(data)

    def flush(self) -> bytes:
        return self.own.flush()


@pytest.mark.parametrize("blocks", [0, 3000])
def test_code_is_seen_however_far_the_first_byte_of_a_deflated_array_lies(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of codes may take more than 64 bytes, and empty blocks any number."""
    monkeypatch.setattr(zipfile, "_get_compressor", lambda *_: EmptyBlocks(blocks))
    archive = _members(1, saved(np.array(["x" * 100_000, Calls()], dtype=object)), "notes.txt")
    assert "unsafe-pickle" in {f.code for f in look(archive, format_of("zip_archive"))}


# -- joblib.dump ---------------------------------------------------------------------------------------------


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
    them=st.lists(st.builds(np.zeros, SHAPES, TYPES | st.just(np.dtype(object))), min_size=1, max_size=4),
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
