"""Every way of reading sees the same, and a file that is cut or changed while it is read is said to be so,
whatever happens to who reads it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from crc32c import crc32c

from ckpt_tools.api import verify
from ckpt_tools.checksum import CRC32, CRC32C, Extent, Sum, mapped, mismatches
from ckpt_tools.checksum import work as _work
from ckpt_tools.checksum.sums import xxh3
from ckpt_tools.inspection.check import inspect
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level, Report
from ckpt_tools.settings import parsers
from ckpt_tools.storage import IO, LocalSource, ShortRead, mapping, opened, worker_processes
from ckpt_tools.storage.direct import DirectSource
from ckpt_tools.storage.rate import Rate

MIB = 1 << 20
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # tens of megabytes, written by torch, in each
linux = pytest.mark.skipif(sys.platform != "linux", reason="mapped and direct reading need Linux")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Two records of 24 MiB, so that each is split into ranges, and one that is too small for a helper."""
    generator = torch.Generator().manual_seed(1)
    state = {name: torch.randn(6 * MIB, generator=generator) for name in ("one", "two")} | {
        "small": torch.ones(100)
    }
    torch.save(state, tmp_path / "model.pt")
    return str(tmp_path / "model.pt")


@pytest.fixture
def thread() -> Iterator[None]:
    """Another thread in this process: then helpers are not forked but started."""
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    yield
    end.set()
    other.join()


def codes(report: Report) -> list[str]:
    return [f.code for f in report.findings]


@linux
@pytest.mark.parametrize("io", IO)
def test_all_ways_see_the_same(path: str, io: str) -> None:
    good, base = inspect(path, Level.CONTENT, io=io)[0], inspect(path, Level.CONTENT)[0]
    assert good == base
    assert good.verdict is Verdict.OK
    with Path(path).open("r+b") as f:
        f.seek(30 * MIB)
        byte = f.read(1)[0]
        f.seek(30 * MIB)
        f.write(bytes([byte ^ 4]))
    bad = inspect(path, Level.CONTENT, io=io)[0]
    assert codes(bad) == ["crc-mismatch"]
    assert (
        bad == inspect(path, Level.CONTENT)[0]
    )  # the same numbers, although ranges came back in another order


SCRIPT = """
import os, sys
from ckpt_tools.storage import worker_processes
from ckpt_tools.checksum import mapped
from ckpt_tools.model.report import Level
from ckpt_tools.inspection.check import inspect
forked, spawned = [], []
fork, spawn = mapped._forked, mapped._spawned
mapped._forked = lambda *a: forked.append(1) or fork(*a)
mapped._spawned = lambda *a: spawned.append(1) or spawn(*a)
if sys.argv[2:]:
    import threading
    threading.Thread(target=threading.Event().wait, daemon=True).start()
report, _ = inspect(sys.argv[1], Level.CONTENT, jobs=3, io="mmap")
print(report.verdict, report.bytes_read, len(forked), len(spawned))
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no child is left")
"""


@linux
@pytest.mark.parametrize("threads", [False, True])
def test_helpers_are_forked_only_from_a_lone_thread(path: str, threads: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, path, *(["thread"] * threads)],
        capture_output=True,
        text=True,
        check=True,
    )
    verdict, read, forked, spawned = done.stdout.split("\n")[0].split()
    assert (verdict, int(forked), int(spawned)) == ("ok", 0 if threads else 3, 3 if threads else 0)
    assert int(read) == inspect(path, Level.CONTENT)[0].bytes_read
    assert "no child is left" in done.stdout
    assert done.stderr == ""


