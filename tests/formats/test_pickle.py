"""The pickle machine against CPython's own pickles, and against pickles made to run code, to hang or to
exhaust memory.
"""

from __future__ import annotations

import argparse
import collections
import enum
import io
import os
import pickle
import pickletools
import struct
import sys
from typing import Any

import pytest
from counted import at_most, memory_below
from examples import examples
from helpers import bad, codes, look, zipped
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.formats import BY_NAME, Anatomy, Damage
from ckpt_tools.formats.pickles.globals import ALLOWED, find_verdict
from ckpt_tools.formats.pickles.reader import read_pickle
from ckpt_tools.formats.pickles.scalars import add_scalars, find_members
from ckpt_tools.formats.pickles.stubs import Call, Dict, Global, Key, NeedMore, Persistent
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.report import Scalar

PLAIN = BY_NAME["pickle_plain"]
P2 = b"\x80\2"


class Colour(enum.Enum):
    RED = 1


class Thing:
    def __init__(self) -> None:
        self.x, self.me = 1, self


def plain(value: Any) -> Any:
    """The machine's value with keys unwrapped: what pickle.loads gives for plain data."""
    if isinstance(value, Key):
        return plain(value.value)
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(plain(v) for v in value)
    return value


def inside(v: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(v) | st.lists(v, min_size=2, max_size=5).map(tuple)
    return some | st.dictionaries(KEYS, v) | st.sets(st.integers())


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.binary() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(SCALARS, inside, max_leaves=30)


@pytest.mark.slow
@examples(150)
@given(VALUES, st.integers(0, 5))
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    got = read_pickle(data)
    assert got.end == len(data)
    assert plain(got.value) == value


@pytest.mark.parametrize("protocol", range(6))
def test_stubs(protocol: int) -> None:
    shared = [1]
    value = {
        "ordered": collections.OrderedDict(a=shared),
        "default": collections.defaultdict(list, {"q": shared}),
        "counter": collections.Counter("aab"),
        "deque": collections.deque([1, 2]),
        "namespace": argparse.Namespace(world_size=8),
        "thing": Thing(),
        "colour": Colour.RED,
        "class": Thing,
        "bytes": b"\0\xff",
        "frozen": frozenset([1, 2]),
    }
    seen: dict[Global, int] = {}
    got = read_pickle(pickle.dumps(value, protocol), seen=seen).value
    assert isinstance(got["ordered"], Dict) and isinstance(got["colour"], Call)
    assert got["default"]["q"] is got["ordered"]["a"] and got["thing"].state["me"] is got["thing"]
    told = {
        "ordered": {"a": [1]}, "default": {"q": [1]}, "counter": {"a": 2, "b": 1}, "class": (__name__, "Thing"), "bytes": b"\0\xff",
        "frozen": {1, 2},
    }  # fmt: skip
    assert {key: got[key] for key in told} == told
    assert got["deque"].items == [1, 2] and find_members(got["namespace"]) == {"world_size": 8}
    assert got["namespace"].func == ("argparse", "Namespace")
    assert seen.keys() >= {Global("argparse", "Namespace"), Global(__name__, "Colour")}


def test_state_of_an_ordered_dict_is_kept() -> None:
    value = collections.OrderedDict(w=1)
    value._metadata = {"version": 2}  # type: ignore[attr-defined]  # as torch's state_dict() has it
    got = read_pickle(pickle.dumps(value, 2)).value
    assert got == {"w": 1}
    assert got.state == {"_metadata": {"version": 2}}


def metadata(value: Any, protocol: int = 2) -> dict[str, Scalar]:
    anatomy = Anatomy()
    add_scalars(read_pickle(pickle.dumps(value, protocol)).value, anatomy)
    return anatomy.metadata


def test_metadata() -> None:
    np = pytest.importorskip("numpy")
    args = argparse.Namespace(world_size=8, iteration=30, name="n\ud800", nested=[1])
    state = {"epoch": 3, "best": np.float32(0.5), "n": np.int64(-7), "huge": 1 << 999, "list": [1], 5: "five"}
    told = {"args.world_size": 8, "args.iteration": 30, "args.name": "n\\ud800"}
    assert metadata({**state, "args": args}) == {"epoch": 3, "best": 0.5, "n": -7, "5": "five", **told}
    assert metadata({"args": {"world_size": 8}}) == {"args.world_size": 8}
    assert metadata([1, 2]) == {}


def test_python_2_and_textual_opcodes() -> None:
    text = b"(dp0\nS'epoch'\np1\nI3\nsS'on'\nI01\nsS'f'\nF1.5\nsS'\\x00\\xff\\n'\nL12L\nsV\\u00e4\nNs."
    assert read_pickle(text).value == {"epoch": 3, "on": True, "f": 1.5, b"\0\xff\n": 12, "ä": None}
    inst = read_pickle(b"(S'a'\nI1\nimod\nCls\n.").value
    assert (inst.func, inst.args) == (("mod", "Cls"), ("a", 1))
    obj = read_pickle(b"(cmod\nCls\nI1\no.").value
    assert (obj.func, obj.args) == (("mod", "Cls"), (1,))
    assert isinstance(read_pickle(b"P12\n.").value, Persistent)
    assert read_pickle(P2 + b"U\2abT\1\0\0\0\xff\x82\7\x87.").value == (
        "ab",
        b"\xff",
        ("copyreg", "extension 7"),
    )


DAMAGED = {
    "empty": b"", "stop alone": b".", "opcode": P2 + b"\xff.", "protocol": b"\x80\6N.", "two values": P2 + b"NN.", "open mark": P2 + b"(N.",
    "no mark": P2 + b"t.", "memo": P2 + b"h\5.", "text memo": b"gx\n.", "setitem on list": P2 + b"]NNs.", "append to dict": P2 + b"}Na.",
    "odd items": P2 + b"}(Nu.", "build on list": P2 + b"]}b.", "build on global": P2 + b"cos\npath\n}b.", "reduce a number": P2 + b"K\1)R.",
    "reduce with a list": P2 + b"cm\nn\n]R.", "stack_global of numbers": b"\x80\4K\1K\2\x93.", "obj of nothing": P2 + b"(o.",
    "utf-8": P2 + b"X\1\0\0\0\xff.", "long length": P2 + b"\x8b\xff\xff\xff\x7f.", "string length": P2 + b"\x8d" + b"\xff" * 8 + b".",
    "frame": b"\x80\4\x95" + b"\xff" * 8 + b"N.", "short frame": b"\x80\4\x95\1\0\0\0\0\0\0\0K\1.", "digits": b"I" + b"9" * 5000 + b"\n.",
    "number": b"Ix\n.", "float": b"Fx\n.", "extension 0": P2 + b"\x82\0.", "negative extension": P2 + b"\x84\xff\xff\xff\xff.",
    "quotes": b"Sx\n.", "no line": b"cos", "latin-1": P2 + b"c_codecs\nencode\nX\2\0\0\0\xc4\x80X\6\0\0\0latin1\x86R.",
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_damage(name: str) -> None:
    with pytest.raises(Damage) as e:
        read_pickle(bytes(1000) + DAMAGED[name], 1000)
    assert e.value.finding.code == "bad-pickle" and (e.value.finding.offset or 0) >= 1000


@pytest.mark.slow
def test_every_cut_asks_for_more_or_is_damage() -> None:
    value = {"a": [1, 2.5, "x" * 300, b"y" * 300, 2**70, (1, 2)], "n": argparse.Namespace(b=1)}
    data = pickle.dumps(value, 2)
    for n in range(len(data)):
        with pytest.raises(NeedMore) as e:
            read_pickle(data[:n])
        assert e.value.upto > n


N = 300_000
TEXT = b"X" + struct.pack("<I", N) + b"x" * N + b"q\0"
"""A long one, kept."""
MANY = b"K\1" * 60000
KEYS_OF_ONE_HASH = (b"\x8a\x0b" + (i * (2**61 - 1)).to_bytes(11, "little") + b"N" for i in range(1, 60000))
BITS = (b"J\xff\xff\xff\xff", b"J\xfe\xff\xff\xff")
"""-1 and -2, which have one hash."""
TUPLES_OF_ONE_HASH = (b"(" + b"".join(BITS[i >> k & 1] for k in range(15)) + b"tN" for i in range(30000))


def hidden(inner: bytes, times: int) -> bytes:
    """A pickle that hands the same bytes to torch.load again and again."""
    data = b"B" + struct.pack("<I", len(inner)) + inner
    return b"ctorch.storage\n_load_from_bytes\nq\1" + data + b"q\2N" + b"0h\1h\2\x85R" * times + b"\x87."


BOMBS = {
    "nested lists": P2 + b"]" * N + b"a" * (N - 1) + b".",
    "nested tuples": P2 + b")" + b"\x85" * N + b".",
    "nested tuple as a key": P2 + b"})" + b"\x85" * N + b"Ns.",
    "nested dicts": P2 + b"}" + b"K\1}" * N + b"s" * N + b".",
    "nested marks": P2 + b"(" * N + b"t" * N + b".",
    "marks without end": P2 + b"(" * N,
    "nested calls": P2 + b"cm\nn\n" + b")R" * N + b".",
    "doubling tuples": P2 + b"K\1" + b"2\x86" * 2000 + b".",
    "doubling tuple as a key": P2 + b"}K\1" + b"2\x86" * 2000 + b"Ns.",
    "doubling tuple in a set": b"\x80\4\x8f(K\1" + b"2\x86" * 2000 + b"\x90.",
    "doubling lists": P2 + b"]q\0" + b"0]h\0ah\0aq\0" * 2000 + b".",
    "doubling dicts": P2 + b"}q\0" + b"0}(U\1ah\0U\1bh\0uq\0" * 2000 + b".",
    "list in itself": P2 + b"]" + b"q\0h\0a" * 1000 + b".",
    "dict in itself": P2 + b"}q\0(h\0h\0h\0h\0u.",
    "state of itself": P2 + b"cm\nn\n)Rq\0h\0b.",
    "one value many times": P2 + b"(]" + b"2" * N + b"l.",
    "far memo": P2 + b"Nr\xff\xff\xff\xffj\xff\xff\xff\xff0.",
    "large long": P2 + b"\x8b" + struct.pack("<i", N) + b"\x7f" * N + b".",
    "colliding keys": P2 + b"}(" + b"".join(KEYS_OF_ONE_HASH) + b"u.",
    "colliding tuples": P2 + b"}(" + b"".join(TUPLES_OF_ONE_HASH) + b"u.",
    "copied dict": (
        P2 + b"}(" + b"".join(b"M" + struct.pack("<H", i) + b"N" for i in range(60000)) + b"uq\0"
        + b"0ccollections\nCounter\nh\0\x85R" * 3000 + b"."
    ),
    "copied set": P2 + b"](" + MANY + b"eq\0" + b"0cbuiltins\nset\nh\0\x85R" * 3000 + b".",
    "encoded again and again": P2 + TEXT + b"0X\6\0\0\0latin1q\1" + b"0c_codecs\nencode\nh\0h\1\x86R" * 5000 + b".",
    "long names": P2 + b"U\xff" + b"n" * 255 + b"q\0000" + b"}h\0" * 100_000 + b"N" + b"s" * 100_000 + b".",
    "getattr of a long name": P2 + TEXT + b"0cbuiltins\ngetattr\ncm\nn\nh\0\x86R" * 5000 + b".",
    "many objects": P2 + b"(" + b"\x8f" * 2_000_000 + b"t.",
    "newobj of a long tuple": P2 + b"(cm\nn\n" + MANY + b"tq\0ccopyreg\n__newobj__\nq\1" + b"0h\1h\0R" * 50000 + b"\x86.",
    "dict of a long tuple": P2 + b"(]" + MANY + b"tq\0ccollections\nOrderedDict\nq\1" + b"0h\1h\0R" * 50000 + b"\x86.",
    "encode with a long tuple": P2 + b"(" + MANY + b"tq\0c_codecs\nencode\nq\1" + b"0h\1h\0R" * 50000 + b"\x86.",
    "one hidden file many times": P2 + hidden(hidden(hidden(b"N0" * 1000 + b"N.", 300), 300), 300),
    "many names": P2 + b"".join(b"c%x\n%x\n0" % (i, i) for i in range(80_000)) + b"N.",
    "a name of many parts": P2 + b"c" + b"a." * N + b"\n" + b"b." * N + b"\n.",
    "a float of many digits": P2 + b"F" + b"1" * N + b"." + b"7" * N + b"\n.",
    "a long line": P2 + b"V" + b"\\u0041" * N + b"\nS'" + b"\\x41" * N + b"'\n\x86.",
    "memo entries far apart": P2 + b"N" + b"".join(b"r" + struct.pack("<I", i << 14) for i in range(200_000)) + b".",
    "memo by line": b"N" + b"".join(b"p%d\n" % (i << 40) for i in range(60_000)) + b".",
    "persistent of persistent": P2 + b"N" + b"Q" * N + b".",
    "persistent of a deep tuple": P2 + b")" + b"\x85" * N + b"Q.",
    "read-only buffers": b"\x80\5\x97" + b"\x98" * N + b".",
    "hidden in hidden": P2 + b"ctorch.storage\n_load_from_bytes\nB\0\0\0\0\x85R.",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.share(18)
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_harmless(name: str) -> None:
    with at_most(16_000_000):
        findings = look(BOMBS[name], PLAIN)
    assert all(len(f.message) < 2000 for f in findings)
    # each is a valid pickle, or at least the beginning of one
    assert not [f for f in findings if f.code == "bad-pickle" and f.severity is Severity.ERROR]


ONE_STORAGE = b"(U\7storagectorch\nByteStorage\nU\0010U\3cpuK\1tQq\1ctorch._utils\n_rebuild_tensor_v2\n"
OF_ONE_SHAPE = b"tq\0" + ONE_STORAGE + b"q\2" + b"0h\2(h\1K\0h\0h\0tR" * 50000 + b"\x87."
TENSOR_BOMBS = {
    "shapes of many dimensions": P2 + b"(" + b"K\1" * 1024 + OF_ONE_SHAPE,
    "shapes of many dimensions that fit": P2 + b"(" + b"K\1" * 64 + OF_ONE_SHAPE,
    "one tensor many times": (
        P2 + b"]" + ONE_STORAGE + b"(h\1K\0K\1\x85K\1\x85tRq\2" + b"00(" + b"h\2" * N + b"e."
    ),
}


def in_archive(data: bytes, **storages: bytes) -> bytes:
    """A zip as torch.load takes it, with ``data`` as its pickle."""
    of = {f"f/data/{name}": content for name, content in storages.items()}
    return zipped({"f/data.pkl": data, "f/version": b"3\n", **of})


@pytest.mark.share(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", TENSOR_BOMBS)
def test_bombs_of_tensors_are_harmless(name: str) -> None:
    anatomy = Anatomy()
    with at_most(12_000_000):
        found = look(in_archive(TENSOR_BOMBS[name], **{"0": b"x"}), BY_NAME["torch_zip"], anatomy)
    assert len(found) < 100
    # torch has no 1024 dimensions
    assert codes(found) == ({"bad-pickle"} if name == "shapes of many dimensions" else set())
    assert len(anatomy.tensors) == {"one tensor many times": N}.get(name, len(anatomy.tensors))


@pytest.mark.slow
def test_memory_is_bounded_by_the_stream() -> None:
    data = BOMBS["encoded again and again"]
    with memory_below(20 * len(data)):
        read_pickle(data)


ARGUMENTS = [
    b"", b"\0", b"\1", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff" * 8, b"\x08" + b"\0" * 7,
    b"1\n", b"-1\n", b"x\ny\n", b"os\nsystem\n",
]  # fmt: skip
FEW = [
    b"N", b"K\1", b"(", b"]", b"}", b")", b"U\1a", b"cm\nn\n", b"\x8c\2os", b"\x8c\6system", b"h\0", b"q\0", b"0", b"2",
    b"\x95\4\0\0\0\0\0\0\0",
]  # fmt: skip
STREAMS = st.lists(
    st.sampled_from(FEW)
    | st.tuples(st.integers(0, 255), st.sampled_from(ARGUMENTS)).map(lambda t: bytes([t[0]]) + t[1]),
    max_size=40,
)


@pytest.mark.slow
@examples(600)
@given(STREAMS, st.sampled_from([b"", P2, b"\x80\4", b"\x80\5"]), st.sampled_from([b"", b"."]))
def test_no_sequence_of_opcodes_gives_anything_but_findings(
    ops: list[bytes], start: bytes, stop: bytes
) -> None:
    """All 256 opcodes with odd arguments, among enough ordinary ones that the stack is seldom empty."""
    data = start + b"".join(ops) + stop
    for fmt in (PLAIN, BY_NAME["torch_legacy"]):
        for f in look(data, fmt):
            assert len(f.message) < 2000
            assert f.offset is None or 0 <= f.offset <= len(data)


def test_every_opcode_of_python_is_known() -> None:
    """With nothing before and after it, an opcode is cut off, lacks its values or is read: never unknown."""
    for opcode in pickletools.opcodes:
        found = look(opcode.code.encode("latin-1"), PLAIN)
        assert not any("there is no opcode" in f.message for f in found), opcode.name


@pytest.mark.parametrize(
    "data",
    [  # LONG4 of 2 GiB and of -1 bytes, LONG1, BINUNICODE8 of 2**64 - 1, BINBYTES8, BYTEARRAY8, BINSTRING; frames
        *(P2 + lie + b"\1" * 100 for lie in (b"\x8b\xff\xff\xff\x7f", b"\x8b\xff\xff\xff\xff", b"\x8a\xff")),
        b"\x80\4\x8d" + b"\xff" * 8 + b"a" * 100, b"\x80\4\x8e" + struct.pack("<Q", 1 << 40) + b"a" * 100,
        b"\x80\5\x96" + struct.pack("<Q", 1 << 62) + b"a" * 100, P2 + b"T\xff\xff\xff\x7f" + b"a" * 100,
        b"\x80\4\x95" + struct.pack("<Q", 1 << 29) + b"N.", b"\x80\4\x95\1\0\0\0\0\0\0\0N\x95\x05\0\0\0\0\0\0\0.",
        b"\x80\4\x95\x20\0\0\0\0\0\0\0\x95\1\0\0\0\0\0\0\0N.",
    ],
)  # fmt: skip
def test_lies_about_lengths(data: bytes) -> None:
    with memory_below(1 << 20):
        found = look(data, PLAIN)
    assert set() < codes(found) <= {"truncated", "bad-pickle"}


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\4\x8c\2os\x8c\6system\x93\x8c\4echo\x85R.",
        b"\x80\4\x8c\2os\x94\x8c\6system\x94\x93.",  # through the memo
        b"\x80\4\x8c\6system\x94\x8c\2os\x94h\1h\0\x93.",
        b"\x80\4\x8c\5torch\x8c\x09os.system\x93.",
        b"\x80\4\x8c\2os\x8c\x08builtins\x8c\3str\x93\x8c\6system\x85R\x93.",  # a name that a call gives
        P2 + b"ccopyreg\nadd_extension\n(U\2osU\6systemK\7tR0\x82\7U\4echo\x85R.",  # the extension registry
        # an attribute that a call names
        P2 + b"cbuiltins\ngetattr\nctorch\nserialization\ncbuiltins\nstr\nU\2os\x85R\x86R.",
        b"(S'echo'\nios\nsystem\n.",  # protocol 0: INST
        b"cos\nsystem\n(S'echo'\ntR.",
        P2 + b"(cos\nsystem\nU\4echoo.",  # OBJ
        P2 + b"cos\nsystem\nQ.",  # as a persistent id
        P2 + b"}(cos\nsystem\nNu.",  # as a key
        P2 + b"cos\nsystem\n0N.",  # thrown away
        b"\x80\4cos\nsystem\n)}\x92.",  # NEWOBJ_EX
        P2 + b"cm\nn\n)\x81cos\nsystem\nb.",  # as a state
    ],
)
def test_ways_to_name_what_runs(data: bytes) -> None:
    assert "unsafe-pickle" in {f.code for f in look(data, PLAIN)}


@pytest.mark.parametrize("named", [b"\x82\1", b"\x83\1\1", b"\x84\1\1\1\1"])
def test_extensions_are_in_no_list(named: bytes) -> None:
    for how, code in ((b".", "needs-trust"), (b")R.", "suspect-call")):
        assert {f.code for f in look(P2 + named + how, PLAIN)} == {"not-checksummed", code}


PIDS = {
    "none": b"N", "number": b"K\1", "text": b"U\3abc", "empty tuple": b")", "list": b"]", "itself": b"NQ", "short": b"(U\7storageNt",
    "other word": b"(U\7strangectorch\nFloatStorage\nU\0010U\3cpuK\1t",
    "class as text": b"(U\7storageU\x0cFloatStorageU\0010U\3cpuK\1t",
    "key as a number": b"(U\7storagectorch\nFloatStorage\nK\0U\3cpuK\1t",
    "key as a list": b"(U\7storagectorch\nFloatStorage\n]U\3cpuK\1t",
    "negative": b"(U\7storagectorch\nFloatStorage\nU\0010U\3cpuJ\xff\xff\xff\xfft",
    "huge": b"(U\7storagectorch\nFloatStorage\nU\0010U\3cpu\x8a\xff" + b"\x7f" * 255 + b"t",
    "true": b"(U\7storagectorch\nFloatStorage\nU\0010U\3cpu\x88t",
}  # fmt: skip


@pytest.mark.parametrize("name", PIDS)
def test_odd_persistent_ids(name: str) -> None:
    pid = PIDS[name] + b"Q"
    data = P2 + b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + b"K\0K\1\x85K\1\x85\x89NtR."
    anatomy = Anatomy()
    found = look(in_archive(data), BY_NAME["torch_zip"], anatomy)
    assert "bad-pickle" in {f.code for f in found}
    assert anatomy.tensors == []
    look(data, PLAIN)


def test_unhashable_keys() -> None:
    got = read_pickle(P2 + b"}(]N}N(K\1K\2tN(]tNu.").value
    assert [isinstance(k, Key) for k in got] == [True] * 4


class Evil:
    def __init__(self, func: Any, *args: Any) -> None:
        self.call = (func, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_runs(protocol: int, tmp_path: Any) -> None:
    mark = tmp_path / "ran"
    data = pickle.dumps([Evil(os.system, f"touch {mark}"), Evil(exec, f"open({str(mark)!r}, 'w')")], protocol)
    assert {f.code for f in bad(look(data, PLAIN))} == {"unsafe-pickle"}
    assert not mark.exists()


def test_nothing_is_imported() -> None:
    before = set(sys.modules)
    look(P2 + b"cantigravity\nfly\n)R.", PLAIN)
    look(b"\x80\4\x8c\x04this\x8c\x01s\x93.", PLAIN)
    assert set(sys.modules) == before


def test_calls_before_damage_are_seen() -> None:
    for tail in (b"\xff", b"", b"h\7."):
        assert "unsafe-pickle" in {f.code for f in look(P2 + b"cposix\nsystem\nU\2id\x85R" + tail, PLAIN)}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("importlib", "import_module"), ("code", "interact"), ("torch.hub", "load"), ("torch", "load"), ("torch", "os.system"),
        ("torch.serialization", "os"), ("asyncio.subprocess", "x"), ("multiprocessing", "Process"), ("builtins", "getattr.__globals__"),
        ("torch.utils.cpp_extension", "load"), ("a", "b.__subclasses__"),
    ],
)  # fmt: skip
def test_dangerous_names(module: str, name: str) -> None:
    """Those that lists of others do not have (test_pickle_lists.py)."""
    assert find_verdict(Global(module, name)) == "dangerous"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "getattr"), ("argparse", "Namespace"), ("numpy._core.multiarray", "scalar"), ("numpy", "dtype"),
        ("collections", "deque"), ("collections", "defaultdict"), ("pathlib", "PosixPath"), ("functools", "partial"), ("__main__", "Net"),
        ("copyreg", "_reconstructor"), ("test", "Net"), ("trace", "Net"), ("torch.storage", "_load_from_bytes"),
        ("torch.distributed.checkpoint.metadata", "Metadata"), ("builtins", "slice"), ("transformers.training_args", "TrainingArguments"),
        ("megatron.core.enums", "ModelType"),
    ],
)  # fmt: skip
def test_names_that_need_trust(module: str, name: str) -> None:
    assert find_verdict(Global(module, name)) == "needs-trust"


