"""torch.save's zip archives and TorchScript: directory, headers, pickle and storages must agree with each
other to the last byte.

The record ``.data/serialization_id`` has 20 digits that digest the names of the archive's records, then 20
digits that digest their stored CRCs.

Facts: caffe2/serialize/inline_container.cc (writeSerializationId, combinedRecordCrc32). The names are
digested in the order in which an ``unordered_set<string>`` of GNU's C++ library yields them, with its hash:
other systems have other orders and hashes, so only Linux' digest can be worked out.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.archives.zip import (
    DEFLATED,
    STORED,
    add_sums,
    have_no_sums,
    is_numpy_zip,
    read_record,
    read_zip,
)
from ckpt_tools.formats.archives.zip_directory import Record
from ckpt_tools.formats.common.format import HEAD, Anatomy, Damage, check_inner, limit, make_format, structure
from ckpt_tools.formats.numpy.npy import MAGIC, read_arrays
from ckpt_tools.formats.pickles.judged import RUNS, read_judged
from ckpt_tools.formats.torch import torch_legacy
from ckpt_tools.formats.torch.contents import Contents, read_contents
from ckpt_tools.formats.torch.tensors import FileRange, Storage, is_proto, legacy_magic, list_storage_keys
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import BytesSource, Source

# ---- The code of a TorchScript archive: text that torch.jit.load compiles, and whose ``__setstate__``
# functions it runs.
#
# Facts: torch/csrc/jit/serialization/import_source.cpp (code reaches only ``torch`` and ``ops``),
# frontend/lexer.cpp, and the operators of torch 2.13, torchvision and torchaudio that take a file's name.


_MAX_CODE = 16 << 20
"""The most bytes of code of one archive that are searched."""
_GAP = rb"(?:\s|\\|#[^\n]*\n)*"
_FILE_CALL = re.compile(
    rb"\b(from_file|read_file|write_file|load_tensor|sox_io\w+|sox_effects_apply_effects_file"
    rb"|aten::save)\b|(?<!\bself)\." + _GAP + rb"(save)\b|\." + _GAP + rb"(save)" + _GAP + rb"\("
)
_HIDDEN_CALL = re.compile(
    rb"[\"']save[\"']|," + _GAP + rb"[\"'][^\"'\n]{0,64}\\[^\"'\n]{0,64}[\"']" + _GAP + rb"\)"
    rb"|\w[\"']" + _GAP + rb"[\"']\w|\bself\s*=[^=]"
)
"""A name for getattr that is an operator's, has escapes or is in pieces; another ``self``: not torch's."""


def _judge_script(source: Source, records: Sequence[Record], anatomy: Anatomy) -> Iterator[Finding]:
    """Yield ``needs-trust``, and findings for code that opens files or hides its calls. Raise Damage."""
    anatomy.metadata["torchscript"] = True
    why = "a TorchScript archive: whoever loads it runs the code in it"
    yield finding("needs-trust", why, hint="load it only if you trust who wrote it")
    left = _MAX_CODE
    for r in records:
        if r.payload < 0 or not r.name.endswith((".py", "bytecode.pkl")):
            continue
        left -= r.size
        if left < 0:
            yield finding("unread-pickle", "the archive has more code than is looked into", offset=r.place)
            break
        code = read_record(source, r, _MAX_CODE)
        if (found := _FILE_CALL.search(code)) is not None:
            name = next(filter(None, found.groups())).decode()
            why = f"the code in {r.name[:100]!r} calls {name!r}, which opens or writes files"
            yield finding("unsafe-pickle", why, offset=r.place)
        elif (b"getattr" in code or b".save" in code) and _HIDDEN_CALL.search(code):
            why = f"the code in {r.name[:100]!r} hides what it calls"
            yield finding("unsafe-pickle", why, offset=r.place)


PICKLES = (".pkl", ".pickle", ".pt", ".pth")
_BEGINNING = 1 << 10
"""Bytes of a compressed record that are inflated at a time, to see how it begins."""
_INFLATE, _FEW, _RATIO = 8 << 20, 1 << 20, 8
"""Limits on a compressed pickle: its most bytes, the bytes that are always read, and the ratio by which more
may inflate: one byte may make an object of 64 bytes, and pickles of state_dicts deflate to a quarter. torch
stores its pickles, so only repacked files have a compressed one.
"""


def magic(head: bytes) -> bool:
    """Return whether a zip's first record is or lies in a top folder, unlike Keras' and NumPy's."""
    if not head.startswith(b"PK\3\4"):
        return False
    n = int.from_bytes(head[26:28], "little")
    name = head[30 : 30 + n]
    top, slash, _ = name.partition(b"/")
    if n > len(name) and is_numpy_zip(head):
        return False
    return bool(top) and (bool(slash) or n > len(name)) and not name.endswith(b".npy")


