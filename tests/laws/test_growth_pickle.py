"""Pickles cost what their bytes cost: the operations grow as the stream does whatever its keys, and memory
has an end.
"""

from __future__ import annotations

import io
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counted import calls

from ckpt_tools.formats import BY_NAME
from ckpt_tools.formats.common.format import Anatomy, Damage, structure
from ckpt_tools.formats.pickles import machine, reader
from ckpt_tools.formats.pickles.machine import MAX_OPS
from ckpt_tools.formats.pickles.reader import read_from, read_pickle
from ckpt_tools.formats.pickles.stubs import Long, Number
from ckpt_tools.formats.torch.tensors import text
from ckpt_tools.storage import BytesSource, LocalSource, opened

P2 = b"\x80\x02"
P4 = b"\x80\x04"
PRIME = (1 << 61) - 1
"""What a number is taken modulo when Python hashes it (sys.hash_info): multiples of it all hash alike."""


def long1(n: int) -> bytes:
    raw = n.to_bytes((n.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def real(value: float) -> bytes:
    return b"G" + struct.pack(">d", value)


ALIKE: dict[str, Callable[[int], list[bytes]]] = {
    "ints": lambda n: [long1(7 + k * PRIME) for k in range(1, min(n, 4) + 1)] * (n // 4),
    "floats": lambda n: [real((k + 0.5) * 2.0 ** (61 * e)) for e in range(16) for k in range(n // 16)],
    "a walk": lambda n: [b"J" + (k << 12).to_bytes(4, "little") for k in range(1, min(n, 1 << 19))],
}
"""Keys whose hashes, or whose places in a dict, Python makes alike."""
INTO: dict[str, Callable[[list[bytes]], bytes]] = {
    "setitems": lambda keys: P2 + b"}(" + b"".join(k + b"N" for k in keys) + b"u.",
    "setitem": lambda keys: P2 + b"}" + b"".join(k + b"Ns" for k in keys) + b".",
    "dict": lambda keys: P2 + b"(" + b"".join(k + b"N" for k in keys) + b"d.",
    "additems": lambda keys: P4 + b"\x8f(" + b"".join(keys) + b"\x90.",
    "frozenset": lambda keys: P4 + b"(" + b"".join(keys) + b"\x91.",
    "set": lambda keys: P2 + b"c__builtin__\nset\n](" + b"".join(keys) + b"e\x85R.",
    "counter": lambda keys: P2 + b"ccollections\nCounter\n}(" + b"".join(k + b"N" for k in keys) + b"u\x85R.",
    "entries": lambda keys: P2 + b"cm\nC\n)R(" + b"".join(k + b"N" for k in keys) + b"u.",
}


@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("alike", ALIKE)
def test_keys_that_python_takes_for_alike(alike: str, into: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No number of a stream is a key by its own hash, which anybody can foresee, and few are compared with
    others.
    """
    compared = 0
    equal = Number.__eq__

    def counting(self: Number, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(self, other)

    monkeypatch.setattr(Number, "__eq__", counting)
    keys = ALIKE[alike](2000)
    value: Any = read_pickle(INTO[into](keys)).value
    value = getattr(value, "entries", None) or value
    assert len(value) == len(set(keys))
    assert not [k for k in value if isinstance(k, (int, float)) and not 0 <= k < 4096]
    assert len({hash(k) for k in value}) == len(value)
    assert compared <= len(keys)


def test_numbers_are_still_equal_as_numbers_are() -> None:
    got = read_pickle(
        P2 + b"}(" + real(5000.0) + b"NJ\x88\x13\0\0NK\1N" + real(1.0) + b"N" + long1(1 << 63) + b"Nu."
    ).value
    assert len(got) == 3
    assert sorted(map(text, got), key=len) == ["1", "5000", str(1 << 63)]


def test_the_memo_is_no_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries in order cost a list's place each; those that a stream numbers as it likes are keyed by what it
    cannot foresee.
    """
    made: list[machine.Machine] = []
    forget = machine.Machine.stop
    monkeypatch.setattr(machine.Machine, "stop", lambda self, op: made.append(self) or forget(self, op))
    puts = b"".join(b"r" + (k * 4096 % (1 << 32)).to_bytes(4, "little") for k in range(3000))
    lines = b"".join(b"p%d\n" % (k * PRIME) for k in range(40)) + b"p-1\n"
    got = read_pickle(P2 + b"K\7" + puts + lines + b"0j\0\x20\0\0g%d\n\x86." % PRIME).value
    assert got == (7, 7)
    assert type(made[0].memo) is list and len(made[0].memo) < 100_000
    assert all(type(k) is str and not k.isdigit() for k in made[0].far)


# -- growth --------------------------------------------------------------------------------------------------


STORMS: dict[str, Callable[[int], bytes]] = {
    "puts": lambda n: P2 + b"N" + b"".join(b"r" + (k * 3).to_bytes(4, "little") for k in range(n)) + b".",
    "puts backwards": lambda n: P2 + b"N" + b"".join(b"r" + k.to_bytes(4, "little") for k in range(n, 0, -1)) + b".",
    "memoizes": lambda n: P4 + b"N" + b"\x94" * n + b".",
    "lines": lambda n: P2 + b"N" + b"".join(b"p%d\n" % (k * PRIME) for k in range(n)) + b".",
    "marks": lambda n: P2 + b"(" * n + b"0" * n + b"N.", "deep lists": lambda n: P2 + b"]" * n + b"a" * (n - 1) + b".",
    "deep tuples": lambda n: P2 + b"N" + b"\x85" * n + b".", "deep dicts": lambda n: P2 + b"}K\1" * n + b"N" + b"s" * n + b".",
    "one tuple": lambda n: P2 + b"](" + b"".join(long1(PRIME * 3) for _ in range(n)) + b"e.",
    "globals": lambda n: P2 + b"".join(b"cm\nn%d\n0" % k for k in range(n)) + b"N.",
    "calls": lambda n: P2 + b"cm\nn\nq\0(" + b"h\0)R" * n + b"t\x86.",
    "keys twice": lambda n: P2 + b"}(" + b"X\1\0\0\0aN" * n + b"u.",
}  # fmt: skip


@pytest.mark.parametrize("name", STORMS)
def test_work_grows_as_the_stream_does(name: str) -> None:
    def reading(n: int) -> int:
        data = in_archive(STORMS[name](n))
        return calls(lambda: found(data))

    small, large = reading(500), reading(2000)
    assert large < 6 * small, (small, large)


def in_archive(data: bytes, *more: tuple[str, bytes, int]) -> bytes:
    with io.BytesIO() as out:
        with zipfile.ZipFile(out, "w") as z:
            for name, content, method in [("data.pkl", data, 0), ("version", b"3\n", 0), *more]:
                z.writestr(zipfile.ZipInfo("f/" + name), content, compress_type=method)
        return out.getvalue()


# -- memory --------------------------------------------------------------------------------------------------

HEAVY: dict[str, bytes] = {
    "dicts": b"}", "lists": b"]", "marks": b"(", "sets": b"\x8f", "tuples": b"\x85", "ints": b"M\xff\xff", "texts": b"X\x64\0\0\0" + b"a" * 100,
    "wide texts": b"X\x64\0\0\0" + b"a" * 96 + "\U0001f600".encode(), "globals": b"cm\nn\n", "persistent": b"Px\n", "longs": b"\x8a\xff" + b"\1" * 255,
    "frozen": b"(\x91", "memo": b"\x94", "bytes": b"C\4abcd", "floats": b"G" + b"\1" * 8,
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("name", HEAVY)
def test_what_a_stream_may_make_has_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the bounds takes a hundredth of 200 MiB; so the bounds themselves take that."""
    monkeypatch.setattr(machine, "MAX_MADE", machine.MAX_MADE // 100)
    monkeypatch.setattr(machine, "MAX_OPS", MAX_OPS // 100)
    data = P4 + b"N" + HEAVY[name] * 100_000
    tracemalloc.start()
    with pytest.raises(Damage) as caught:
        read_pickle(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "the rest was not read" in str(caught.value) or name == "marks"
    assert peak < 4 << 20 or (name == "marks" and peak < 20 << 20)


def test_long_bytes_are_passed_over(tmp_path: Path) -> None:
    """A gibibyte in one value, in a sparse file: neither read nor kept, and what comes after it is judged."""
    path = tmp_path / "x.pkl"
    n = 1 << 30
    with path.open("wb") as f:
        f.write(P4 + b"\x8e" + n.to_bytes(8, "little"))
        f.truncate(11 + n)
        f.seek(11 + n)
        f.write(b"cos\nsystem\n\x86.")
    seen: dict[Any, int] = {}
    source: LocalSource = opened(str(path))
    tracemalloc.start()
    got = read_from(source, 0, source.size, source.read(0, 65536), seen, called={})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert type(got.value[0]) is Long and got.end == source.size and seen == {("os", "system"): 11 + n}
    assert source.bytes_read < 1 << 20 and peak < 1 << 20


@pytest.mark.parametrize("first", [16, 100, 65536])
def test_a_window_reads_what_the_whole_reads(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW", 64)
    row = lambda k: (k * 1.5, [k] * 40, "t" * k, b"b" * (k * 7), {k, k + 5000}, 3**k)  # noqa: E731
    value = {f"layer.{k}": row(k) for k in range(60)}
    for protocol in range(6):
        data = b"junk" + pickle.dumps(value, protocol) + b"more"
        here, there = dict[Any, int](), dict[Any, int]()
        whole = read_pickle(data, 4, seen=here)
        parts = read_from(BytesSource(data), 4, len(data), data[4 : 4 + first], there, called={})
        assert parts.end + 4 == whole.end == len(data) - 4 and here == there
        assert repr(plain(parts.value)) == repr(plain(whole.value))
        with pytest.raises(Damage):
            read_from(
                BytesSource(data), 4, len(data) - 5, data[4 : min(4 + first, len(data) - 5)], {}, called={}
            )


def plain(value: Any) -> Any:
    """Without stubs, so that equal values look equal."""
    if isinstance(value, dict):
        return {text(k): plain(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(text, value))
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


# -- what is said of storages and keys -----------------------------------------------------------------------

TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\n%s\nX\1\0\0\0%dX\3\0\0\0cpuK\4tQK\0K\4\x85K\1\x85\x89NtR"


def found(data: bytes) -> list[str]:
    check = next(iter(BY_NAME["torch_zip"].checks.values()))
    return sorted(f.code for f in structure(BytesSource(data), Anatomy(), check))


def state(*tensors: tuple[bytes, bytes, int]) -> bytes:
    return (
        P2 + b"}(" + b"".join(b"X\1\0\0\0" + key + TENSOR % (kind, at) for key, kind, at in tensors) + b"u."
    )


PAYLOAD = b"0123456789abcdef"


FLOATS, INTS = b"FloatStorage", b"IntStorage"
STORED = [(f"data/{i}", PAYLOAD, 0) for i in range(2)]


@pytest.mark.parametrize(
    ("code", "sound", "wrong"),
    [
        ("compressed-storage", (state((b"a", FLOATS, 0)), STORED), (state((b"a", FLOATS, 0)), [("data/0", PAYLOAD, 8)])),
        ("duplicate-key", (state((b"b", FLOATS, 0), (b"a", FLOATS, 1)), STORED), (state((b"a", FLOATS, 0), (b"a", FLOATS, 1)), STORED)),
        ("storage-dtypes", (state((b"a", FLOATS, 0), (b"b", FLOATS, 0)), STORED), (state((b"a", FLOATS, 0), (b"b", INTS, 0)), STORED)),
    ],
)  # fmt: skip
def test_what_no_framework_writes_is_said(
    code: str, sound: tuple[bytes, Any], wrong: tuple[bytes, Any]
) -> None:
    assert code not in found(in_archive(sound[0], *sound[1]))
    assert code in found(in_archive(wrong[0], *wrong[1]))
