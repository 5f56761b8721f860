"""Laws that every format obeys, over every file in fixtures/formats/<name>/{good,bad}: a new format needs
fixtures, not tests.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from counted import at_most
from examples import examples
from helpers import Fixture, bad, claims, look
from hypothesis import given
from hypothesis import strategies as st
from places import FORMAT_FILES, PACKAGE

from ckpt_tools.api import verify
from ckpt_tools.findings import CODES
from ckpt_tools.formats import BY_NAME, FORMATS, HEAD, Anatomy, Format, names
from ckpt_tools.formats.named import Named
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Guard, Level

TINY = 300
SMALL = 4096
GOOD = [Fixture(p) for p in sorted(FORMAT_FILES.glob("*/good/**/*")) if p.is_file()]
BAD = sorted(FORMAT_FILES.glob("*/bad/*"))
SMALLEST = {g.format.name: g for g in sorted(GOOD, key=lambda g: -len(g.data))}


def is_smallest(g: Fixture) -> bool:
    """Of its format."""
    return SMALLEST[g.format.name] is g


EACH = [pytest.param(g, marks=() if is_smallest(g) else pytest.mark.slow, id=g.name) for g in GOOD]
"""One file of each format in the loop of edit and test, all of them in CI."""
SOME = [
    row if is_smallest(g) or i % 4 == 0 else pytest.param(g, marks=pytest.mark.exhaustive, id=row.id)
    for i, (row, g) in enumerate(zip(EACH, GOOD, strict=True))
]
"""For what reads a file many times: one of each format and a quarter of the others."""
EVERY = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["some", "all"]
)
APART = 5
"""In files beside the smallest of a format every so many bytes are tried, and all borders; by night each one."""
SMALL_GOOD = [g for g in GOOD if len(g.data) <= SMALL]


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
    """A MindSpore file is a chain of records without an end mark, so a cut between two records leaves a
    shorter valid file (the layout's signature-changed and --require see it); so does a cut that takes exactly
    the trailer with the checksum."""
    return {0, *(end for _, end in _records(data))}


def _strategy_borders(data: bytes) -> set[int]:
    """The same holds for a strategy file from its first layout on; the number before its records is one byte
    in all fixtures. A group file is cut between two groups."""
    start, key = (0, 0x0A) if data[:1] == b"\n" else (2, 0x1A)
    return {end for k, end in _records(data, start) if k == key}


def _gguf_padding(data: bytes) -> set[int]:
    """Some writers pad the last tensor and some do not; no tensor of the fixtures ends with a zero."""
    return {len(data.rstrip(b"\0"))}


def _stream_borders(data: bytes) -> set[int]:
    """EasyLM's streams say nowhere how many leaves there are: a leaf begins with a pair, of which the first
    is a list of texts."""
    return {0, *(m.start() for m in re.finditer(rb"\x92[\x91-\x9f][\xa1-\xbf]", data))}


def _array_borders(data: bytes) -> set[int]:
    """NumPy's arrays lie one after the other without an end mark."""
    return {m.start() for m in re.finditer(rb"\x93NUMPY", data)}


def _paddle_borders(data: bytes) -> set[int]:
    """A stream of Paddle's tensors does not say how many there are: all of its fixtures' are without levels."""
    out, at, sizes = set[int](), 0, {0: 1, 3: 8, 4: 2, 5: 4, 6: 8, 20: 1, 22: 2, 23: 8, 32: 1}
    while at < len(data):
        n = data[at + 16]
        shape = [data[i] for i in range(at + 23, at + 20 + n, 2)]
        at += 20 + n + math.prod(shape) * sizes[data[at + 21]]
        out.add(at)
    return out


def _line_ends(data: bytes) -> set[int]:
    """A list of checksums does not say how many there are, a line need not end, and a few digits are any
    text.
    """
    ends = {m.start() + d for m in re.finditer(rb"\r?\n", data) for d in range(len(m[0]) + 1)}
    begun = {start + d for start in (0, *ends) for d in range(20)}
    return {*ends, *begun, *range(len(data) if data.count(b"\n") < 2 else 0)}


def _dvc_ends(data: bytes) -> set[int]:
    """YAML ends after any line, and a number or a name after any of its characters."""
    return set(range(len(data)))


BLIND_CUTS: dict[str, Callable[[bytes], set[int]]] = {
    "mindspore_ckpt": _mindspore_borders,
    "mindspore_strategy": _strategy_borders,
    "paddle_tensors": _paddle_borders,
    "gguf": _gguf_padding,
    "msgpack_stream": _stream_borders,
    "npy": _array_borders,
    "eqx": _array_borders,
    "checksums": _line_ends,
    "dvc": _dvc_ends,
    "hf_download": lambda data: set(range(len(data) - 14, len(data))),  # digits of the time
}

# --- checksummed bytes whose flips change nothing


def _deflate_ends(anatomy: Anatomy) -> set[int]:
    """A deflate stream ends at some bit of its last byte; the bits behind that are padding."""
    return {p.offset + p.length - 1 for s in anatomy.sums for p in s.pieces if hasattr(p, "size")}


def _inflated(anatomy: Anatomy, data: bytes | bytearray) -> list[bytes]:
    """What deflate streams hold, over which their checksums are: of a run of zeros it may refer to any other."""
    pieces = [p for s in anatomy.sums for p in s.pieces if hasattr(p, "size")]
    streams = (bytes(data[p.offset : p.offset + p.length]) for p in pieces)
    return [zlib.decompressobj(-15).decompress(stream) for stream in streams] or [bytes(data)]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_a_format_says_what_it_is(fmt: Format) -> None:
    assert fmt.limits
    assert fmt.reference
    assert fmt.protects
    assert Level.STRUCTURE in fmt.checks
    assert all(s.startswith(".") or s.count(".") == 1 for s in fmt.suffixes)
    assert all(fmt.name in names.allowed(f"x{s}") for s in fmt.suffixes)


@pytest.mark.slow
@given(st.sampled_from([row for row in names.named if row.names]), st.data())
def test_every_name_that_an_expression_fits_has_its_format(row: Named, data: st.DataObject) -> None:
    name = data.draw(st.from_regex(row.names, fullmatch=True))
    assert row.name in names.allowed(name)
    assert names.known(name)
    assert names.may_be_index(name) or not row.describes


def test_every_format_has_fixtures_and_every_fixture_belongs_to_a_format() -> None:
    assert {p.name for p in FORMAT_FILES.iterdir()} == set(BY_NAME)
    assert [
        p for p in FORMAT_FILES.iterdir() for kind in ("good", "bad") if not any((p / kind).iterdir())
    ] == []


def test_every_format_is_in_the_list_of_names() -> None:
    folder = PACKAGE / "formats"
    families = {p.stem: p.parent.name for p in folder.glob("*/*.py") if "\nFORMAT = " in p.read_text()}
    assert names.family == families
    assert [f.name for f in FORMATS] == list(names.order)


@pytest.mark.slow
def test_few_formats_are_imported_beside_that_of_a_file() -> None:
    look = """
import sys
from ckpt_tools import Level, verify
from ckpt_tools.formats import names
assert verify([sys.argv[1]], Level.CONTENT).verdict == "ok"
print(*sorted(n for n, family in names.family.items() if f"ckpt_tools.formats.{family}.{n}" in sys.modules))
"""
    for name in ("torch_zip/good/tiny.pt", "safetensors/good/tiny.safetensors"):
        line = [sys.executable, "-c", look, str(FORMAT_FILES / name)]
        loaded = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
        wanted = name.partition("/")[0]
        assert wanted in loaded and len(loaded) < 8 < len(FORMATS) // 4  # a few hold files of others


@pytest.mark.parametrize("good", EACH)
def test_a_good_file_is_good(good: Fixture) -> None:
    anatomy, found = good.anatomy()
    assert bad(found) == []
    if names.is_text(good.format.name):  # as others are: nobody asks what a file is by that
        assert good.format.magic(good.data[:HEAD])
    elif good.home is None:
        first = next(f for f in FORMATS if f.magic(good.data[:HEAD]))
        assert first is good.format or (not good.format.distinct and good.format.magic(good.data[:HEAD]))
    for tensor in anatomy.tensors:
        assert tensor.offset is None or 0 <= tensor.offset <= len(good.data)
    for s in anatomy.sums:
        assert 0 <= s.offset <= len(good.data)
    assert claims(good.files)[1] == []


HELD = {
    "tf_bundle/good/manager/ckpt-2.data-00000-of-00001": "w step optimizer/_iterations w/.ATTRIBUTES/VARIABLE_VALUE _CHECKPOINTABLE_OBJECT_GRAPH",
    "dcp/good/sharded/.metadata": "model.a step scheduler.last_epoch", "json_member/good/trainer_state.json": "log_history global_step",
    "ocdbt/good/orbax_zarr2/d/d4111c2b598141efdba9ea66a7e3cde9": "step lr params.dense.w",
    **{f"mindspore_encrypted/good/{p.stem}": "0.weight 0.bias moments.0.weight global_step" for p in FORMAT_FILES.glob("mindspore_encrypted/*.key")},
}  # fmt: skip
"""What --require finds in a file."""


@pytest.mark.parametrize("name", HELD)
def test_what_a_file_holds_can_be_required(name: str) -> None:
    assert Fixture(FORMAT_FILES / name).anatomy()[0].keys >= set(HELD[name].split())


@pytest.mark.share(4)
@pytest.mark.parametrize("good", SOME)
def test_a_good_file_on_disk_is_good(good: Fixture) -> None:
    """As the command looks at it: a system refuses what bytes in memory may bear."""
    seen = verify([str(good.path if good.home is None else good.home)])
    findings = [f for r in seen.files for f in r.report.findings]
    assert {f.report.verdict for f in seen.files} <= {Verdict.OK, Verdict.SUSPECT}, findings


@pytest.mark.share(3)
@pytest.mark.parametrize("good", EACH)
def test_every_byte_is_explained(good: Fixture) -> None:
    at = 0
    for r in good.regions():
        assert r.offset == at
        assert r.length > 0
        assert r.what != "unexplained", r
        at += r.length
    assert at == len(good.data)


@pytest.mark.share(2, "slow")
@pytest.mark.parametrize("path", BAD, ids=lambda p: "/".join(p.parts[-3::2]))
def test_a_bad_file_is_bad_in_the_way_its_name_says(path: Path) -> None:
    code = path.name.split("--")[0]
    assert code in CODES
    if path.is_dir():
        seen = verify([str(path)], settle=0)
        found = (f for of in (seen, *(entry.report for entry in seen.files)) for f in of.findings)
        assert code in {f.code for f in found}
        assert sum(p.stat().st_size for p in path.rglob("*")) <= 64 * 1024
    else:
        assert code in {f.code for f in look(path.read_bytes(), BY_NAME[path.parts[-3]])}
        assert path.stat().st_size <= 80 * 1024  # an attribute that does not fit into a header has 64 KiB


@pytest.mark.share(4)
@EVERY
@pytest.mark.parametrize("good", SOME)
def test_every_cut_is_seen(good: Fixture, every: bool) -> None:
    data, (anatomy, _) = good.data, good.anatomy()
    cuts = set(range(len(data)))
    borders = {t.offset for t in anatomy.tensors if t.offset is not None} | {s.offset for s in anatomy.sums}
    if len(data) <= SMALL and not every and not is_smallest(good):
        ends = {r.offset + r.length for r in good.regions()}
        around = {b + d for b in borders | ends for d in (-1, 0, 1)} | set(range(8))
        cuts &= around | set(range(zlib.crc32(good.name.encode()) % APART, len(data), APART))
    if len(data) > SMALL:
        around = {b + d for b in borders for d in (-1, 0, 1)} | {
            *range(32),
            *range(len(data) - 128, len(data)),
        }
        cuts &= around | set(range(0, len(data), len(data) // 64 + 1))
    blind = BLIND_CUTS.get(good.format_of(good.own).name, lambda _: set())(data)
    missed = [n for n in sorted(cuts - blind) if not good.notices(data[:n])]
    assert missed == []


@pytest.mark.share(12)
@EVERY
@pytest.mark.parametrize("good", SOME)
def test_every_flipped_bit_is_seen_where_the_map_says_so(good: Fixture, every: bool) -> None:
    """In each byte of the smallest file of a format one bit, which takes turns, or all bits where it has a few
    hundred; of the bytes under a checksum a quarter. In its other files some bytes, and the first and last of
    each range. Every single one with -m exhaustive.
    """
    data, (anatomy, _) = bytearray(good.data), good.anatomy()
    harmless = _deflate_ends(anatomy)
    large = len(data) // SMALL + 1  # every byte of a small file, some of a large one
    smallest = is_smallest(good)
    tiny = smallest and len(data) <= TINY
    sparse = large if every or smallest else APART * large
    apart = sparse if every or tiny or not smallest else 4 * sparse
    every = large == 1 and (every or tiny)
    missed = []
    for r in good.regions():
        if r.guard is Guard.UNPROTECTED:
            continue
        end = r.offset + r.length
        for i in {*range(r.offset, end, apart if r.guard is Guard.CHECKSUM else sparse), end - 1}:
            # a CRC sees every single bit, so one per byte shows that the byte is summed
            for bit in range(8) if every and r.guard is not Guard.CHECKSUM else (i % 8,):
                data[i] ^= 1 << bit
                seen = i in harmless or good.notices(bytes(data))
                if not seen and _inflated(anatomy, data) != _inflated(anatomy, good.data):
                    missed.append((i, bit, r.what))
                data[i] ^= 1 << bit
    assert missed == []


ODD_BYTES = st.sampled_from([
    b"", b"\0" * 8, b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff", b"PK\3\4", b"PK\1\2", b"PK\5\6", b"(", b"R", b"b", b"u",
    b"q\0", b"\x0a", b"{}",
])  # fmt: skip
WAYS = st.sampled_from(["flip", "cut", "insert", "overwrite", "copy"])
EDIT = st.tuples(WAYS, st.integers(0, 1 << 16), st.integers(0, 300), ODD_BYTES | st.binary(max_size=12))
EDITS = st.lists(EDIT, min_size=1, max_size=6)


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


def _bad(fmt: Format) -> list[bytes]:
    return [p.read_bytes() for p in BAD if p.is_file() and p.parts[-3] == fmt.name]


@pytest.mark.share(6)
@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@examples(150)
@given(data=st.data())
def test_nothing_but_findings_comes_from_damage(fmt: Format, data: st.DataObject) -> None:
    good = [g for g in SMALL_GOOD if g.format is fmt]
    seeds = [(g.data, tuple(g.said.get(g.own, ()))) for g in good] + [(d, ()) for d in _bad(fmt)]
    start, said = data.draw(st.sampled_from(seeds), label="seed")
    other = data.draw(st.sampled_from([b"", *(g.data for g in good)]), label="spliced")
    spliced = start if not other else start[: len(start) // 2] + other[len(other) // 2 :]
    broken = edited(spliced, data.draw(EDITS, label="edits"))
    with at_most(3_000_000):
        for f in [*look(broken, fmt), *(look(broken, fmt, claims=said) if said else ())]:
            assert f.code in CODES
            assert f.offset is None or f.offset >= 0
        look(broken)


@pytest.mark.share(2)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@examples(100)
@given(tail=st.binary(max_size=400))
def test_nothing_but_findings_comes_from_noise(fmt: Format, tail: bytes) -> None:
    head = next(g for g in GOOD if g.format is fmt).data[:40]
    look(tail, fmt)
    look(head + tail, fmt)


@pytest.mark.parametrize("head", [b"", b"\0", b"\0" * HEAD, b"\x80", b"PK", b"hello world" * 6])
def test_a_magic_needs_its_bytes(head: bytes) -> None:
    # a list of checksums is any text, and known by its name alone
    found = [f.name for f in FORMATS if f.magic(head) and f.name != "checksums"]
    assert [name for name in found if not (names.is_text(name) and head.isascii() and b"hello" in head)] == []