def _check(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check an archive's directory, small records, code and pickles against each other. Raise Damage."""
    records = yield from read_zip(source, anatomy, torch=True)
    if not records:
        raise Damage("bad-header", "the archive has no records", 0)
    top = records[0].name.partition("/")[0] + "/"
    anatomy.metadata["archive_name"] = top[:-1][:256]  # the name of the file that it was first saved to
    for r in records:
        if not r.name.startswith(top):
            what = f"record {r.name[:200]!r} lies outside the archive's folder {top[:100]!r}"
            yield finding("bad-header", what, offset=r.header)
    by_name = {r.name.removeprefix(top): r for r in records}
    id_agrees = False
    if NAME in by_name:
        id_agrees = yield from check_serialization_id(source, records, by_name[NAME], top, anatomy)
    yield from _add_checked_sums(source, records, by_name, id_agrees, anatomy)
    yield from _check_small_records(source, by_name, anatomy)
    script = "constants.pkl" in by_name
    if script or "model.json" in by_name:
        yield from _judge_script(source, records, anatomy)
    if script:
        yield from _check_pickle(source, by_name, "constants.pkl", anatomy, script=script)
    if "data.pkl" in by_name:
        yield from _check_pickle(source, by_name, "data.pkl", anatomy, script=script)
        return
    yield from other_pickles(source, records, anatomy, arrays=True)
    if not by_name.keys().isdisjoint((".data/extern_modules", "extern_modules")):
        yield finding("needs-trust", "a torch.package archive: it carries Python source that loading it runs")
    elif "archive_format" in by_name:  # torch/export/pt2_archive/constants.py
        why = "a torch.export archive: its program and its libraries were not looked at"
        yield finding("needs-trust", why)
    elif "model.json" not in by_name:  # TorchScript before 1.3 kept its structure there
        why = "the archive has no data.pkl: its writer failed before it came to that, or was not torch"
        raise Damage("bad-header", why, 0)


def other_pickles(
    source: Source, records: Sequence[Record], anatomy: Anatomy, *, arrays: bool = False
) -> Iterator[Finding]:
    """Yield the findings RUNS of pickles and torch files in any zip archive (if ``arrays``, also of NumPy's
    arrays of objects); add their names in no list, and tensors that are not compressed, to ``anatomy``.
    """
    for r in records:
        head = read_begin(source, r, len(MAGIC)) if r.payload >= 0 else b""
        if not is_proto(head) and not (arrays and head == MAGIC) and not r.name.endswith(PICKLES):
            continue
        if r.payload < 0:
            continue
        inner = Anatomy()
        try:
            if r.method == STORED:
                found = [*check_inner(source, r.payload, r.stored, judge_inner, inner)]
                stem = r.name[:200].rpartition(".")[0]
                anatomy.tensors += (replace(t, name=f"{stem}.{t.name}") for t in inner.tensors)
            else:
                found = [*structure(BytesSource(inflate(source, r)), inner, judge_inner)]
        except Damage as e:
            found = [e.finding]
        anatomy.unlisted += inner.unlisted
        yield from (replace(f, offset=r.place) for f in found if f.code in RUNS)


def read_begin(source: Source, record: Record, length: int) -> bytes:
    """Return the first bytes of a record, uncompressed; b"" if they cannot be read."""
    if record.method == STORED:
        return source.read(record.payload, min(length, record.stored))
    inflater, data = zlib.decompressobj(-15), b""
    with suppress(zlib.error):  # tables of codes, or blocks without content, may come first
        for at in range(0, record.stored if record.method == DEFLATED else 0, _BEGINNING):
            piece = source.read(record.payload + at, min(_BEGINNING, record.stored - at))
            data += inflater.decompress(piece, length - len(data))
            if len(data) == length or inflater.eof:
                break
    return data


def judge_inner(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check a file inside another: a zip or legacy file of torch.save, a NumPy array, or a plain pickle."""
    head = source.read(0, min(HEAD, source.size))
    if head.startswith(b"PK\3\4"):
        yield from _check(source, anatomy)
    elif head.startswith(MAGIC):
        yield from read_arrays(source, anatomy)
    elif legacy_magic(head):
        yield from torch_legacy.FORMAT.checks[Level.STRUCTURE](source, anatomy)
    else:
        try:
            yield from read_judged(source, 0, source.size, anatomy)
        except Damage as e:  # names before the damage were judged
            yield e.finding


def _add_checked_sums(
    source: Source, records: Sequence[Record], by_name: dict[str, Record], id_agrees: bool, anatomy: Anatomy
) -> Iterator[Finding]:
    """Add the stored CRCs to ``anatomy``, and report those that torch never computed (skip_data, no CRCs)."""
    skipped: set[Record] = set()
    data = [r for name, r in by_name.items() if name.startswith("data/") and r.size]
    crcs = {r.crc for r in data}
    if have_no_sums(records):
        why = "every record has the checksum 0: it was switched off when this file was saved"
        yield finding("checksum-off", why)
        yield finding("not-checksummed", "nothing in this file is protected by a checksum")
        skipped.update(records)
    elif crcs == {0}:
        # skip_data leaves room for the storages, whose bytes the user may write later
        empty = all(_is_blank(source, r) for r in data[:64])
        if empty:
            why = "all storages are zero and have no checksum: the file was saved with skip_data"
            yield finding("skeleton", why, offset=data[0].payload)
        if empty or id_agrees or len(data) > 1:
            yield finding("not-checksummed", "no storage in this file is protected by a checksum")
            skipped.update(data)
    explained = (by_name.get(NAME), by_name.get("byteorder"))  # their own checks explain them
    add_sums([r for r in records if r not in explained or r not in skipped], anatomy, skipped)


def _is_blank(source: Source, r: Record) -> bool:
    """Return whether a record begins and ends with zeros, in up to 4096 bytes each."""
    n = min(r.stored, 4096)
    return r.payload >= 0 and not any(any(source.read(r.payload + at, n)) for at in (0, r.stored - n))


def _check_small_records(source: Source, by_name: dict[str, Record], anatomy: Anatomy) -> Iterator[Finding]:
    """Check the one-line records (caffe2/serialize/inline_container.cc: versions 1 to 10)."""
    versions = {"version", ".data/version"} & by_name.keys()
    if not versions:
        yield finding("bad-header", "the archive has no version record")
    for name in (*sorted(versions), "byteorder", ".format_version", ".storage_alignment"):
        r = by_name.get(name)
        if r is None:
            continue
        value = read_record(source, r, 64).decode("latin-1").strip() if r.size <= 64 else ""
        if name == "byteorder":
            anatomy.explain(r.payload, r.stored, "byteorder: little or big")
            if value == "big":
                anatomy.metadata["byteorder"] = value
            sensible = value in ("little", "big")
        else:
            number = int(value) if value.isascii() and value.isdigit() else -1
            sensible = 1 <= number <= 20 if name in versions else number >= 0
        if not sensible:
            yield finding("bad-header", f"record {name!r} holds {value[:20]!r}", offset=r.place)
        elif name == ".storage_alignment" and int(value):
            yield from _find_unaligned(by_name, int(value), value)


def _find_unaligned(by_name: Mapping[str, Record], alignment: int, text: str) -> Iterator[Finding]:
    """Yield findings for storages not aligned as the archive says; only torch's records have flag bit 3."""
    for name, r in by_name.items():
        if name.startswith("data/") and r.flags & 8 and r.payload >= 0 and r.payload % alignment:
            why = f"record {name[:100]!r} is not aligned to {text} bytes as the others are"
            yield finding("odd-header", why, offset=r.payload)


def inflate(source: Source, record: Record) -> bytes:
    """Return the bytes of a compressed pickle. Raise Damage if it is too large or its header is damaged."""
    limit = min(_INFLATE, max(_FEW, _RATIO * record.stored))
    if record.size > limit:
        why = f"record {record.name[:200]!r} is a compressed pickle of {record.size:,} bytes"
        raise Damage("unread-pickle", f"{why}; more than {limit:,} are not read", record.header)
    return read_record(source, record, limit)


def _check_pickle(
    source: Source, by_name: dict[str, Record], name: str, anatomy: Anatomy, *, script: bool
) -> Iterator[Finding]:
    """Check ``data.pkl`` or ``constants.pkl`` against the records of its storages; add its tensors."""
    record, folder = by_name[name], name.removesuffix(".pkl") + "/"
    if record.method == STORED and record.payload >= 0:
        start, stop, within = record.payload, record.payload + record.stored, source
    else:
        start, stop, within = 0, record.size, BytesSource(inflate(source, record))
    harmless = ("__torch__", "torch.jit._pickle") if script else ()
    contents = yield from read_contents(within, start, stop, anatomy, harmless)
    end = contents.pickled.end
    if end != stop:
        yield finding("trailing-data", f"record {name!r} has {stop - end} bytes after its pickle", offset=end)
    ranges = yield from _find_storage_ranges(contents, by_name, folder)
    keys = list_storage_keys(contents.pickled)
    for other, r in by_name.items():
        key = other.removeprefix(folder)
        if key == other or key in keys or other.endswith("/"):
            continue
        if not script or folder != "data/" or key.isdigit():  # TorchScript has other files in data/, too
            yield finding("extra-storage", f"no tensor refers to record {other[:100]!r}", offset=r.header)
    yield from contents.add_tensors(ranges, anatomy, "constants" if name == "constants.pkl" else "")
    if name == "data.pkl":
        anatomy.metadata |= contents.scalars.metadata
        anatomy.keys |= contents.scalars.keys


def _find_storage_ranges(
    contents: Contents, by_name: Mapping[str, Record], folder: str
) -> Generator[Finding, None, dict[str, FileRange]]:
    """Return the ranges of a pickle's storages by key; yield a finding for each missing or unfit record."""
    ranges: dict[str, FileRange] = {}
    for s in contents.list_storages():
        if not isinstance(s, Storage):
            yield s
            continue
        record_name, nbytes = repr(folder + s.key[:80]), s.nbytes
        r = by_name.get(folder + s.key)
        if r is None:
            why = f"tensors need storage {s.key[:80]!r}, but there is no record {record_name}"
            yield finding("missing-storage", why, offset=s.offset)
            continue
        if r.size != nbytes:
            need = f"its {s.numel:,} elements of {s.dtype} need {nbytes:,}"
            yield finding(
                "storage-size", f"record {record_name} has {r.size:,} bytes, {need}", offset=r.place
            )
        stored = r.method == STORED
        if not stored and r.size:
            danger = f"torch.load(mmap=True) would take its {r.stored:,} compressed bytes for numbers"
            yield finding(
                "compressed-storage", f"record {record_name} is compressed: {danger}", offset=r.place
            )
        ranges[s.key] = FileRange(r.payload if stored and r.payload >= 0 else None, r.size)
    return ranges


FORMAT = make_format("torch_zip", magic, limit(_check), loader="torch")


NAME = ".data/serialization_id"
_MASK = (1 << 64) - 1
_BUCKETS = (1, 13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061)
"""The numbers of buckets that a growing set has (libstdc++, _Prime_rehash_policy: from twice the last number
on the next prime of its list).
"""
_MULTIPLIER, _SEED = 0xC6A4A7935BD1E995, 0xC70F6907
_REMEMBERED = 1 << 16
"""The most characters of names whose digest is remembered: the files of a job have the same records."""
_NAMES = 4096  # the most records whose names are digested if the id has a checksum, which proves the digits


def check_serialization_id(
    source: Source, records: Sequence[Record], own: Record, top: str, anatomy: Anatomy
) -> Generator[Finding, None, bool]:
    """Compare the digits of the record ``own`` with the other records in the folder ``top``. Return whether
    the digest of the stored CRCs agrees; the digest of the names only tells which system wrote the file.
    """
    digits = read_record(source, own, 64) if own.size <= 64 else b""
    if len(digits) != 40 or not digits.isdigit():
        yield finding("bad-header", "the serialization id is not 40 digits", offset=own.place)
        return False
    others = [r for r in records if r is not own]
    want = int(digits[20:])
    agrees = _fold_hashes([r.crc for r in others if r.size]) == want
    agrees = agrees or _fold_hashes(_find_digested_crcs(source, others)) == want
    if not agrees:
        why = "the serialization id does not agree with the records' stored checksums"
        yield finding("crc-mismatch", why, offset=own.payload + 20)
    wrong = 20  # digits for the names that are not Linux'
    if len(others) <= (_NAMES if own.crc else _BUCKETS[-1]):
        wrong = yield from _check_name_digits([r.name.removeprefix(top) for r in others], digits[:20], own)
    guard = Guard.UNPROTECTED if wrong else Guard.STRUCTURE
    anatomy.explain(own.payload, 20, "serialization id: digest of the names", guard)
    anatomy.explain(own.payload + 20, 20, "serialization id: digest of the checksums")
    return agrees


def _check_name_digits(names: list[str], digits: bytes, own: Record) -> Generator[Finding, None, int]:
    """Return how many of the id's 20 ``digits`` for the names are not Linux's; yield a finding if any."""
    small = len(names) <= _NAMES and sum(map(len, names)) <= _REMEMBERED
    right = b"%020d" % (_digest_names if small else _digest_names.__wrapped__)(tuple(names))
    wrong = sum(a != b for a, b in zip(right, digits, strict=True)) if right != digits else 0
    half = "the serialization id's half for the names"
    if wrong == 1:  # another system's digits would nearly all differ
        why = f"{half} has a damaged digit: {right.decode()} is right"
        yield finding("odd-header", why, offset=own.payload)
    elif wrong:
        why = f"{half} is not what Linux writes: another system wrote the file, or records were renamed"
        yield finding("odd-header", why, offset=own.payload, severity=Severity.NOTE)
    return wrong


@lru_cache(8)
def _digest_names(names: tuple[str, ...]) -> int:
    """Return the digest of records' names in the serialization id that Linux writes."""
    return _fold_hashes(order_hashes([hash_name(n.encode("utf-8", "surrogateescape")) for n in names]))


def _fold_hashes(values: Iterable[int]) -> int:
    """Fold hashes or CRCs, in their order, into 64 bits, as torch's serialization id does."""
    out = 0
    for v in values:
        out ^= (v + 0x9E3779B9 + (out << 6) + (out >> 2)) & _MASK
    return out


def _find_digested_crcs(source: Source, records: Sequence[Record]) -> Iterator[int]:
    """Yield the CRCs that the writer digests: also false ones, in payloads that look like a descriptor."""
    for r in records:
        if r.stored >= 8 and r.payload >= 0:
            head = source.read(r.payload, 8)
            if head.startswith(b"PK\7\x08"):
                yield int.from_bytes(head[4:], "little")
        if r.size:
            yield r.crc


def hash_name(data: bytes) -> int:
    """Return the MurmurHash64A of a name with the seed of libstdc++ (hash_bytes.cc)."""
    out, whole = _SEED ^ (len(data) * _MULTIPLIER & _MASK), len(data) & ~7
    for i in range(0, whole, 8):
        k = int.from_bytes(data[i : i + 8], "little") * _MULTIPLIER & _MASK
        out = (out ^ ((k ^ k >> 47) * _MULTIPLIER & _MASK)) * _MULTIPLIER & _MASK
    if len(data) > whole:
        out = (out ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    out = (out ^ out >> 47) * _MULTIPLIER & _MASK
    return out ^ out >> 47


def order_hashes(hashes: Sequence[int]) -> Iterator[int]:
    """Yield hashes in the order of an unordered_set (libstdc++, hashtable.h): a node goes to the front of its
    bucket, or of the list if the bucket is empty. Growing moves all nodes, in the list's order, by this rule.
    """
    end = len(hashes)  # stands for the list's head: the node before the first
    after = [end] * (end + 1)  # node -> next node; the head again at the list's end
    before: dict[int, int] = {}  # bucket -> the node before its first one
    buckets = 1

    def put(node: int) -> None:
        bucket = hashes[node] % buckets
        at = before.get(bucket, end)
        if bucket not in before:
            before[bucket] = end
            if after[end] != end:
                before[hashes[after[end]] % buckets] = node
        after[node], after[at] = after[at], node

    sizes = iter(_BUCKETS)
    for node in range(end):
        if node >= buckets:
            buckets = next(n for n in sizes if n > node)
            first, after[end] = after[end], end
            before.clear()
            while first != end:
                following = after[first]
                put(first)
                first = following
        put(node)
    at = after[end]
    while at != end:
        yield hashes[at]
        at = after[at]
