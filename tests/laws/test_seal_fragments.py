"""Hundreds of ranks that sealed one checkpoint, each alone: every fragment is read once, and what they cost
grows no faster than they do.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import crc32c
import pytest
import xxhash
from counted import calls
from places import FORMAT_FILES

from ckpt_tools import guard
from ckpt_tools.api import verify
from ckpt_tools.checksum.sums import join_digests
from ckpt_tools.errors import CannotLook
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.document import FRAGMENTS, NAME, fragment_name
from ckpt_tools.inspection import seals as reading
from ckpt_tools.inspection.indexes import Indexes
from ckpt_tools.model.report import Level
from ckpt_tools.model.seal import Fragment, Seal, SealedCheckpoint, SealedFile
from ckpt_tools.storage import Source

RANKS = 400
EACH, LINE = 2000, 1000
"""Bytes of memory that a fragment, and a file in one seal, may take once all are known, at most."""
VERIFIED, MERGED = 3900, 3200
"""Bytes of memory that a further rank's file and fragment may take: 100,000 are verified in less than 430 MB
and merged in less than 350, of which up to a third is garbage that nobody has collected yet.
"""
DATA = (FORMAT_FILES / "torch_zip/good/only-tensor.pth").read_bytes()


def name(rank: int) -> str:
    return f"mp_rank_{rank:05d}/model_optim_rng.pt"


def sealed(rank: int) -> SealedFile:
    digest = xxhash.xxh3_128(DATA).hexdigest()
    crc, crcc = f"{zlib.crc32(DATA):08x}", f"{crc32c.crc32c(DATA):08x}"
    sums = {"crc32": crc, "crc32c": crcc, "chunk_crc32": crc, "chunk_crc32c": crcc, "chunks": digest}
    return SealedFile(name(rank), len(DATA), join_digests(len(DATA), [digest]), **sums)


OF = SealedCheckpoint(layout="megatron", step=20)


def fragment(rank: int, ranks: int) -> bytes:
    return document.text(Seal("1", OF, "xxh3", (sealed(rank),), fragment=Fragment(rank, ranks)))


def saved(home: Path, ranks: int, *, merged: bool = False) -> Path:
    """A checkpoint of which every rank has sealed its own file, or one seal names all."""
    (home / FRAGMENTS).mkdir(parents=True)
    for rank in range(ranks):
        (home / name(rank)).parent.mkdir()
        (home / name(rank)).write_bytes(DATA)
        if not merged:
            (home / FRAGMENTS / fragment_name(rank)).write_bytes(fragment(rank, ranks))
    if merged:
        (home / NAME).write_bytes(document.text(Seal("1", OF, "xxh3", tuple(map(sealed, range(ranks))))))
    return home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("run") / "iter_0000020", RANKS)


def indexes(home: Path) -> Indexes:
    return Indexes((), {str(p): str(home) for p in (home / FRAGMENTS).iterdir()})


def test_each_is_read_once_and_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = list[str]()

    def read(source: Source) -> Seal:
        reads.append(source.path)
        return whole(source)

    whole = reading.read
    monkeypatch.setattr(reading, "read", read)
    found = verify(home, Level.CONTENT, settle=0)
    covered = {f.report.path for f in found.files if f.report.coverage == 1.0}
    assert covered == {f"{home}/{name(rank)}" for rank in range(RANKS)}
    assert len(reads) == len(set(reads)) == RANKS
    assert not [f for one in found.files for f in one.report.findings if f.code.startswith("seal-")]


def taken(known: Callable[[], Indexes], home: Path) -> float:
    """Bytes of memory for each file once all are known."""
    tracemalloc.start()
    try:
        indexes = known()
        assert all(indexes.claims(f"{home}/{name(rank)}") for rank in range(RANKS))
        return tracemalloc.get_traced_memory()[0] / RANKS
    finally:
        tracemalloc.stop()


def test_a_hundred_thousand_take_little_memory(home: Path, tmp_path: Path) -> None:
    assert taken(lambda: indexes(home), home) < EACH
    merged = saved(tmp_path, RANKS, merged=True)
    assert taken(lambda: Indexes((), {f"{merged}/{NAME}": str(merged)}), merged) < LINE


def merge(home: Path) -> None:
    (one,) = guard.seal(home, merge=True, dry_run=True).checkpoints
    assert one.state == "merged"


PEAKS = """
import sys, tracemalloc
from ckpt_tools import guard, verify

for home in sys.argv[2:]:
    tracemalloc.start()
    done = verify(home, settle=0) if sys.argv[1] == "verified" else guard.seal(home, merge=True)
    assert len(getattr(done, "files", "xx")) > 1
    print(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    del done
"""


@pytest.mark.share(2)
@pytest.mark.slow
@pytest.mark.parametrize(("work", "most"), [("verified", VERIFIED), ("merged", MERGED)])
def test_a_further_rank_takes_little_memory(work: str, most: int, tmp_path: Path) -> None:
    """At the highest, what it is written from included. In a process of its own: how much garbage waits to be
    collected depends on what other tests have left alive.
    """
    homes = [saved(tmp_path / str(ranks) / "iter_0000020", ranks) for ranks in (2, 100, 400)]
    done = subprocess.run([sys.executable, "-c", PEAKS, work, *homes], stdout=subprocess.PIPE, check=True)
    _, few, many = map(int, done.stdout.split())  # the first one imports what is imported once
    assert (many - few) / 300 < most, (few, many)


def look_up(home: Path) -> None:
    seals = Indexes((), {f"{home}/{NAME}": str(home)}).seals
    assert all(seals.claims(path) for path in seals.members())


@pytest.mark.parametrize("work", [merge, look_up])
def test_work_grows_as_they_do(work: Callable[[Path], None], tmp_path: Path) -> None:
    counted = []
    for ranks in (1, 100, 800):  # the first one imports what is imported once
        home = saved(tmp_path / str(ranks) / "iter_0000020", ranks, merged=work is look_up)
        counted.append(calls(lambda home=home: work(home)))
    assert counted[2] < 9 * counted[1], counted


def test_fragments_stay_where_their_seal_would_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = saved(tmp_path / "iter_0000020", 4)
    monkeypatch.setattr(document, "MAX_SIZE", 1000)
    with pytest.raises(CannotLook, match="too large to be read"):
        guard.seal(home, merge=True)
    assert len(list((home / FRAGMENTS).iterdir())) == 4 and not (home / NAME).exists()
    assert [f.report.coverage for f in verify(home, settle=0).files if f.part is not None] == [1.0] * 4


def test_more_files_than_a_seal_names_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = saved(tmp_path / "iter_0000020", 4)
    monkeypatch.setattr(document, "MOST_FILES", 3)
    (one,) = guard.seal(home, again=True).checkpoints
    assert (one.state, [f.code for f in one.findings]) == ("unreadable", ["too-complex"])
    assert not (home / NAME).exists()
    monkeypatch.setattr(document, "MOST_FILES", 4)
    (one,) = guard.seal(home, again=True).checkpoints
    assert one.state == "sealed"


def test_the_one_that_is_missing_is_named(home: Path) -> None:
    lost = home / FRAGMENTS / fragment_name(300)
    data = lost.read_bytes()
    lost.unlink()
    try:
        seals = indexes(home).seals
        seals.read_all()
        said = {f.message for rows in seals.findings.values() for f in rows if f.code == "seal-incomplete"}
        assert said == {"399 of 400 ranks have sealed their files: missing are 300"}
    finally:
        lost.write_bytes(data)
