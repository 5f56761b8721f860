"""A pickle that was not read to its end is unknown, never sound: padding hides no call, wherever a framework
reads pickles.
"""

from __future__ import annotations

import os
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


@pytest.mark.parametrize("at", range(1, 5))
def test_each_pickle_of_the_old_format_is_read_to_its_end(at: int, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(P.legacy(PADDING["empty opcodes"], at))
    assert seen(path)[0] is Verdict.UNKNOWN
    path.write_bytes(P.legacy(P2 + BAD, at))
    assert "unsafe-pickle" in seen(path)[1]


@pytest.mark.parametrize("member", ["sys_info", "pickle", "storages", "tensors"])
def test_each_member_of_the_tar_is_read_to_its_end(member: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(P.tar(**{member: PADDING["empty opcodes"]}))
    assert seen(path)[0] is Verdict.UNKNOWN


def test_a_tar_that_looks_like_a_pickle_is_neither(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(P.two_faced(P.tar(storages=P2 + BAD)))
    pickle.loads(path.read_bytes())  # harmless as a pickle, and torch.load does not read it as one
    assert "unsafe-pickle" in seen(path)[1]


def test_what_is_hidden_in_bytes_is_read_to_its_end(tmp_path: Path) -> None:
    path, inner = tmp_path / "x.pkl", P2 + BAD
    path.write_bytes(P.hidden(P.legacy(PADDING["empty opcodes"])))
    assert seen(path)[0] is Verdict.UNKNOWN
    for _ in range(5):
        inner = P.hidden(P.legacy(inner))
    path.write_bytes(inner)
    assert seen(path)[0] is Verdict.UNKNOWN
    path.write_bytes(P.hidden(P.legacy(P.hidden(P.legacy(P2 + BAD)))))
    assert "unsafe-pickle" in seen(path)[1]


@pytest.mark.parametrize("inner", [b"PK\3\4", b"", b"N."], ids=["zip", "nothing", "another pickle"])
def test_bytes_for_torch_that_are_not_its_old_format_are_unsafe(inner: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(P.hidden(inner))
    assert "unsafe-pickle" in seen(path)[1]


def test_a_memo_entry_of_many_digits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(P2 + b"Np" + b"0" * 21 + b"\n.")
    assert seen(path)[0] is Verdict.BROKEN


@pytest.mark.slow
def test_the_index_of_dcp(tmp_path: Path) -> None:
    home = tmp_path / "step-1"
    P.dcp(home, lambda path: P.index_with(path, list(range(OPS))))
    assert execute(["verify", str(tmp_path), "--level", "structure", "-q"]) == 5
    assert execute(["plan", str(tmp_path), "--level", "structure", "-q"]) == 5


@pytest.mark.parametrize("make", [P.archive, P.legacy, bytes], ids=["archive", "old format", "plain"])
def test_an_object_of_dcp(make: Callable[[bytes], bytes], tmp_path: Path) -> None:
    P.dcp(tmp_path / "step-1", lambda _: make(PADDING["empty opcodes"]), metadata=False)
    assert seen(tmp_path / "step-1")[0] is Verdict.UNKNOWN
    P.dcp(tmp_path / "step-2", lambda _: make(P2 + BAD), metadata=False)
    assert "unsafe-pickle" in seen(tmp_path / "step-2")[1]


@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CONTENT])
def test_a_file_that_was_not_read_to_its_end_is_never_planned(level: Level, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    for path in root.glob("iter_0000020/*/*.pt"):
        before = path.stat()
        path.write_bytes(P.archive(PADDING["empty opcodes"]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CannotLook, match="not read"):
        plan(str(root), Selection(level=level))
    made = plan(str(root), Selection(level=level, skip_unreadable=True))
    assert made.resume_step == 10


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("top", "name"), [("model/", "data/model.pkl"), ("", "arrays.pickle"), ("model/", "data/weights.pt")]
)
def test_pickles_in_other_archives(top: str, name: str, method: int, tmp_path: Path) -> None:
    """Packages, exported programs, and zips of other programs hold pickles that their own loaders read."""
    for inner, code in (
        (P2 + BAD, "unsafe-pickle"),
        (PADDING["empty opcodes"], "unread-pickle"),
        (P.archive(P2 + BAD), "unsafe-pickle"),
    ):
        if name.endswith(".pt") == inner.startswith(b"PK"):
            path = tmp_path / "x.zip"
            members = {"archive_format": b"pt2", "version": b"3\n", name: inner}
            path.write_bytes(zipped({top + n: data for n, data in members.items()}, method))
            verdict, codes = seen(path)
            assert code in codes and verdict in (Verdict.BROKEN, Verdict.UNKNOWN)
