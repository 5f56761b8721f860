"""Every way of reading sees the same, and a file that is cut or changed while it is read is said to be so,
whatever happens to who reads it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_helpers import flip

from ckpt_tools.api import verify
from ckpt_tools.checksum import Extent, Sum, mismatches
from ckpt_tools.inspection.check import inspect
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level, Report
from ckpt_tools.settings import parsers
from ckpt_tools.storage import ShortRead, opened, stalls
from ckpt_tools.storage.local import BUFFER, DirectSource
from ckpt_tools.storage.stalls import Rate

MIB = 1 << 20
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # tens of megabytes, written by torch, in each
linux = pytest.mark.skipif(sys.platform != "linux", reason="direct reading needs Linux")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Two records of 24 MiB, so that each is split into ranges, and one that is too small for a helper."""
    generator = torch.Generator().manual_seed(1)
    state = {name: torch.randn(6 * MIB, generator=generator) for name in ("one", "two")}
    torch.save({**state, "small": torch.ones(100)}, tmp_path / "model.pt")
    return str(tmp_path / "model.pt")


def codes(report: Report) -> list[str]:
    return [f.code for f in report.findings]


@linux
@pytest.mark.parametrize("io", ["auto", "direct"])
def test_all_ways_see_the_same(path: str, io: str) -> None:
    good, base = inspect(path, Level.CONTENT, io=io)[0], inspect(path, Level.CONTENT)[0]
    assert good == base and good.verdict is Verdict.OK
    flip(Path(path), 30 * MIB, 4)
    bad = inspect(path, Level.CONTENT, io=io)[0]
    assert codes(bad) == ["crc-mismatch"]
    # the same numbers, although ranges came back in another order
    assert bad == inspect(path, Level.CONTENT)[0]


class Once:
    """Does something as soon as the first bytes have been read."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.left = [do]

    def __call__(self, _: int) -> None:
        if self.left:
            self.left.pop()()


@pytest.mark.share(4)
@linux
@pytest.mark.parametrize("io", ["auto", "direct"])
@pytest.mark.parametrize("to", [0, 20 * MIB + 5])
def test_a_file_that_is_cut_while_it_is_read(path: str, io: str, to: int) -> None:
    """By another process, as soon as the first bytes have been read: nothing crashes or hangs, and the file
    is not called broken.
    """
    line = [sys.executable, "-c", "import os, sys; os.truncate(sys.argv[1], int(sys.argv[2]))", path, str(to)]
    progress = Once(lambda: subprocess.run(line, check=True))
    report = inspect(path, Level.CONTENT, io=io, progress=progress, jobs=2)[0]
    assert not progress.left
    assert (report.verdict, codes(report)) == (Verdict.UNKNOWN, ["in-use"])


@linux
@pytest.mark.parametrize("io", ["auto", "direct"])
def test_a_file_that_is_written_while_it_is_read(path: str, io: str) -> None:
    progress = Once(lambda: os.pwrite(os.open(path, os.O_RDWR), b"other", 45 * MIB))
    assert codes(inspect(path, Level.CONTENT, io=io, progress=progress)[0]) == ["in-use"]
    assert not progress.left


def test_sums_that_say_more_than_there_is(tmp_path: Path) -> None:
    """Reading says where the file ends."""
    data = os.urandom(3 * MIB)
    (tmp_path / "x").write_bytes(data)
    with opened(str(tmp_path / "x")) as source, pytest.raises(ShortRead) as e:
        list(mismatches(source, [Sum("record", zlib.crc32(data), (Extent(MIB, 4 * MIB),), 0)], jobs=2))
    assert e.value.offset + e.value.got == 3 * MIB


def resident(path: str) -> int:
    """Pages of a file that lie in the page cache, by mincore(2)."""
    size = os.stat(path).st_size
    with Path(path).open("rb") as f, mmap.mmap(f.fileno(), size, mmap.MAP_PRIVATE) as m:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start, mincore = ctypes.c_char.from_buffer(m), ctypes.CDLL(None, use_errno=True).mincore
        try:
            at = ctypes.c_void_p(ctypes.addressof(start))
            assert mincore(at, ctypes.c_size_t(size), pages) == 0
        finally:
            del start
        return sum(p & 1 for p in pages)


def cold(path: str) -> bool:
    """Take a file out of the page cache; False where the file system does not do that."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return resident(path) == 0


@linux
def test_direct_leaves_the_cache_as_it_was(path: str) -> None:
    on_disk = cold(path)  # a file system in memory keeps all of it
    assert inspect(path, Level.CONTENT, io="direct")[0].verdict is Verdict.OK
    assert resident(path) * mmap.PAGESIZE < MIB or not on_disk  # a few at most, which reading ahead may bring
    Path(path).read_bytes()
    full = resident(path)
    assert inspect(path, Level.CONTENT, io="direct")[0].verdict is Verdict.OK
    assert resident(path) > 0.9 * full  # what others had there stays; a machine short of memory takes some


@linux
@pytest.mark.parametrize("refused", ["", "fcntl", "preadv"])
def test_direct_reads_any_range(tmp_path: Path, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, *more: Any) -> Any:
        if refused == "fcntl" or real_fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_preadv(fd, *more)

    real_fcntl, real_preadv = fcntl.fcntl, os.preadv
    if refused:
        monkeypatch.setattr(fcntl if refused == "fcntl" else os, refused, refuse)
    data = os.urandom(3 * MIB + 123)
    (tmp_path / "x").write_bytes(data)
    size = len(data)
    with DirectSource(str(tmp_path / "x")) as source:
        for offset, length in (
            (0, 1), (4095, 2), (0, size), (1, size - 1), (4096, 4096), (MIB - 1, MIB + 2), (size - 5, 5), (7, 0),
        ):  # fmt: skip
            assert source.read(offset, length) == data[offset : offset + length]
        for offset, length in ((len(data) - 5, 6), (len(data), 1), (5 * MIB, 10), (3 * MIB, MIB)):
            with pytest.raises(ShortRead) as e:
                source.read(offset, length)
            assert e.value.got == max(0, len(data) - offset)


@pytest.mark.parametrize("io", ["auto", "direct"])
def test_a_rate_holds_back_every_way_of_reading(path: str, io: str, monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[int] = []
    monkeypatch.setattr(Rate, "took", lambda self, n: took.append(n))
    result = verify([path], io=io, limit_rate=1e9)
    assert result.verdict is Verdict.OK
    assert sum(took) == os.path.getsize(path) // 1000 * 1000 or sum(took) > 47 * MIB
    assert max(took) <= BUFFER


def test_a_rate_is_shared_and_not_saved_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], list[float]()
    monkeypatch.setattr(stalls, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=slept.append))
    rate = Rate(100.0)
    rate.took(50)
    rate.took(100)  # of another thread, at the same time
    assert slept == [0.5, 1.5]
    now[0] = 60.0
    rate.took(10)
    assert slept[-1] == pytest.approx(0.1)


SIZES = {
    "1": 1, "200MB": 200_000_000, "50GiB": 50 << 30, "1.5k": 1536, "2 TiB": 2 << 40, "7B": 7, 12: 12, "1T": 1 << 40,
    "3mb": 3_000_000,
}  # fmt: skip
NO_SIZES = ["", "0", "-1", "iB", "5i", "5iB", "1X", "GiB", "1e9", True, 0, 1.5, "0.0GB"]


def test_sizes() -> None:
    assert {text: parsers.size(text) for text in SIZES} == SIZES
    for text in NO_SIZES:
        with pytest.raises(ValueError, match="is not a size"):
            parsers.size(text)
