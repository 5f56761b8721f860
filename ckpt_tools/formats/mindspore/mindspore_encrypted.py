"""MindSpore's encrypted ``.ckpt``: the plain file cut into blocks, each encrypted alone
(_mindspore_blocks.py).

Without a key only the framing is read. With one (``Anatomy.key``) the plaintext is checked as the plain file
is, and every GCM tag is a checksum.
Facts: ``_encrypt`` and ``_decrypt`` of MindSpore 2.10 (checked by decrypting with another library),
mindspore/train/serialization.py (``_exec_save``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.crypto import (
    KEYS,
    UNIT,
    Block,
    Decrypted,
    Scheme,
    Tag,
    decrypt,
    is_noise,
    missing,
    padding,
)
from ckpt_tools.formats.common.format import HEAD, Anatomy, Format, structure
from ckpt_tools.formats.mindspore import mindspore_ckpt
from ckpt_tools.formats.mindspore.encrypted_blocks import Framing, framing
from ckpt_tools.formats.mindspore.records import CIPHERS, FINAL_MODE
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import ShortRead, Source

_SAMPLE = 4096


def _magic(head: bytes) -> bool:
    return head[:4] in CIPHERS


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Follow the blocks, and with a key the records in them."""
    f = framing(source)
    mode = "AES-GCM or AES-CBC, without tags as MindSpore 1.x wrote it" if f.old and f.even else f.mode
    anatomy.metadata["encryption"] = mode
    anatomy.metadata["encrypted_blocks"] = len(f.blocks)
    if f.full:  # one intact file in 67 million ends like this
        text = (
            f"the last of {len(f.blocks)} blocks is full: the file was probably cut at the border of two"
            " blocks"
        )
        yield finding("truncated", text, offset=source.size, severity=Severity.WARNING)
    if anatomy.key is not None:
        yield from _with_key(source, anatomy, f, anatomy.key)
        return
    f.explain(anatomy, f.twin)
    f.hide(anatomy, "it takes the key to check it")
    tagged = f.blocks[0].tag
    seen = (
        "its tags can only be checked with the key"
        if tagged
        else "this mode has no tag, so even with the key a flipped bit may pass"
    )
    yield finding("needs-key", f"encrypted with {mode}: {seen}")
    yield finding("not-checksummed", "no checksum can be read without the key")


def _with_key(source: Source, anatomy: Anatomy, f: Framing, key: bytes) -> Iterator[Finding]:
    """Choose how to decrypt, then check tags and plaintext."""
    schemes = _fitting(f, key)
    if not schemes:
        sizes = " or ".join(map(str, KEYS[f.mode[:3]]))
        why = f"the key has {len(key)} bytes, {f.mode} takes {sizes}"
        yield from _stop(anatomy, f, finding("wrong-key", why))
        return
    if wanted := missing(schemes[0]):
        yield from _stop(anatomy, f, finding("needs-extra", f"to decrypt {f.mode} takes {wanted}"))
        yield finding("not-checksummed", f"no checksum can be read without {wanted}")
        return
    scheme = _choose(source, f, [s for s in schemes if not missing(s)])
    if scheme is None:
        other = (
            f"it is not the one that this file was encrypted with ({f.mode}), or all of the file is damaged"
        )
        yield from _stop(anatomy, f, finding("wrong-key", f"the key that was given leaves noise: {other}"))
        return
    f.explain(anatomy, f.twin and scheme.mode == "AES-CBC")
    anatomy.metadata["encryption"] = scheme.mode
    if f.old and scheme.mode == "SM4-CBC":
        why = "the magic is that of AES-GCM, the content is SM4-CBC: a bit of the magic flipped"
        yield finding("odd-header", why, offset=0)
    for i, b in enumerate(f.blocks):
        _protect(anatomy, scheme, i, b)
    if not f.blocks[0].tag:
        why = "as MindSpore writes it has no tag: a flipped bit in a tensor's content cannot be seen"
        yield finding("not-checksummed", f"{scheme.mode} {why}")
    yield from _records(source, anatomy, f, scheme)


def _fitting(f: Framing, key: bytes) -> list[Scheme]:
    """The ways to decrypt that the framing leaves open and that take a key of this length."""
    modes = [f.mode]
    if f.old and f.even:
        modes += ["AES-CBC", "SM4-CBC"]
    known = [Scheme(m, key, n) for m in modes for n in ((12, 16) if m == "AES-GCM" else (16,))]
    return [s for s in known if s.fits]


def _stop(anatomy: Anatomy, f: Framing, why: Finding) -> Iterator[Finding]:
    """The plaintext cannot be had."""
    f.explain(anatomy, f.twin)
    f.hide(anatomy, "it was not decrypted")
    yield why


