"""NeMo 1's .nemo: a tar (compressed by gzip before version 1.7) with model_config.yaml, the weights as torch
archives or as a directory of DCP files, and other files that the model needs.

Facts: NeMo nemo/core/connectors/save_restore_connector.py (_make_nemo_file_from_folder, _unpack_nemo_file),
nemo/collections/nlp/parts/nlp_overrides.py (NLPSaveRestoreConnector); RFC 1952.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ckpt_tools.checksum.sums import Deflated, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.archives.tar import Member, read_members
from ckpt_tools.formats.common.format import (
    Anatomy,
    Check,
    Damage,
    check_inner,
    limit,
    make_format,
    structure,
)
from ckpt_tools.formats.dcp import dcp
from ckpt_tools.formats.numpy.npy import MAGIC
from ckpt_tools.formats.pickles.judged import RUNS
from ckpt_tools.formats.torch import torch_legacy, torch_zip
from ckpt_tools.formats.torch.tensors import is_proto
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import BytesSource, Source, Window

_GZIP = b"\x1f\x8b\x08"
_BEGINNINGS = (b"././@PaxHeader", b"./", b".\0", b"././@LongLink", _GZIP)
_HEAD = 10
_TRAILER = 8
_COUNTED = 3 << 30
"""The most compressed bytes whose uncompressed length is sure: gzip stores it modulo 4 GiB."""
_MAX_HEADER = 4096  # bytes of gzip's header, names included
_MANY = 100_000
"""The most headers: an artifact has two, a checkpoint of DCP a few for each rank."""
_CONFIG = "model_config.yaml"
_INFLATED = 64 << 20
"""The most bytes of a compressed archive, packed or unpacked, that are unpacked into memory."""


def magic(head: bytes) -> bool:
    """Return whether a file begins like gzip, or like a tar to which Python's tarfile added a directory."""
    return head.startswith(_BEGINNINGS)


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check a .nemo archive: the tar, its torch and DCP members, and that configuration and weights exist."""
    if source.read(0, min(source.size, len(_GZIP))) == _GZIP:
        yield from _check_compressed(source, anatomy)
        return
    members = yield from read_members(source, anatomy, _MANY)
    yield from _judge_dcp_pickles(source, members, anatomy)
    names = {m.name.removeprefix("./") for m in members}
    anatomy.keys |= names
    if _CONFIG not in names:
        yield finding("bad-header", f"the archive has no {_CONFIG!r}, which NeMo reads first", offset=0)
    if not any(name.endswith((".ckpt", ".pt", ".distcp")) for name in names):
        yield finding("bad-header", "the archive holds no weights", offset=0)
    indexed = {m.name.rpartition("/")[0] for m in members if m.name.endswith("/.metadata")}
    for m in members:
        home = m.name.rpartition("/")[0]
        if m.name.endswith(".distcp") and home not in indexed:
            indexed.add(home)  # one finding for each directory
            yield finding("bad-header", f"{home[:100]!r} has data of DCP and no .metadata", offset=m.header)
    for m in members:
        yield from _check_member(source, m, anatomy)


def _judge_dcp_pickles(source: Source, members: Sequence[Member], anatomy: Anatomy) -> Iterator[Finding]:
    """Yield findings on code that pickles run: in each index of DCP, and in the objects that it describes."""
    by_name = {m.name.removeprefix("./"): m for m in members}
    for name, m in by_name.items():
        home, _, last = name.rpartition("/")
        if last == ".metadata":
            index = yield from _judge_member(source, m, dcp.FORMAT.checks[Level.STRUCTURE], anatomy)
            for path, claim in index.members.items():
                if (data := by_name.get(f"{home}/{path}")) is not None:
                    yield from _judge_member(source, data, claim.check, anatomy)


def _judge_pickles(source: Source, m: Member, anatomy: Anatomy) -> Iterator[Finding]:
    """Yield findings on code that a member runs, if its beginning or suffix says that it may be pickled."""
    head = source.read(m.begin, min(m.end - m.begin, 64))
    if is_proto(head) or head.startswith((b"PK\3\4", MAGIC)) or m.name.endswith(torch_zip.PICKLES):
        yield from _judge_member(source, m, torch_zip.judge_inner, anatomy)


def _judge_member(
    source: Source, m: Member, check: Check, anatomy: Anatomy
) -> Generator[Finding, None, Anatomy]:
    """Run a check on a member; yield only findings on code that pickles run. Return the member's anatomy."""
    inner = Anatomy()
    for f in structure(Window(source, m.begin, m.end - m.begin), inner, check):
        if f.code in RUNS:
            yield replace(f, offset=m.begin)
    anatomy.named(inner)
    return inner


