"""One MessagePack object to the last byte: what flax' ``to_bytes`` makes of a state, and what other programs
keep in a map.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, own_format
from ckpt_tools.formats.common.limited import limited
from ckpt_tools.formats.common.tensors import remember, zero_tail
from ckpt_tools.formats.msgpack.contents import ARRAYS, Tree
from ckpt_tools.formats.msgpack.tokens import Tokens
from ckpt_tools.formats.tensorstore.zarr import Described
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.storage import Source

_MAPS = {0xDE: 3, 0xDF: 5}
_TEXTS = {0xD9: 2, 0xDA: 3, 0xDB: 5}
_EXTS = {0xC7: 2, 0xC8: 3, 0xC9: 5}


def _magic(head: bytes) -> bool:
    """A map whose first name is a text that can be read, or one array."""
    first = head[0] if head else 0
    if first in _EXTS:
        at = _EXTS[first]
        return head[at : at + 1] in {bytes([code]) for code in ARRAYS} and head[at + 1 : at + 2] == b"\x93"
    at = 1 if 0x80 < first < 0x90 else _MAPS.get(first, 0)
    return at > 0 and _names(head, at)


def _names(head: bytes, at: int) -> bool:
    """Whether a text without a control character begins at an offset."""
    first = head[at] if at < len(head) else 0
    if 0xA0 < first < 0xC0:
        text = head[at + 1 : at + 1 + (first & 0x1F)]
    elif first in _TEXTS:
        text = head[at + _TEXTS[first] :][:16]
    else:
        return False
    return bool(text) and min(text) >= 0x20


def _ours(source: Source) -> bool:
    """Lists and maps that other programs keep, such as those with numbers as names, are left alone."""
    head = source.read(0, min(1, source.size))
    return not head or not (0x80 <= head[0] < 0xA0 or 0xDC <= head[0] < 0xE0)


def explain(anatomy: Anatomy, tensors: list[Tensor], end: int) -> None:
    """Say of all bytes that nothing guards them but the lengths."""
    at = 0
    for offset, size in sorted(p for t in tensors for p in t.pieces or ((t.offset or 0, t.nbytes),)):
        anatomy.explain(
            at, offset - at, "names, types and lengths: they must fit each other", Guard.UNPROTECTED
        )
        anatomy.explain(offset, size, "an array without a checksum", Guard.UNPROTECTED)
        at = offset + size
    anatomy.explain(at, end - at, "names, types and lengths: they must fit each other", Guard.UNPROTECTED)


@limited
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Every name and length. Reads a page for each array."""
    yield finding("not-checksummed", "MessagePack has no checksum: only its structure was checked")
    tokens = Tokens(source)
    tree = Tree(tokens, anatomy)
    yield from tree.read()
    for path in tree.elsewhere:
        array = f"{source.path.rpartition('/')[2]}_gda/{path}"
        anatomy.members[f"{array}/.zarray"] = Claim(FORMAT.name, Described(array, FORMAT.name), follow=True)
    if tree.stored:
        remember(anatomy.metadata, "stored_arrays", tree.stored)
    explain(anatomy, anatomy.tensors, tokens.at)
    if tokens.at < source.size:
        text = f"{source.size - tokens.at:,} bytes follow the object"
        yield finding("trailing-data", text, offset=tokens.at)
    elif anatomy.tensors and (lost := zero_tail(source, anatomy.tensors, anatomy.tensors[0].offset or 1)):
        yield lost


FORMAT = own_format(
    name="msgpack",
    magic=_magic,
    ours=_ours,
    checks={Level.STRUCTURE: _structure},
    protects="nothing; every length must fit the others and the end of the file",
    limits=(
        "a flipped bit in an array, a number or a name cannot be seen",
        "of files that do not begin with a map with names, or with an array of flax', nothing is looked at",
    ),
    reference="github.com/msgpack/msgpack/blob/master/spec.md; flax 0.12 flax/serialization.py",
)
