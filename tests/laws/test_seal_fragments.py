"""A thousand ranks that sealed one checkpoint, each alone: every fragment is read once, and what they cost
grows no faster than they do.
"""

from __future__ import annotations

import tracemalloc
import zlib
from pathlib import Path

import crc32c
import pytest
import xxhash
from places import FORMAT_FILES

from ckpt_tools.api import verify
from ckpt_tools.checksum import chunks
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.names import FRAGMENTS, fragment_name
from ckpt_tools.inspection import seals as reading
from ckpt_tools.inspection.indexes import Indexes
from ckpt_tools.model.report import Level
from ckpt_tools.model.seal import Fragment, Seal, SealedCheckpoint, SealedFile
from ckpt_tools.storage import Source

RANKS = 1000
EACH = 16 << 10
"""Bytes of memory that a fragment may take while all are read, at most."""
DATA = (FORMAT_FILES / "torch_zip/good/only-tensor.pth").read_bytes()


def name(rank: int) -> str:
    return f"mp_rank_{rank:05d}/model_optim_rng.pt"


def fragment(rank: int) -> bytes:
    digest = xxhash.xxh3_128(DATA).hexdigest()
    crc, crcc = f"{zlib.crc32(DATA):08x}", f"{crc32c.crc32c(DATA):08x}"
    file = SealedFile(
        path=name(rank),
        size=len(DATA),
        digest=chunks.whole(len(DATA), [digest]),
        crc32=crc,
        crc32c=crcc,
        chunks=digest,
        chunk_crc32=crc,
        chunk_crc32c=crcc,
    )
    of = SealedCheckpoint(layout="megatron", step=20)
    return document.text(Seal("1", of, "xxh3", (file,), fragment=Fragment(rank, RANKS)))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of which every rank has sealed its own file."""
    home = tmp_path_factory.mktemp("run") / "iter_0000020"
    (home / FRAGMENTS).mkdir(parents=True)
    for rank in range(RANKS):
        (home / name(rank)).parent.mkdir()
        (home / name(rank)).write_bytes(DATA)
        (home / FRAGMENTS / fragment_name(rank)).write_bytes(fragment(rank))
    return home


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


def test_memory_grows_with_them_and_no_faster(home: Path) -> None:
    tracemalloc.start()
    try:
        known = indexes(home)
        assert all(known.claims(f"{home}/{name(rank)}") for rank in range(RANKS))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < RANKS * EACH, f"{peak / RANKS:.0f} bytes for each"


def test_the_one_that_is_missing_is_named(home: Path) -> None:
    lost = home / FRAGMENTS / fragment_name(700)
    data = lost.read_bytes()
    lost.unlink()
    try:
        seals = indexes(home).seals
        assert seals is not None
        seals.read_all()
        said = {f.message for rows in seals.findings.values() for f in rows if f.code == "seal-incomplete"}
        assert said == {"999 of 1,000 ranks have sealed their files: missing are 700"}
    finally:
        lost.write_bytes(data)
