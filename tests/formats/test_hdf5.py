"""What ckpt reads of HDF5 files is what h5py says of them, and damage to their structures is a finding."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
from counted import at_most
from helpers import bad, is_bad, look
from places import FORMAT_FILES

from ckpt_tools.api import verify
from ckpt_tools.formats import BY_NAME, Anatomy
from ckpt_tools.formats.hdf5.blocks import Blocks, Fletcher32, Lookup3, Span, lookup3

HDF5 = BY_NAME["hdf5"]
TRUTH = json.loads((FORMAT_FILES / "hdf5" / "truth.json").read_text())
GOOD = {name: (FORMAT_FILES / "hdf5" / "good" / name).read_bytes() for name in TRUTH}


@pytest.mark.parametrize("name", TRUTH)
def test_arrays_and_chunks_are_those_that_h5py_tells(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    anatomy, spans = Anatomy(), list[Span]()
    monkeypatch.setattr(Blocks, "explain_gaps", lambda blocks: spans.extend(blocks.spans))
    assert bad(look(GOOD[name], HDF5, anatomy)) == []
    seen, chunks = {t.name: t for t in anatomy.tensors}, defaultdict[str, list[list[int]]](list)
    for start, stop, what in sorted(spans):
        if what.startswith("a chunk of "):
            chunks[what.split("'")[1]].append([start, stop - start])
    assert len(seen) == len(anatomy.tensors)
    assert set(seen) == set(TRUTH[name])
    for path, told in TRUTH[name].items():
        of = seen[path]
        assert (of.dtype, list(of.shape), chunks[path]) == (told["dtype"], told["shape"], told["chunks"])
        if not told["chunks"]:
            assert told["offset"] in (None, of.offset)  # h5py tells none of what lies in an object header


def test_lookup3_has_the_values_of_its_author() -> None:
    """The driver5() of lookup3.c (Bob Jenkins, May 2006)."""
    assert (lookup3(b""), lookup3(b"Four score and seven years ago")) == (0xDEADBEEF, 0x17770551)


def test_flags_of_a_superblock_that_no_library_has_used_are_no_damage() -> None:
    data = (FORMAT_FILES / "hdf5/good/superblock-0.h5").read_bytes()
    assert not bad(look(data[:20] + b"\x08" + data[21:], HDF5))


def test_what_a_file_of_keras_is_called_and_is_not(tmp_path: Path) -> None:
    (path := tmp_path / "cp-0001.weights.h5").write_bytes(b"not HDF5 at all" * 100)
    assert "bad-header" in {f.code for f in verify([str(path)]).files[0].report.findings}


@pytest.mark.parametrize("name", TRUTH)
def test_zeroed_structures_are_seen(name: str) -> None:
    """Whatever h5py needs to find an array: the first bytes of each structure."""
    data, anatomy = GOOD[name], Anatomy(regions=[])
    look(data, HDF5, anatomy)
    for r in anatomy.regions or ():
        if r.what.startswith("signature"):
            assert is_bad(data[: r.offset] + bytes(32) + data[r.offset + 32 :], HDF5), r


@pytest.mark.slow
@pytest.mark.share(2, "slow")
@pytest.mark.parametrize("name", [n for n in TRUTH if "-v1" in n or "latest" in n])
def test_every_changed_structure_is_its_own_finding(name: str) -> None:
    """With the bytes that the checksum covers."""
    data, anatomy = bytearray(GOOD[name]), Anatomy()
    look(GOOD[name], HDF5, anatomy)
    pick = random.Random(name).sample(anatomy.sums, min(40, len(anatomy.sums)))
    for s in pick:
        for piece in s.pieces:
            if isinstance(piece, bytes) or not s.expected or s.code != "crc-mismatch":
                continue
            at = piece.offset + piece.length // 2
            data[at] ^= 4
            assert ("crc-mismatch", s.offset) in {(f.code, f.offset) for f in look(bytes(data), HDF5)}, s.what
            data[at] ^= 4


@pytest.mark.parametrize("length", [0, 1, 11, 12, 13, 24, 25, 4001])
def test_checksums_do_not_depend_on_how_the_bytes_come(length: int) -> None:
    data, dice = random.Random(length).randbytes(length), random.Random(7)
    for make in (lambda: Lookup3(length), Fletcher32):
        whole, pieces, at = make(), make(), 0
        whole.update(data)
        while at < length:
            n = dice.randint(1, 40)
            pieces.update(data[at : at + n])
            at += n
        assert whole.digest() == pieces.digest()


@pytest.mark.parametrize(
    ("data", "wanted"),
    [(b"", 0), (bytes(9), 0), (b"\xff" * 10, 0xFFFFFFFF), (b"\xff\xff" * 65535, 0xFFFFFFFF), (bytes(range(256)) * 9 + b"x", 0xB6E23A3E)],
    ids=lambda v: str(len(v)) if isinstance(v, bytes) else "",
)  # fmt: skip
def test_fletcher_is_that_of_the_library(data: bytes, wanted: int) -> None:
    """What H5_checksum_fletcher32() makes of them."""
    running = Fletcher32()
    running.update(data)
    assert running.digest() == wanted.to_bytes(4, "little")


def _resealed(data: bytearray, dice: random.Random) -> bytes:
    """A few bytes changed, in structures whose checksums are made right again: only what they say is wrong."""
    anatomy = Anatomy()
    look(bytes(data), HDF5, anatomy)
    sums = [s for s in anatomy.sums if isinstance(s.hash, partial) and s.hash.func is Lookup3]
    for s in dice.sample(sums, min(len(sums), dice.randint(0, 3))):
        piece = dice.choice([p for p in s.pieces if not isinstance(p, bytes) and p.length > 4])
        _scribble(data, piece.offset + 4, piece.length - 4, dice)
        running = s.hash()
        for p in s.pieces:
            running.update(p if isinstance(p, bytes) else bytes(data[p.offset : p.offset + p.length]))
        data[s.offset : s.offset + 4] = running.digest()
    for _ in range(dice.randint(0, 4)):
        _scribble(data, 96, len(data) - 96, dice)
    return bytes(data)


def _scribble(data: bytearray, start: int, length: int, dice: random.Random) -> None:
    """A number where there was another."""
    width = dice.choice((1, 1, 2, 4, 8))
    numbers = (0, 1, 255, dice.getrandbits(16), len(data), (1 << 8 * width) - 1, dice.randrange(len(data)))
    new = dice.choice(numbers)
    at = start + dice.randrange(length)
    data[at : at + width] = (new & ((1 << 8 * width) - 1)).to_bytes(width, "little")[: len(data) - at]


@pytest.mark.share(12)
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in TRUTH if n != "pages-v110.h5"])
def test_whatever_the_numbers_say_only_findings_come(name: str) -> None:
    dice = random.Random(name)
    for _ in range(40):
        broken = _resealed(bytearray(GOOD[name]), dice)
        with at_most(300_000):
            for f in look(broken, HDF5, Anatomy(regions=[])):
                assert f.offset is None or f.offset >= 0
