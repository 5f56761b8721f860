"""Seals: the digest of every file of a checkpoint, written by ``ckpt seal`` beside them (docs/seals.md)."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.checksum import Extent, Sum, sums
from ckpt_tools.checksum.sums import xxh3
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, limit, make_format
from ckpt_tools.formats.common.json_text import read_text
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.document import find_hash
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.seal import Seal, SealedFile
from ckpt_tools.storage import Source

CODE = "seal-mismatch"


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check that a seal is of this version and its own digest is right; keep its entries."""
    seal = read(source)
    anatomy.explain(0, source.size, "the seal: any changed bit contradicts the digest at its end")
    saved, fragment = seal.checkpoint, seal.fragment
    fields = {name: getattr(saved, name) for name in saved.__struct_fields__ if name != "parallel"}
    anatomy.metadata |= {name: value for name, value in fields.items() if value is not None}
    anatomy.metadata |= saved.parallel
    if fragment:
        anatomy.metadata["rank"] = f"{fragment.rank} of {fragment.world_size}"
    anatomy.metadata |= {
        "sealed_by": seal.tool_version,
        "algorithm": seal.algorithm,
        "files": len(seal.files),
        "bytes": sum(file.size for file in seal.files),
        "tensors": sum(len(file.tensors) for file in seal.files),
    }
    anatomy.files += seal.files
    yield from ()


def read(source: Source) -> Seal:
    """Return the seal in a file. Raises Damage."""
    try:
        data = read_text(source)
        if not document.is_whole(data):
            why = "the digest at its end is not that of its text: it was cut, edited, or a bit flipped"
            raise Damage("seal-broken", why, 0)
        return document.parse_seal(data)
    except Damage as e:
        if e.finding.code == "seal-broken":
            raise
        raise Damage("seal-broken", f"the seal cannot be read: {e.finding.message}", 0) from None
    except document.NotASeal as e:
        raise Damage("seal-broken", f"it is not a seal that this version can use: {e}", 0) from None


def compare(source: Source, anatomy: Anatomy, *, file: SealedFile, algorithm: str) -> Iterator[Finding]:
    """Compare the size of a file with the size in its entry of a seal; add the entry's digests, of which
    ``algorithm`` is the seal's, to ``anatomy.sums`` for the level content.
    """
    if source.size != file.size:
        yield finding(CODE, f"the file has {source.size:,} bytes; {file.size:,} were sealed", offset=0)
        return
    anatomy.sealed.update(file.tensors)
    digits = sums.DIGITS
    for i, extent in enumerate(sums.chunks(file.size)):
        expected = bytes.fromhex(file.chunks[i * digits : (i + 1) * digits])
        last = extent.offset + extent.length - 1
        what = f"bytes {extent.offset:,} to {last:,} are not those that were sealed"
        anatomy.sums.append(Sum(what, expected, (extent,), extent.offset, hash=xxh3, code=CODE))
    if algorithm == "xxh3" or not file.size:  # the digest of the whole file follows from those of its chunks
        return
    make_hash = find_hash(algorithm)
    if make_hash is None:
        hint = f"pip install 'ckpt-tools[{algorithm}]'"
        yield finding("needs-extra", f"{algorithm} needs the package {algorithm}", hint=hint)
    else:
        what, expected = f"{algorithm} of the file", bytes.fromhex(file.digest)
        anatomy.sums.append(Sum(what, expected, (Extent(0, file.size),), 0, hash=make_hash, code=CODE))


_START = b'{"schema":"ckpt-tools/seal/'
FORMAT = make_format("seal", lambda head: head.startswith(_START), _structure, loader=None)
