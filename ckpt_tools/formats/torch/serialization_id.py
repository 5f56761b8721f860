"""``.data/serialization_id``: 20 digits that digest the names of a torch archive's records, then 20 that
digest their stored CRCs.

Facts: caffe2/serialize/inline_container.cc (writeSerializationId, combinedRecordCrc32). The names are folded
in the order in which an ``unordered_set<string>`` of GNU's C++ library yields them, with its hash: other
systems have others, so only Linux' can be worked out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import lru_cache

from ckpt_tools.findings import finding
from ckpt_tools.formats.archives.zip import read_record
from ckpt_tools.formats.archives.zip_directory import Record
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

NAME = ".data/serialization_id"
_MASK = (1 << 64) - 1
_BUCKETS = (1, 13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061)
"""Numbers of buckets that the set grows through (libstdc++, _Prime_rehash_policy: the next prime of its list
from twice the last on).
"""
_MULTIPLIER, _SEED = 0xC6A4A7935BD1E995, 0xC70F6907
_REMEMBERED = 1 << 16
"""Characters of names at most whose digest is remembered: the files of a job have the same records."""
_FEW = 4096  # records whose names are digested though their own checksum already vouches for the digits


def serialization_id(
    source: Source, records: Sequence[Record], own: Record, top: str, anatomy: Anatomy
) -> Generator[Finding, None, bool]:
    """Compare the digits with the records in the folder ``top``; returns whether the stored CRCs are those
    that were digested. The half for the names only says who wrote the file.
    """
    digits = read_record(source, own, 64) if own.size <= 64 else b""
    if len(digits) != 40 or not digits.isdigit():
        yield finding("bad-header", "the serialization id is not 40 digits", offset=own.place)
        return False
    others = [r for r in records if r is not own]
    want = int(digits[20:])
    agrees = _digest([r.crc for r in others if r.size]) == want
    agrees = agrees or _digest(_find_folded(source, others)) == want
    if not agrees:
        why = "the serialization id does not agree with the records' stored checksums"
        yield finding("crc-mismatch", why, offset=own.payload + 20)
    off = 20  # digits of the names' half that are not Linux'
    if len(others) <= (_FEW if own.crc else _BUCKETS[-1]):
        off = yield from _check_names([r.name.removeprefix(top) for r in others], digits[:20], own)
    guard = Guard.UNPROTECTED if off else Guard.STRUCTURE
    anatomy.explain(own.payload, 20, "serialization id: digest of the names", guard)
    anatomy.explain(own.payload + 20, 20, "serialization id: digest of the checksums")
    return agrees


def _check_names(names: list[str], digits: bytes, own: Record) -> Generator[Finding, None, int]:
    """How many digits of the half for the names are not those that Linux writes."""
    small = len(names) <= _FEW and sum(map(len, names)) <= _REMEMBERED
    right = b"%020d" % (_digest_names if small else _digest_names.__wrapped__)(tuple(names))
    off = sum(a != b for a, b in zip(right, digits, strict=True)) if right != digits else 0
    half = "the serialization id's half for the names"
    if off == 1:  # another system's digits would nearly all differ
        why = f"{half} has a damaged digit: {right.decode()} is right"
        yield finding("odd-header", why, offset=own.payload)
    elif off:
        why = f"{half} is not what Linux writes: another system wrote the file, or records were renamed"
        yield finding("odd-header", why, offset=own.payload, severity=Severity.NOTE)
    return off


@lru_cache(8)
def _digest_names(names: tuple[str, ...]) -> int:
    return _digest(in_order([name_hash(name.encode("utf-8", "surrogateescape")) for name in names]))


def _digest(values: Iterable[int]) -> int:
    out = 0
    for v in values:
        out ^= (v + 0x9E3779B9 + (out << 6) + (out >> 2)) & _MASK
    return out


def _find_folded(source: Source, records: Sequence[Record]) -> Iterator[int]:
    """The CRCs as the writer folds them, with payloads that begin like a data descriptor."""
    for r in records:
        if r.stored >= 8 and r.payload >= 0:
            head = source.read(r.payload, 8)
            if head.startswith(b"PK\7\x08"):
                yield int.from_bytes(head[4:], "little")
        if r.size:
            yield r.crc


def name_hash(data: bytes) -> int:
    """MurmurHash64A with the seed of libstdc++ (hash_bytes.cc)."""
    out, whole = _SEED ^ (len(data) * _MULTIPLIER & _MASK), len(data) & ~7
    for i in range(0, whole, 8):
        k = int.from_bytes(data[i : i + 8], "little") * _MULTIPLIER & _MASK
        out = (out ^ ((k ^ k >> 47) * _MULTIPLIER & _MASK)) * _MULTIPLIER & _MASK
    if len(data) > whole:
        out = (out ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    out = (out ^ out >> 47) * _MULTIPLIER & _MASK
    return out ^ out >> 47


def in_order(hashes: Sequence[int]) -> Iterator[int]:
    """The hashes in the order of an unordered_set (libstdc++, hashtable.h): a node goes to the front of its
    bucket, or of the list if that is empty; growing moves every node, in the list's order, by the same rule.
    """
    end = len(hashes)  # stands for the list's head: the node before the first
    after = [end] * (end + 1)  # node -> next node; the head again at the list's end
    before: dict[int, int] = {}  # bucket -> the node before its first one
    n = 1

    def put(node: int) -> None:
        bucket = hashes[node] % n
        at = before.get(bucket, end)
        if bucket not in before:
            before[bucket] = end
            if after[end] != end:
                before[hashes[after[end]] % n] = node
        after[node], after[at] = after[at], node

    sizes = iter(_BUCKETS)
    for node in range(end):
        if node >= n:
            n = next(b for b in sizes if b > node)
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
