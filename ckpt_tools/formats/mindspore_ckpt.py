"""MindSpore's ``.ckpt``: records of one tensor each (_mindspore_records.py), then, with ``crc_check=True``, a CRC-32 over all of them.

Facts: mindspore/train/serialization.py (``_exec_save``, ``_parse_ckpt_proto``, ``_load_into_param_dict``) of MindSpore 2.0 to 2.10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.codes import finding
from ckpt_tools.formats._base import Anatomy, Damage, Format
from ckpt_tools.formats._mindspore_records import LITERAL, TRAILER, Content, records
from ckpt_tools.formats._protobuf import Reader
from ckpt_tools.formats._tensors import remember, zero_tail
from ckpt_tools.model import Finding, Level
from ckpt_tools.storage import Source


def _magic(head: bytes) -> bool:
    """A record whose first field is its tag, as far as ``head`` shows it: the format has no magic of its own."""
    numbers, at = list[int](), 0
    for _ in "record", "tag":
        if head[at : at + 1] != b"\n":
            return False
        value = length = 0
        for length, byte in enumerate(head[at + 1 : at + 11], 1):
            value |= (byte & 0x7F) << (7 * (length - 1))
            if byte < 0x80:
                break
        else:
            return bool(numbers) and length < 10  # the head ends inside the number: nothing contradicts so far
        numbers.append(value)
        at += 1 + length
    tag = head[at : at + numbers[1]]
    return 0 < numbers[1] < numbers[0] and all(b >= 0x20 and b != 0x7F for b in tag)


def _trailer(reader: Reader, anatomy: Anatomy) -> Iterator[Finding]:
    """Note the CRC trailer, if there is one. Its loader looks for the literal 17 bytes before the end, and so does this."""
    end = reader.size - TRAILER
    raw = reader.get(end, TRAILER) if end >= 0 else b""
    anatomy.metadata["crc_trailer"] = raw[:7] == LITERAL
    if raw[:7] == LITERAL:
        stored = int.from_bytes(raw[7:], "big")
        anatomy.sums.append(Sum("the CRC trailer", stored & 0xFFFFFFFF, (Extent(0, end),), end))
        if stored >> 32:
            yield finding("crc-mismatch", f"the CRC trailer holds {stored:#x}, which is no CRC-32", offset=end + 7)


def _finish(reader: Reader, anatomy: Anatomy, content: Content, last: bool = False) -> Iterator[Finding]:
    """A whole tensor is known: check it, list it, keep its value if it is a scalar."""
    yield from content.check(reader, last)
    anatomy.tensors.append(content.tensor)
    if (value := content.value) is not None:
        remember(anatomy.metadata, content.name, value)


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Walk every record to the last byte. Reads about 200 bytes per record, all of a small file."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    reader = Reader(source)
    yield from _trailer(reader, anatomy)
    end = source.size - TRAILER if anatomy.sums else source.size
    previous, pending = "", None
    plain, edge = list[Extent](), 0
    for start, limit, name, contents in records(reader, end):
        if name != previous and name in anatomy.keys:
            yield finding("duplicate-tensor", f"{name!r} is stored twice; loaders take the last one", offset=start)
        if pending is not None and (name != previous or len(contents) > 1):
            yield from _finish(reader, anatomy, pending)
            pending = None
        if len(contents) > 1:  # a map parameter; large ones span several records, each complete in itself
            for content in contents:
                yield from _finish(reader, anatomy, content)
            if start > edge:
                plain.append(Extent(edge, start - edge))
            edge = limit
        elif pending is None:
            pending = contents[0]
        elif (contents[0].dims, contents[0].type) != (pending.dims, pending.type):
            raise Damage("bad-header", f"the pieces of {name!r} differ in dims or type", start)
        else:
            pending.nbytes += contents[0].nbytes
        previous = name
        anatomy.keys.add(name)
    if pending is not None:
        yield from _finish(reader, anatomy, pending, last=True)
    if not previous:
        raise Damage("bad-header", "the file holds no record, only a checksum", 0)
    yield from _tail(source, anatomy, end)
    if anatomy.sums and edge:
        # MindSpore's writer leaves map parameters out of the CRC although its loader counts them in: either reading is intact
        anatomy.sums[0] = replace(anatomy.sums[0], otherwise=(*plain, Extent(edge, end - edge)))


def _tail(source: Source, anatomy: Anatomy, end: int) -> Iterator[Finding]:
    if anatomy.sums:
        return
    yield finding("not-checksummed", "there is no CRC trailer (written without crc_check=True, or cut off)")
    t = anatomy.tensors[-1]
    if t.offset is not None and t.offset + t.nbytes == end and (lost := zero_tail(source, [t], t.offset)):
        yield lost


FORMAT = Format(
    name="mindspore_ckpt",
    suffixes=(".ckpt",),
    magic=_magic,
    checks={Level.STRUCTURE: _structure},
    protects="with crc_check=True a CRC-32 in the last 17 bytes covers every byte before it, map parameters excepted; without it, nothing",
    limits=(
        "without the CRC trailer a flipped bit in a tensor's content or name cannot be seen",
        "a file cut at the border of two records, or by exactly the 17 bytes of the trailer, is whole in itself; its tensors then differ from those of other steps",
        "parameters removed by remove_redundancy leave no trace",
        "files saved with parameters offloaded to disk carry a CRC that leaves those out: they fail here as they fail in MindSpore with crc_check=True",
        "a tensor with a zero in its shape is dropped by the writer",
    ),
    reference="MindSpore 2.10: mindspore/train/serialization.py, checkpoint.proto",
)
