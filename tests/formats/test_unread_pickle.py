"""A pickle that was not read to its end is unknown, never sound: padding hides no call, wherever a framework
reads pickles.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import zipped
from places import BENCHMARKS
from run_helpers import megatron
from scripts import loaded
from timed import same_times

from ckpt_tools import Level, Selection, plan, verify
from ckpt_tools.cli import execute
from ckpt_tools.errors import CannotLook
from ckpt_tools.formats.pickles import machine
from ckpt_tools.model.finding import Verdict

P = loaded(BENCHMARKS / "_payloads.py")
BAD = b"cos\nmkdir\n(X\1\0\0\0xtR."
OPS, LONG = 2000, 100_000
P2 = b"\x80\2"
PADDING = {
    "empty opcodes": P2 + b"N0" * OPS + BAD,
    "a storm of memo entries": P2 + b"Nq\0" + b"q\0" * OPS + b"0" + BAD,
    "a long memo": P2 + b"N" + b"\x94" * OPS + b"0" + BAD,
    "a long string": P2 + b"X" + struct.pack("<I", LONG) + b"x" * LONG + b"0" + BAD,
    "long bytes of 64 bits": b"\x80\4\x8e" + struct.pack("<Q", LONG) + b"x" * LONG + b"0" + BAD,
    "a long line": b"V" + b"x" * LONG + b"\n0" + BAD,
    "a large frame": b"\x80\4\x95" + struct.pack("<Q", 2 * OPS + len(BAD)) + b"N0" * OPS + BAD,
    "copied values": P2 + b"](" + b"K\1" * (OPS // 2) + b"eq\0" + b"0cbuiltins\nset\nh\0\x85R" * 4 + b"0" + BAD,
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds, a thousand times smaller."""
    monkeypatch.setattr(machine, "MAX_OPS", OPS)
    monkeypatch.setattr(machine, "MAX_MADE", OPS)


def seen(path: Path, level: Level = Level.STRUCTURE) -> tuple[Verdict, set[str]]:
    result = verify(str(path), level)
    return result.verdict, {f.code for r in result.files for f in r.report.findings}


@pytest.mark.slow
@pytest.mark.parametrize("name", PADDING)
@pytest.mark.parametrize("wrap", [bytes, P.archive], ids=["plain", "archive"])
def test_padding_hides_no_call(name: str, wrap: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = PADDING[name]
    path = tmp_path / ("x.pkl" if wrap is bytes else "x.pt")
    path.write_bytes(wrap(data))
    if path.suffix == ".pkl" and data[:1] != b"\x80":
        path.write_bytes(P2 + data)
    verdict, codes = seen(path)
    assert (verdict, "unread-pickle" in codes) == (Verdict.UNKNOWN, True)
    assert execute(["verify", str(path), "--level", "structure", "-q"]) == 5


def nested(inner: bytes, times: int) -> bytes:
    """Files of the old format in bytes that a pickle has torch load."""
    return nested(P.hidden(P.legacy(inner)), times - 1) if times else inner


LONG_ONE, UNKNOWN = PADDING["empty opcodes"], Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("name", "data", "found"),
    [
        *(("x.pt", P.legacy(data, at), found) for at in range(1, 5) for data, found in ((LONG_ONE, UNKNOWN), (P2 + BAD, "unsafe-pickle"))),
        *(("x.pt", P.tar(**{member: LONG_ONE}), UNKNOWN) for member in ("sys_info", "pickle", "storages", "tensors")),
        ("x.pkl", nested(LONG_ONE, 1), UNKNOWN), ("x.pkl", nested(P2 + BAD, 6), UNKNOWN), ("x.pkl", nested(P2 + BAD, 2), "unsafe-pickle"),
        *(("x.pkl", P.hidden(inner), "unsafe-pickle") for inner in (b"PK\3\4", b"", b"N.")),  # no file of the old format
        ("x.pkl", P2 + b"Np" + b"0" * 21 + b"\n.", Verdict.BROKEN),  # a memo entry of many digits
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value),
)  # fmt: skip
def test_each_pickle_is_read_to_its_end(name: str, data: bytes, found: object, tmp_path: Path) -> None:
    """Those of torch's old format and of its tar, and those that are hidden in bytes."""
    path = tmp_path / name
    path.write_bytes(data)
    verdict, codes = seen(path)
    assert found is verdict or found in codes


def test_a_tar_that_looks_like_a_pickle_is_neither(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(P.two_faced(P.tar(storages=P2 + BAD)))
    pickle.loads(path.read_bytes())  # harmless as a pickle, and torch.load does not read it as one
    assert "unsafe-pickle" in seen(path)[1]


@pytest.mark.slow
def test_the_index_of_dcp(tmp_path: Path) -> None:
    home = tmp_path / "step-1"
    P.dcp(home, lambda path: P.index_with(path, list(range(OPS))))
    assert execute(["verify", str(tmp_path), "--level", "structure", "-q"]) == 5
    assert execute(["plan", str(tmp_path), "--level", "structure", "-q"]) == 5


@pytest.mark.parametrize("make", [P.archive, P.legacy, bytes], ids=["archive", "old format", "plain"])
def test_an_object_of_dcp(make: Callable[[bytes], bytes], tmp_path: Path) -> None:
    P.dcp(tmp_path / "step-1", lambda _: make(LONG_ONE), metadata=False)
    assert seen(tmp_path / "step-1")[0] is Verdict.UNKNOWN
    P.dcp(tmp_path / "step-2", lambda _: make(P2 + BAD), metadata=False)
    assert "unsafe-pickle" in seen(tmp_path / "step-2")[1]


@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CONTENT])
def test_a_file_that_was_not_read_to_its_end_is_never_planned(level: Level, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    for path in root.glob("iter_0000020/*/*.pt"):
        with same_times(path):
            path.write_bytes(P.archive(LONG_ONE))
    with pytest.raises(CannotLook, match="not read"):
        plan(str(root), Selection(level=level))
    assert plan(str(root), Selection(level=level, skip_unreadable=True)).resume_step == 10


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("top", "name"), [("model/", "data/model.pkl"), ("", "arrays.pickle"), ("model/", "data/weights.pt")]
)
def test_pickles_in_other_archives(top: str, name: str, method: int, tmp_path: Path) -> None:
    """Packages, exported programs, and zips of other programs hold pickles that their own loaders read."""
    path, pickles = tmp_path / "x.zip", ((P2 + BAD, "unsafe-pickle"), (LONG_ONE, "unread-pickle"))
    for inner, code in [(P.archive(P2 + BAD), "unsafe-pickle")] if name.endswith(".pt") else pickles:
        members = {"archive_format": b"pt2", "version": b"3\n", name: inner}
        path.write_bytes(zipped({top + n: data for n, data in members.items()}, method))
        verdict, codes = seen(path)
        assert code in codes and verdict in (Verdict.BROKEN, Verdict.UNKNOWN)