@pytest.mark.torch
def test_allowed_names_are_torch_s() -> None:
    unpickler = pytest.importorskip("torch._weights_only_unpickler")
    if sys.modules["torch"].__version__.startswith("2.13."):
        assert set(unpickler._get_allowed_globals()) == ALLOWED
    assert find_verdict(Global("__builtin__", "set")) == "allowed"
    assert len(ALLOWED) == 144


def test_getattr_is_followed() -> None:
    for of, name, found in (
        ("torch\nserialization", "os", {"unsafe-pickle"}),
        ("mine\nColour", "RED", set()),
    ):
        data = (
            P2
            + f"cbuiltins\ngetattr\nc{of}\nX".encode()
            + struct.pack("<I", len(name))
            + name.encode()
            + b"\x86R."
        )
        assert codes(look(data, PLAIN)) == found


@pytest.mark.parametrize("protocol", range(6))
def test_what_pickle_refuses_to_look_up_is_told(protocol: int) -> None:
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> str | None:
            return "elsewhere" if obj is Ellipsis else None

    Pickler(made := io.BytesIO(), protocol).dump({"step": 3, "a": ...})
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(made.getvalue())
    found = [f for f in look(made.getvalue(), PLAIN) if f.code == "bad-pickle"]
    assert [f.severity for f in found] == [Severity.WARNING]


OUT_OF_NOTHING = [
    (b"cbuiltins\nbytearray\n", b""), (b"c__builtin__\nbytes\n", b""), (b"cbuiltins\nlist\n(cbuiltins\nrange\n", b"tR"),
    (b"ccollections\ndeque\n(cbuiltins\nrange\n", b"tR"),
]  # fmt: skip


@pytest.mark.parametrize("n", [3, 1 << 20, 1 << 70])
@pytest.mark.parametrize(("begin", "end"), OUT_OF_NOTHING)
def test_what_is_made_of_nothing_is_told(begin: bytes, end: bytes, n: int) -> None:
    """A few bytes that fill all memory when they are loaded; nobody pickles so."""
    data = P2 + begin + pickle.dumps((n,), 2)[2:-1] + b"R" + end + b"."
    found = [f for f in look(data, PLAIN) if f.code == "bad-pickle"]
    assert [f.severity for f in found] == ([] if n == 3 else [Severity.WARNING])
    assert n > 3 or len(pickle.loads(data)) == 3
