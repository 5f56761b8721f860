"""Laws that every format obeys, over every file in fixtures/formats/<name>/{good,bad}: a new format needs fixtures, not tests."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from helpers import FIXTURES, bad, is_bad, look
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckpt_tools.checksum import Piece
from ckpt_tools.codes import CODES
from ckpt_tools.formats import BY_NAME, FORMATS, HEAD, SUFFIXES, Anatomy, Format
from ckpt_tools.model import Level

SMALL = 4096
GOOD = sorted(FIXTURES.glob("*/good/*"))
BAD = sorted(FIXTURES.glob("*/bad/*"))
SMALL_GOOD = [p for p in GOOD if p.stat().st_size <= SMALL]


def name_of(path: Path) -> str:
    return "/".join(path.parts[-3::2])


def format_of(path: Path) -> Format:
    return BY_NAME[path.parts[-3]]


# --- cuts that a format cannot see, by file size after the cut


def _records(data: bytes, at: int = 0) -> Iterator[tuple[int, int]]:
    """(key byte, end) of each protobuf field of bytes from ``at``, as far as there are such."""
    while at < len(data) and data[at] in (0x0A, 0x12, 0x1A):
        key, n, shift = data[at], 0, 0
        at += 1
        while True:
            n |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 0x80:
                break
        at += n
        yield key, at


def _mindspore_borders(data: bytes) -> set[int]:
    """A MindSpore file is a chain of records without an end mark, so a cut between two records leaves a shorter valid file (the layout's
    signature-changed and --require see it); so does a cut that takes exactly the trailer with the checksum."""
    return {0, *(end for _, end in _records(data))}


def _strategy_borders(data: bytes) -> set[int]:
    """The same holds for a strategy file from its first layout on; the number before its records is one byte in all fixtures."""
    return {end for key, end in _records(data, 2) if key == 0x1A}


BLIND_CUTS: dict[str, Callable[[bytes], set[int]]] = {"mindspore_ckpt": _mindspore_borders, "mindspore_strategy": _strategy_borders}

# --- bytes whose flips a format cannot see and no reader uses


def _deflate_ends(anatomy: Anatomy) -> set[int]:
    """A deflate stream ends at some bit of its last byte; the bits behind that are padding."""
    return {p.offset + p.length - 1 for s in anatomy.sums for p in s.pieces if hasattr(p, "size")}


def _directory_only(data: bytes, anatomy: Anatomy) -> set[int]:
    """Version made by, internal and external attributes are in the directory only, and differ between entries for good reasons."""
    out, at = _deflate_ends(anatomy), data.find(b"PK\1\2")
    while data[at : at + 4] == b"PK\1\2":
        out |= {at + 4, at + 5, *range(at + 36, at + 42)}
        at += 46 + sum(struct.unpack_from("<3H", data, at + 28))
    return out


def _covered(pieces: Iterable[Piece]) -> set[int]:
    return {i for p in pieces if not isinstance(p, bytes) for i in range(p.offset, p.offset + p.length)}


def _maps(data: bytes, anatomy: Anatomy) -> set[int]:
    """MindSpore's writer leaves map parameters out of its checksum and its reader does not, so a file is right in either reading."""
    return {i for s in anatomy.sums if s.otherwise for i in _covered(s.pieces) - _covered(s.otherwise)}


HARMLESS: dict[str, Callable[[bytes, Anatomy], set[int]]] = {
    "torch_zip": lambda _, anatomy: _deflate_ends(anatomy),
    "zip_archive": _directory_only,
    "mindspore_ckpt": _maps,
}


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_a_format_says_what_it_is(fmt: Format) -> None:
    assert fmt.limits
    assert fmt.reference
    assert fmt.protects
    assert Level.STRUCTURE in fmt.checks
    assert all(s.startswith(".") or s.count(".") == 1 for s in fmt.suffixes)
    assert all(fmt in SUFFIXES[s] for s in fmt.suffixes)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("kind", ["good", "bad"])
def test_every_format_has_fixtures(fmt: Format, kind: str) -> None:
    assert any((FIXTURES / fmt.name / kind).iterdir())


def test_every_fixture_belongs_to_a_format() -> None:
    assert {p.name for p in FIXTURES.iterdir()} == set(BY_NAME)


@pytest.mark.parametrize("path", GOOD, ids=name_of)
def test_a_good_file_is_good(path: Path) -> None:
    data, anatomy = path.read_bytes(), Anatomy()
    assert bad(look(data, format_of(path), anatomy)) == []
    assert next(f for f in FORMATS if f.magic(data[:HEAD])) is format_of(path)
    assert 0 <= anatomy.protected <= len(data)
    for tensor in anatomy.tensors:
        assert tensor.offset is None or 0 <= tensor.offset <= len(data)
    for s in anatomy.sums:
        assert 0 <= s.offset <= len(data)