def _check_member(source: Source, m: Member, anatomy: Anatomy) -> Iterator[Finding]:
    """Check a member of torch.save; of any other member, judge pickles in it and explain its bytes."""
    length, title = m.end - m.begin, m.name.removeprefix("./")[:200]
    head = source.read(m.begin, min(length, 64))
    for fmt in (torch_zip.FORMAT, torch_legacy.FORMAT):
        if title.endswith((".ckpt", ".pt")) and fmt.magic(head):
            check, before = fmt.checks[Level.STRUCTURE], len(anatomy.tensors)
            yield from check_inner(source, m.begin, length, check, anatomy, prefix=f"{title}: ")
            if home := title.rpartition("/")[0]:  # a rank's: other ranks have tensors of these names
                own = anatomy.tensors[before:]
                anatomy.tensors[before:] = [replace(t, name=f"{home}/{t.name}") for t in own]
            return
    if title.endswith(".ckpt"):
        yield finding("bad-header", f"member {title!r} is not a torch archive", offset=m.begin)
    yield from _judge_pickles(source, m, anatomy)
    anatomy.explain(m.begin, length, f"member {title!r}, which is not looked at", Guard.UNPROTECTED)


def _check_compressed(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check a gzip archive by its one CRC-32, which covers all bytes inside; judge the pickles inside."""
    begin = _find_payload(source)
    end = source.size - _TRAILER
    data = b""
    if 0 < end - begin <= _INFLATED:
        with suppress(zlib.error):
            data = zlib.decompressobj(-15).decompress(source.read(begin, end - begin), _INFLATED + 1)
    if end - begin > _INFLATED or len(data) > _INFLATED:
        why = "the archive is compressed and so large that nobody looked at what its pickles call"
        yield finding("unread-pickle", why, offset=begin)
    else:
        inner = Anatomy()
        for f in structure(BytesSource(data), inner, _check_unpacked):
            if f.severity > Severity.NOTE:
                yield replace(f, offset=begin)
        anatomy.named(inner)
    if end <= begin:
        raise Damage("truncated", "the file ends within gzip's header or trailer", source.size)
    anatomy.explain(0, begin, "gzip header: time and system of the writer", Guard.UNPROTECTED)
    trailer = source.read(end, _TRAILER)
    anatomy.explain(end, _TRAILER, "gzip's CRC-32 and length")
    if end - begin > _COUNTED:
        what = "compressed data of more than 3 GiB"
        yield finding("not-checksummed", f"{what}: gzip's length of it is ambiguous, so it is not read")
        anatomy.explain(begin, end - begin, what, Guard.UNPROTECTED)
        return
    crc, size = (int.from_bytes(trailer[at : at + 4], "little") for at in (0, 4))
    anatomy.sums.append(Sum("the archive", crc, (Deflated(begin, end - begin, size),), begin))


def _check_unpacked(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the tar that was in a gzip archive: names of members, and pickles among them."""
    members = yield from read_members(source, anatomy, _MANY)
    yield from _judge_dcp_pickles(source, members, anatomy)
    for m in members:
        yield from _judge_pickles(source, m, anatomy)


def _find_payload(source: Source) -> int:
    """Return the offset behind gzip's header, where compressed data begin (RFC 1952, 2.3). Raise Damage."""
    head = source.read(0, min(source.size, _MAX_HEADER))
    if len(head) < _HEAD or head[3] & 0xE0:
        raise Damage("bad-header", "gzip's header is damaged", 0)
    flags, at = head[3], _HEAD
    if flags & 4:  # an extra field, behind its length
        at += 2 + int.from_bytes(head[at : at + 2], "little")
    for flag in (8, 16):  # a name, a comment
        if flags & flag:
            at = head.find(b"\0", at) + 1
            if not at:
                raise Damage("bad-header", "gzip's header has a name without an end", _HEAD)
    return at + (2 if flags & 2 else 0)  # a CRC of the header


FORMAT = make_format("nemo", magic, _structure, distinct=False)
