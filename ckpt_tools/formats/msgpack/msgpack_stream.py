"""EasyLM's streams: one MessagePack pair after another, each the path of a leaf and the leaf's bytes as flax'
``to_bytes`` writes them. The file does not tell the number of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, limit, make_format
from ckpt_tools.formats.common.tensors import zero_tail
from ckpt_tools.formats.msgpack.contents import DEEPEST, Tokens, Tree, explain, read_key
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source


def _magic(head: bytes) -> bool:
    """Return whether a file begins with a MessagePack pair whose first member is a list of texts."""
    return (
        len(head) > 2
        and head[0] == 0x92
        and 0x90 < head[1] < 0xA0
        and (0xA0 < head[2] < 0xC0 or head[2] == 0xD9)
    )


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check every pair of a leaf's path and its bytes; reads about a page per pair."""
    yield finding("not-checksummed", "MessagePack has no checksum: only its structure was checked")
    tokens = Tokens(source)
    while tokens.at < source.size:
        at, pair, keys = tokens.at, tokens.next(), tokens.next()
        if (pair.kind, pair.size, keys.kind) != ("array", 2, "array") or keys.size > DEEPEST:
            raise Damage("bad-header", "no pair of a path and a leaf begins here", at)
        path = tuple(read_key(tokens) for _ in range(keys.size))
        leaf = tokens.next()
        if leaf.kind != "bin":
            raise Damage("bad-header", f"a {leaf.kind} where the bytes of a leaf belong", leaf.at)
        anatomy.keys |= set(path[:1])
        with tokens.inside(leaf, repr(".".join(path)[:200])):
            yield from Tree(tokens, anatomy, path).read()
    explain(anatomy, tokens.at)
    if anatomy.tensors and (lost := zero_tail(source, anatomy.tensors, anatomy.tensors[0].offset or 1)):
        yield lost


FORMAT = make_format("msgpack_stream", _magic, _structure, hides_cuts=True)
