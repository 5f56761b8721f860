"""HDF5, as Keras' ``.weights.h5`` and h5py write it: a walk over its groups and arrays.

Facts: keras/src/legacy/saving/legacy_h5_format.py (load_model_from_hdf5), which keeps a whole model's
configuration in attributes of the root group; HDF5 File Format Specification 3.0, IV.A.2.m (attribute
message) and III.E (global heap).
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, limit, make_format
from ckpt_tools.formats.common.keras_code import MOST, code_in_config
from ckpt_tools.formats.common.tensors import MAX_NAME
from ckpt_tools.formats.hdf5 import blocks as structures
from ckpt_tools.formats.hdf5 import datasets
from ckpt_tools.formats.hdf5.blocks import UNDEFINED, Blocks, Fields, Header, Message, Ranks, Superblock
from ckpt_tools.formats.hdf5.datasets import Array, Arrays, read_filters, read_space, read_type
from ckpt_tools.formats.hdf5.groups import read_attributes, read_heap, read_links, read_old_links
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage import Source

_CONFIGURATIONS = (b"model_config", b"training_config")
_VARIABLE = 9
_HEAP = struct.Struct("<4s4xQ")
_OBJECT = struct.Struct("<HHIQ")
_COMMITTED = 2
"""Kind of a shared message that lies in the header of a named type."""


def _find_keras_code(blocks: Blocks, body: bytes, at: int) -> Iterator[Finding]:
    """Report code in a Keras configuration (``body`` of an attribute message) that Keras would run."""
    if len(body) < 9 or body[0] not in (1, 2, 3):
        return
    sizes, start = struct.unpack_from("<HHH", body, 2), 9 if body[0] == 3 else 8
    fields = list[bytes]()
    for size in sizes:
        fields.append(body[start : start + size])
        start += -(-size // 8) * 8 if body[0] == 1 else size
    if fields[0].rstrip(b"\0") not in _CONFIGURATIONS:
        return
    text: bytes | None = body[start:]
    if fields[1][:1] and fields[1][0] & 15 == _VARIABLE and len(body) - start >= 16:
        text = _read_heap_object(blocks, *struct.unpack_from("<QI", body, start + 4))
    if text is None or len(text) > MOST:
        why = "the configuration of a Keras model is where or as large as it is not read"
        yield finding("unread-pickle", why, offset=at)
    else:
        yield from code_in_config(text, blocks.anatomy, at)


def _read_heap_object(blocks: Blocks, address: int, index: int) -> bytes | None:
    """Return object ``index`` of the global heap at ``address``, None if it is not there or too large."""
    source = blocks.source
    if address + _HEAP.size > blocks.end:
        return None
    magic, size = _HEAP.unpack(source.read(address, _HEAP.size))
    if magic != b"GCOL" or address + size > blocks.end:
        return None
    at, stop = address + _HEAP.size, address + size
    for _ in range(1 << 16):
        if at + _OBJECT.size > stop:
            break
        number, _, _, length = _OBJECT.unpack(source.read(at, _OBJECT.size))
        at += _OBJECT.size
        if number == index:
            return source.read(at, length) if length <= min(MOST, stop - at) else None
        if not number:  # the free space behind the last object
            break
        at += -(-length // 8) * 8
    return None


@limit
def structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check every structure of the file, following the links from the root group on."""
    top = structures.read_superblock(source, anatomy)
    if top.end < source.size:
        why = f"{source.size - top.end} bytes follow the end that the superblock names"
        yield finding("trailing-data", why, offset=top.end)
    if top.open_flags:
        why = "the file was not closed by its writer, and the library refuses it"
        yield finding("bad-header", f"flags {top.open_flags:#x}: {why}", offset=11)
    blocks = Blocks(source, anatomy, top.end)
    blocks.add_span(0, top.size, "the superblock")
    walk = _Walk(blocks, top)
    yield from walk.check_all()
    blocks.explain_gaps()
    if walk.arrays.bare_bytes or top.version < 2:
        also = "" if top.version >= 2 else ", nor the structures of this version"
        yield finding("not-checksummed", f"no checksum covers {walk.arrays.bare_bytes} bytes of arrays{also}")


def _is_group(header: Header) -> bool:
    """Return whether an object is a group: the old kind has a symbol table, the new kind link info."""
    return header.find(structures.SYMBOL_TABLE) is not None or header.find(structures.LINK_INFO) is not None