@pytest.mark.parametrize("path", BAD, ids=name_of)
def test_a_bad_file_is_bad_in_the_way_its_name_says(path: Path) -> None:
    code = path.name.split("--")[0]
    assert code in CODES
    assert code in {f.code for f in look(path.read_bytes(), format_of(path))}
    assert path.stat().st_size <= 20 * 1024


@pytest.mark.parametrize("path", GOOD, ids=name_of)
def test_every_cut_is_seen(path: Path) -> None:
    data, fmt, anatomy = path.read_bytes(), format_of(path), Anatomy()
    look(data, fmt, anatomy)
    cuts = set(range(len(data)))
    if len(data) > SMALL:
        borders = {t.offset for t in anatomy.tensors if t.offset is not None} | {s.offset for s in anatomy.sums}
        around = {b + d for b in borders for d in (-1, 0, 1)} | set(range(32)) | {len(data) - 1 - i for i in range(128)}
        cuts &= around | set(range(0, len(data), len(data) // 64 + 1))
    blind = BLIND_CUTS.get(fmt.name, lambda _: set())(data)
    missed = [n for n in sorted(cuts - blind) if not is_bad(data[:n], fmt)]
    assert missed == []


def checksummed(path: Path) -> bool:
    """Whether the file's own checksums cover it."""
    anatomy = Anatomy()
    found = look(path.read_bytes(), format_of(path), anatomy)
    return bool(anatomy.sums) and not any(f.code in ("not-checksummed", "needs-key") for f in found)


@pytest.mark.parametrize("path", [p for p in SMALL_GOOD if checksummed(p)], ids=name_of)
def test_every_flipped_bit_is_seen(path: Path) -> None:
    data, fmt, anatomy = bytearray(path.read_bytes()), format_of(path), Anatomy()
    look(bytes(data), fmt, anatomy)
    harmless = HARMLESS.get(fmt.name, lambda *_: set())(bytes(data), anatomy)
    summed = {i for s in anatomy.sums for i in _covered(s.pieces)}
    missed = []
    for i in set(range(len(data))) - harmless:
        for bit in (i % 8,) if i in summed else range(8):  # a CRC sees every single bit, so one per byte shows that the byte is summed
            data[i] ^= 1 << bit
            if not is_bad(bytes(data), fmt):
                missed.append((i, bit))
            data[i] ^= 1 << bit
    assert missed == []


ODD_BYTES = st.sampled_from(
    [b"", b"\0" * 8, b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff", b"PK\3\4", b"PK\1\2", b"PK\5\6", b"(", b"R", b"b", b"u", b"q\0", b"\x0a", b"{}"]
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "overwrite", "copy"]),
        st.integers(0, 1 << 16),
        st.integers(0, 300),
        ODD_BYTES | st.binary(max_size=12),
    ),
    min_size=1,
    max_size=6,
)


def edited(data: bytes, edits: list[tuple[str, int, int, bytes]]) -> bytes:
    out = bytearray(data)
    for what, where, length, new in edits:
        at = where % (len(out) + 1)
        if what == "flip" and at < len(out):
            out[at] ^= 1 << length % 8
        elif what == "cut":
            del out[at : at + length]
        elif what == "insert":
            out[at:at] = new
        elif what == "overwrite":
            out[at : at + len(new)] = new
        else:
            out[at:at] = out[at // 2 : at // 2 + length]
    return bytes(out)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_nothing_but_findings_comes_from_damage(fmt: Format, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from([p for p in SMALL_GOOD + BAD if format_of(p) is fmt]), label="seed")
    other = data.draw(st.sampled_from([b"", *(p.read_bytes() for p in SMALL_GOOD if format_of(p) is fmt)]), label="spliced")
    start = seed.read_bytes()
    spliced = start if not other else start[: len(start) // 2] + other[len(other) // 2 :]
    broken, began = edited(spliced, data.draw(EDITS, label="edits")), time.process_time()
    for f in look(broken, fmt):
        assert f.code in CODES
        assert f.offset is None or f.offset >= 0
    look(broken)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@settings(max_examples=100, deadline=None)
@given(tail=st.binary(max_size=400))
def test_nothing_but_findings_comes_from_noise(fmt: Format, tail: bytes) -> None:
    head = next(p for p in GOOD if format_of(p) is fmt).read_bytes()[:40]
    look(tail, fmt)
    look(head + tail, fmt)


@pytest.mark.parametrize("head", [b"", b"\0", b"\0" * HEAD, b"\x80", b"PK", b"hello world" * 6])
def test_a_magic_needs_its_bytes(head: bytes) -> None:
    assert [f.name for f in FORMATS if f.magic(head)] == []