@linux
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGBUS])
@pytest.mark.parametrize("every", [False, True])
def test_a_helper_that_dies_is_replaced_by_reading(
    path: str, kill: int, every: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    start = mapped._Helper.start.__func__  # type: ignore[attr-defined]

    def remembered(cls: type[mapped._Helper], *args: Any) -> mapped._Helper | None:
        helper: mapped._Helper | None = start(cls, *args)
        assert helper is not None
        started.append(helper.pid)
        return helper

    monkeypatch.setattr(mapped._Helper, "start", classmethod(remembered))
    killed: list[int] = []

    def progress(n: int) -> None:
        for pid in started[: 2 if every else 1] if not killed else ():
            killed.append(pid)
            os.kill(pid, kill)

    report = inspect(path, Level.CONTENT, jobs=2, io="mmap", progress=progress)[0]
    assert len(killed) == (2 if every else 1)
    assert (report.verdict, codes(report)) == (Verdict.OK, [])
    assert report.bytes_read == inspect(path, Level.CONTENT)[0].bytes_read  # every byte counts once


PULLED_AWAY = """
import os, signal, sys
from ckpt_tools.storage import worker_processes
from ckpt_tools.checksum import mapped_child
from ckpt_tools.model.report import Level
from ckpt_tools.inspection.check import inspect
update, wait, ends = mapped_child._Crc.update, os.waitpid, []
def slow(self, view):  # in the helper, which has the range mapped already
    os.truncate(sys.argv[1], 0)
    update(self, view)
mapped_child._Crc.update = slow
def waited(pid, options):
    done = wait(pid, options)
    ends.append(done[1])
    return done
os.waitpid = waited
report, _ = inspect(sys.argv[1], Level.CONTENT, jobs=1 + (len(sys.argv) > 2), io="mmap")
print(report.verdict, *(f.code for f in report.findings), signal.SIGBUS in map(os.WTERMSIG, ends))
"""


@linux
def test_pages_that_are_taken_away_under_a_helper(path: str) -> None:
    """It dies of SIGBUS; its parent does not, and says what is wrong with the file."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PULLED_AWAY, path, "two"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "unknown in-use True\n", "")


TRUNCATE = "import os, sys; os.truncate(sys.argv[1], int(sys.argv[2]))"


@pytest.mark.share(4)
@linux
@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("to", [0, 20 * MIB + 5])
def test_a_file_that_is_cut_while_it_is_read(path: str, io: str, to: int) -> None:
    """By another process, as soon as the first bytes have been read: nothing crashes or hangs, and the file
    is not called broken.
    """
    once: list[int] = []

    def progress(n: int) -> None:
        if not once:
            once.append(n)
            subprocess.run([sys.executable, "-c", TRUNCATE, path, str(to)], check=True)

    report = inspect(path, Level.CONTENT, io=io, progress=progress, jobs=2)[0]
    assert once
    assert (report.verdict, codes(report)) == (Verdict.UNKNOWN, ["in-use"])


@linux
@pytest.mark.parametrize("io", IO)
def test_a_file_that_is_written_while_it_is_read(path: str, io: str) -> None:
    once: list[int] = []

    def progress(n: int) -> None:
        if not once:
            once.append(n)
            with Path(path).open("r+b") as f:
                f.seek(45 * MIB)
                f.write(b"other")

    assert codes(inspect(path, Level.CONTENT, io=io, progress=progress)[0]) == ["in-use"]


@linux
@pytest.mark.usefixtures("thread")
def test_a_started_helper_that_meets_the_end_of_the_file(tmp_path: Path) -> None:
    """The sums say more than there is: the helper gives up, and reading says where the file ends."""
    data = os.urandom(3 * MIB)
    (tmp_path / "x").write_bytes(data)
    with opened(str(tmp_path / "x"), "mmap") as source, pytest.raises(ShortRead) as e:
        list(mismatches(source, [Sum("record", zlib.crc32(data), (Extent(MIB, 4 * MIB),), 0)], jobs=2))
    assert e.value.offset + e.value.got == 3 * MIB


@pytest.mark.share(3)
@linux
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # beside the threads of pytest itself
@pytest.mark.parametrize("forked", [True, False])
@pytest.mark.parametrize("kind", ["CRC-32", "CRC-32C", "XXH3-128", "all"])
def test_helpers_know_every_digest(
    tmp_path: Path, kind: str, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any offset, across the ends of what is mapped at once, right and wrong; only what is too small for
    them is left for us.
    """
    data = os.urandom(21 * MIB + 123)
    (tmp_path / "x").write_bytes(data)
    kinds = {
        "CRC-32": (CRC32, zlib.crc32),
        "CRC-32C": (CRC32C, crc32c),
        "XXH3-128": (xxh3, xxhash.xxh3_128_digest),
    }
    sums = []
    for how, digest in kinds.values() if kind == "all" else [kinds[kind]]:
        for start, stop in ((1, len(data)), (5, 17 * MIB), (8 * MIB, 16 * MIB)):
            right = digest(data[start:stop])
            wrong = right ^ 1 if isinstance(right, int) else bytes(16)
            sums += [
                Sum(str(right), value, (Extent(start, stop - start),), 0, hash=how)
                for value in (right, wrong)
            ]
    ours: list[int] = []
    work = _work.work
    monkeypatch.setattr(
        _work, "work", lambda source, sums, u, *more: ours.append(u.length) or work(source, sums, u, *more)
    )
    monkeypatch.setattr(worker_processes, "alone", lambda: forked)
    with opened(str(tmp_path / "x"), "mmap") as source:
        found = list(mismatches(source, sums, jobs=2))
        covered = sum(p.length for s in sums for p in s.pieces if isinstance(p, Extent))
        # what other digests cover as well is read with them
        assert source.bytes_read < covered if kind == "all" else source.bytes_read == covered
    assert [str(got) for _, got in found] == [s.what for s in sums[1::2]]
    assert [s for s, _ in found] == sums[1::2]
    assert max(ours, default=0) < MIB


@linux
@pytest.mark.parametrize("how", [CRC32C, xxh3])
def test_a_helper_without_its_package_leaves_its_ranges_to_us(
    tmp_path: Path, how: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    data = os.urandom(3 * MIB)
    (tmp_path / "x").write_bytes(data)
    monkeypatch.setattr(worker_processes, "alone", lambda: False)
    monkeypatch.setattr(mapped, "_FROM", dict.fromkeys(range(3), "zlib"))
    right = crc32c(data) if how is CRC32C else xxhash.xxh3_128_digest(data)
    with opened(str(tmp_path / "x"), "mmap") as source:
        assert list(mismatches(source, [Sum("x", right, (Extent(0, 3 * MIB),), 0, hash=how)], jobs=2)) == []
    assert capfd.readouterr() == ("", "")


@linux
def test_no_helper_can_be_started(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "alone", lambda: False)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert inspect(path, Level.CONTENT, io="mmap")[0].verdict is Verdict.OK


@linux
def test_the_rule(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mapping.file_system(os.makedev(0, 0)) == ""
    assert mapping.file_system(os.stat("/proc/self/mountinfo").st_dev) == "proc"
    with LocalSource(path) as source:
        assert not mapping.suits(source)  # too small
        monkeypatch.setattr(mapping, "file_system", lambda device: "ext4")
        assert mapping.suits(source, worth=MIB) == mapping.cached(source)
        monkeypatch.setattr(mapping, "file_system", lambda device: "nfs4")
        assert not mapping.suits(source, worth=MIB)


def resident(path: str) -> int:
    """Pages of a file that lie in the page cache, by mincore(2)."""
    size = os.stat(path).st_size
    with Path(path).open("rb") as f, mmap.mmap(f.fileno(), size, mmap.MAP_PRIVATE) as m:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(m)
        try:
            assert (
                ctypes.CDLL(None, use_errno=True).mincore(
                    ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages
                )
                == 0
            )
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
@pytest.mark.parametrize("refused", [False, True])
def test_direct_leaves_the_cache_as_it_was(path: str, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if refused:
        monkeypatch.setattr(os, "O_DIRECT", os.O_DIRECTORY)  # which is refused for a file
    on_disk = cold(path)  # a file system in memory keeps all of it
    assert inspect(path, Level.CONTENT, io="direct")[0].verdict is Verdict.OK
    assert resident(path) * mmap.PAGESIZE < MIB or not on_disk  # a few at most, which reading ahead may bring
    Path(path).read_bytes()
    full = resident(path)
    assert inspect(path, Level.CONTENT, io="direct")[0].verdict is Verdict.OK
    assert resident(path) > 0.9 * full  # what others had there stays; a machine short of memory takes some


@linux
@pytest.mark.parametrize("refused", [False, True])
def test_direct_reads_any_range(tmp_path: Path, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if refused:
        monkeypatch.setattr(os, "O_DIRECT", os.O_DIRECTORY)  # which is refused for a file
    data = os.urandom(3 * MIB + 123)
    (tmp_path / "x").write_bytes(data)
    with DirectSource(str(tmp_path / "x")) as source:
        for offset, length in (
            (0, 1),
            (4095, 2),
            (0, len(data)),
            (1, len(data) - 1),
            (4096, 4096),
            (MIB - 1, MIB + 2),
            (len(data) - 5, 5),
            (7, 0),
        ):
            assert source.read(offset, length) == data[offset : offset + length]
        for offset, length in ((len(data) - 5, 6), (len(data), 1), (5 * MIB, 10), (3 * MIB, MIB)):
            with pytest.raises(ShortRead) as e:
                source.read(offset, length)
            assert e.value.got == max(0, len(data) - offset)


@pytest.mark.parametrize("io", ["auto", "mmap", "direct"])
def test_a_rate_holds_back_every_way_of_reading(path: str, io: str, monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[int] = []
    monkeypatch.setattr(Rate, "took", lambda self, n: took.append(n))
    result = verify([path], io=io, limit_rate=1e9)
    assert result.verdict is Verdict.OK
    assert sum(took) == os.path.getsize(path) // 1000 * 1000 or sum(took) > 47 * MIB
    assert max(took) <= MIB  # a helper would have said 6 MiB at once


def test_a_rate_is_shared_and_not_saved_up() -> None:
    now = [0.0]
    slept: list[float] = []
    rate = Rate(100.0, lambda: now[0], slept.append)
    rate.took(50)
    rate.took(100)  # of another thread, at the same time
    assert slept == [0.5, 1.5]
    now[0] = 60.0
    rate.took(10)
    assert slept[-1] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("200MB", 200_000_000),
        ("50GiB", 50 << 30),
        ("1.5k", 1536),
        ("2 TiB", 2 << 40),
        ("7B", 7),
        (12, 12),
        ("1T", 1 << 40),
        ("3mb", 3_000_000),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parsers.size(text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "iB", "5i", "5iB", "1X", "GiB", "1e9", True, 0, 1.5, "0.0GB"]
)
def test_no_sizes(text: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parsers.size(text)