class _Walk:
    """One walk over the objects of a file; an object to which several links lead is visited once."""

    def __init__(self, blocks: Blocks, top: Superblock) -> None:
        self.blocks, self.top, self.ranks = blocks, top, top.ranks
        self.named_types: dict[int, Header] = {}
        if top.extension != UNDEFINED:
            extension = structures.read_header(blocks, top.extension, "the superblock's extension")
            m = extension.find(structures.TREE_RANKS)
            if m is not None:
                _, chunks, group, leaf = Fields(m.body, m.at, "the ranks of trees").numbers(1, 2, 2, 2)
                self.ranks = Ranks(leaf, group, chunks)
        self.arrays = Arrays(blocks, self.ranks.chunks)

    def check_all(self) -> Iterator[Finding]:
        """Check every object that a link leads to, and the number of links that each says it has."""
        links, stored_counts = {self.top.root: 1}, dict[int, int]()
        waiting = [(self.top.root, "", self.top.scratch_pad)]
        while waiting:
            at, name, scratch_pad = waiting.pop()
            header = self._read_header(at, name or "the root group")
            stored_counts[at] = header.links if header.find(structures.LAYOUT) or _is_group(header) else -1
            children = yield from self._follow_links(header, name, at, scratch_pad, links)
            waiting += reversed(children)  # the last of ``waiting`` comes next
            yield from self._check_object(header, name, at)
        for at, count in stored_counts.items():
            if count not in (-1, links[at]):
                why = f"an object says that {count} links lead to it; there are {links[at]}"
                yield finding("bad-header", why, offset=at)

    def _follow_links(
        self, header: Header, name: str, at: int, scratch_pad: bytes, links: dict[int, int]
    ) -> Generator[Finding, None, list[tuple[int, str, bytes]]]:
        """Count a group's links into ``links``; return (address, path, scratch pad) of new objects."""
        children, what = list[tuple[int, str, bytes]](), repr((name or "the root group")[:200])
        table = header.find(structures.SYMBOL_TABLE)
        if table is None:  # a new group, or no group: then it has no links
            found = read_links(self.blocks, header, what)
        elif scratch_pad and scratch_pad != table.body[:16]:
            raise Damage("bad-header", f"{what} is not where the entry that leads to it says", table.at)
        else:
            found = read_old_links(self.blocks, table.body, what, self.ranks)
        for link in found:
            path = f"{name}/{link.name.decode(errors='replace')}".removeprefix("/")
            if len(path) > MAX_NAME and (
                link.external_file or (link.address >= 0 and link.address not in links)
            ):
                raise Damage("too-complex", f"a path of more than {MAX_NAME} characters", at)
            if link.external_file:
                yield datasets.report_external(f"{path[:200]!r} is a link to", link.external_file, at)
            if link.address < 0:
                continue
            if not name:
                self.blocks.anatomy.keys.add(path)
            if link.address not in links:
                children.append((link.address, path, link.scratch_pad))
            links[link.address] = links.get(link.address, 0) + 1
        return children

    def _read_header(self, at: int, what: str) -> Header:
        """Return an object's header; that of a named type is kept, as arrays refer to it. Raise Damage."""
        if at in self.named_types:
            return self.named_types[at]
        header = structures.read_header(self.blocks, at, repr(what[:200]))
        if header.find(structures.DATATYPE) and not header.find(structures.LAYOUT):
            self.named_types[at] = header
        return header

    def _check_object(self, header: Header, name: str, at: int) -> Iterator[Finding]:
        """Check the attributes of an object, and its array if it has one. Raise Damage."""
        info = header.find(structures.ATTRIBUTE_INFO)
        if info is not None:
            for f in read_attributes(self.blocks, info, repr(name[:200])):
                if not name:
                    yield from _find_keras_code(self.blocks, f.data[f.at :], f.file_at)
        for m in header.messages if not name else ():
            if m.type == structures.ATTRIBUTE:
                yield from _find_keras_code(self.blocks, m.body, m.at)
        layout = header.find(structures.LAYOUT)
        if layout is not None:
            yield from self._check_array(header, name, layout)
        elif not _is_group(header) and header.find(structures.DATATYPE) is None:
            raise Damage("bad-header", f"{name[:200]!r} is neither a group nor an array nor a type", at)

    def _check_array(self, header: Header, name: str, layout: Message) -> Iterator[Finding]:
        """Check an array by the type, shape, filters and external files in its header. Raise Damage."""
        what = f"the header of {name[:200]!r}"
        kinds = (structures.DATATYPE, structures.DATASPACE, structures.FILTERS)
        datatype, dataspace, chain = (self._read_message_fields(header, kind, what) for kind in kinds)
        messages = zip(kinds, (datatype, dataspace, chain), strict=True)
        if any(header.find(kind) and f is None for kind, f in messages):
            text = f"{name[:200]!r} is not looked at: its description is shared with others"
            yield finding("too-complex", text, offset=layout.at, severity=Severity.NOTE)
            return
        if datatype is None or dataspace is None:
            raise Damage("bad-header", f"{what} has a layout, but no type or no shape", layout.at)
        filters = read_filters(chain) if chain else ()
        dtype, shapes, others = read_type(datatype), read_space(dataspace), tuple[str, ...]()
        if (m := header.find(structures.EXTERNAL)) is not None:
            f = Fields(m.body, m.at, f"the external files of {what}", 4)
            _, used, home = f.numbers(2, 2, 8)
            names = read_heap(self.blocks, home, f"the names of {what}")
            starts = [f.numbers(8, 8, 8)[0] for _ in range(used)]
            others = tuple(names[at:].partition(b"\0")[0].decode(errors="replace") for at in starts) or ("",)
        fields = Fields(layout.body, layout.at, f"the layout of {name[:200]!r}")
        yield from self.arrays.check(Array(name, *dtype, *shapes, filters, others), fields)

    def _read_message_fields(self, header: Header, kind: int, what: str) -> Fields | None:
        """Return the fields of a message, or of the named type it refers to; None for other references."""
        m = header.find(kind)
        if m is None:
            return None
        f = Fields(m.body, m.at, what)
        if not m.flags & structures.SHARED:
            return f
        version, where = f.numbers(1, 1)
        f.take(6 if version == 1 else 0)
        if kind != structures.DATATYPE or (version == 3 and where != _COMMITTED):
            return None
        named = self._read_header(f.number(8), f"the type of {what}").find(structures.DATATYPE)
        return named and Fields(named.body, named.at, what)


FORMAT = make_format("hdf5", lambda head: head.startswith(structures.MAGIC), structure)
