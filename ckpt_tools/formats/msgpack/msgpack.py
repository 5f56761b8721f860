"""A file that is one MessagePack object to the last byte: a state as flax' ``to_bytes`` writes it, or another
program's map.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, limit, make_format
from ckpt_tools.formats.common.tensors import remember, zero_tail
from ckpt_tools.formats.msgpack.contents import ARRAYS, Tokens, Tree, explain
from ckpt_tools.formats.tensorstore.zarr import claim_chunks
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source

_STARTS = {0xDE: 3, 0xDF: 5, 0xC7: 2, 0xC8: 3, 0xC9: 5}
"""First byte of a map or an ext -> offset of its content."""
_TEXTS = {0xD9: 2, 0xDA: 3, 0xDB: 5}


def _magic(head: bytes) -> bool:
    """Return whether a file begins like flax' MessagePack: a map whose first name is text, or an array."""
    first = head[0] if head else 0
    at = 1 if 0x80 < first < 0x90 else _STARTS.get(first, 0)
    if not 0 < at < len(head):
        return False
    key = head[at]
    if 0xC7 <= first <= 0xC9:
        return key in ARRAYS and head[at + 1 : at + 2] == b"\x93"
    if not 0xA0 < key < 0xC0 and key not in _TEXTS:
        return False
    text = head[at + _TEXTS[key] :][:16] if key in _TEXTS else head[at + 1 : at + 1 + (key & 0x1F)]
    return bool(text) and min(text) >= 0x20


def _is_flax_file(source: Source) -> bool:
    """Return False if a file without the magic is a list or a map all the same: other programs wrote it."""
    head = source.read(0, min(1, source.size))
    return not head or not (0x80 <= head[0] < 0xA0 or 0xDC <= head[0] < 0xE0)


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check every name and length of a MessagePack object; reads about a page per array."""
    yield finding("not-checksummed", "MessagePack has no checksum: only its structure was checked")
    tokens = Tokens(source)
    tree = Tree(tokens, anatomy)
    yield from tree.read()
    for path in tree.placeholders:  # arrays of several hosts lie in a directory beside the file
        array = f"{source.path.rpartition('/')[2]}_gda/{path}"
        check = partial(claim_chunks, name=array, of="msgpack")
        anatomy.members[f"{array}/.zarray"] = Claim("msgpack", check, follow=True)
    if tree.stored:
        remember(anatomy.metadata, "stored_arrays", tree.stored)
    explain(anatomy, tokens.at)
    if tokens.at < source.size:
        text = f"{source.size - tokens.at:,} bytes follow the object"
        yield finding("trailing-data", text, offset=tokens.at)
    elif anatomy.tensors and (lost := zero_tail(source, anatomy.tensors, anatomy.tensors[0].offset or 1)):
        yield lost


FORMAT = make_format("msgpack", _magic, _structure, ours=_is_flax_file)