def _choose(source: Source, f: Framing, schemes: list[Scheme]) -> Scheme | None:
    """The scheme that leaves what begins like a checkpoint; if none does, for the beginning may be damaged,
    one that leaves anything but noise.
    """
    first, last = f.blocks[0], f.blocks[-1]
    for s in schemes:
        if mindspore_ckpt.FORMAT.magic(decrypt(source, s, first, 0, min(HEAD, first.size))):
            return s
    spots = [spot for b in dict.fromkeys((first, last)) for spot in _spots(b)]
    for s in schemes:
        sample = b"".join(decrypt(source, s, b, at, size) for b, at, size in spots)
        if not is_noise(sample):
            return s
    return None


def _spots(b: Block) -> list[tuple[Block, int, int]]:
    """(block, offset, length) of some of its bytes, each once."""
    if b.size <= 3 * _SAMPLE:
        return [(b, 0, b.size)]
    return [(b, at, _SAMPLE) for at in (0, b.size // 2, b.size - _SAMPLE)]


def _protect(anatomy: Anatomy, scheme: Scheme, i: int, b: Block) -> None:
    """A tag covers the nonce and the ciphertext; without one, only what they decrypt to is looked at."""
    if b.tag:
        pieces = Extent(b.iv_at, scheme.nonce), Extent(b.at, b.size)
        anatomy.sums.append(
            Sum(f"the tag of block {i}", b.tag, pieces, b.tag_at, hash=partial(Tag, scheme, b.tag))
        )
        anatomy.explain(b.tag_at, len(b.tag), f"tag of block {i}")
        rest = len(b.iv) - scheme.nonce
        anatomy.explain(
            b.iv_at + scheme.nonce, rest, f"end of the IV of block {i}, which is not used", Guard.UNPROTECTED
        )
        return
    anatomy.explain(
        b.iv_at,
        len(b.iv),
        f"IV of block {i}: only the form of what it decrypts is checked",
        Guard.UNPROTECTED,
    )
    anatomy.explain(
        b.at,
        b.size,
        f"ciphertext of block {i}: only the form of what it decrypts to is checked",
        Guard.UNPROTECTED,
    )


def _records(source: Source, anatomy: Anatomy, f: Framing, scheme: Scheme) -> Iterator[Finding]:
    """Check the plaintext as a plain file; findings lie where its ciphertext does. Its tensors have no place
    in the file.
    """
    paddings = [0] * len(f.blocks)
    for i, b in enumerate(f.blocks) if scheme.mode.endswith("CBC") else ():
        whole, paddings[i] = i < len(f.blocks) - 1, padding(source, scheme, b)
        if not paddings[i] or (whole and paddings[i] != UNIT):
            text = f"the end of block {i} does not decrypt to the padding of {scheme.mode}: it is damaged"
            yield finding("bad-header", text, offset=b.at + b.size - 2 * UNIT)
            if not whole:
                return
            paddings[i] = UNIT  # 64 MiB are whole cipher blocks, so one of padding follows
    plain, inner = Decrypted(source, scheme, f.blocks, paddings), Anatomy()
    try:
        for found in structure(plain, inner, mindspore_ckpt.FORMAT.checks[Level.STRUCTURE]):
            if found.code != "not-checksummed":
                place = None if found.offset is None else plain.place(found.offset)
                yield replace(found, message=f"decrypted: {found.message}", offset=place)
    except ShortRead as e:
        yield finding(
            "truncated",
            f"the plaintext ends at byte {plain.size}, in the middle of a record",
            offset=plain.place(e.offset),
        )
    inner.metadata.pop("crc_trailer", None)
    anatomy.metadata |= inner.metadata
    anatomy.keys |= inner.keys
    anatomy.tensors += (replace(t, offset=None) for t in inner.tensors)


FORMAT = Format(
    name="mindspore_encrypted",
    suffixes=(".ckpt",),
    magic=_magic,
    final_mode=FINAL_MODE,
    checks={Level.STRUCTURE: _structure},
    protects="AES-GCM: with the key, a tag per block over all its bytes; AES-CBC and SM4-CBC: nothing",
    limits=(
        "without the key only the framing is checked, and names, steps and tensors are not known",
        (
            "without a tag (CBC, and all of MindSpore 1.x) a flipped bit in a tensor's content or name cannot"
            " be seen even with the key"
        ),
        (
            "nothing protects the number and order of blocks: a file of several blocks that lost whole ones"
            " in the middle has a valid framing"
        ),
        (
            "a key that leaves noise is said to be wrong: in a file that is damaged from end to end the right"
            " one does as well"
        ),
        "one bit tells the magic of a CBC file of one block from that of MindSpore 1.x",
    ),
    reference=(
        "MindSpore 2.10: mindspore/train/serialization.py, _encrypt; mindspore/core/utils/crypto.cc; blocks"
        " decrypted with an independent library"
    ),
)
