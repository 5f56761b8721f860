"""MindSpore's encrypted ``.ckpt``: the plain file cut into blocks, each encrypted alone.

Without a key only the framing (headers of the blocks) is read. With a key (``Anatomy.key``) the plaintext is
checked like a plain file, and every GCM tag is a checksum.
Facts: ``_encrypt`` and ``_decrypt`` of MindSpore 2.10 (checked by decrypting with another library),
mindspore/train/serialization.py (``_exec_save``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.checksum import Extent, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common import crypto
from ckpt_tools.formats.common.crypto import KEYS, UNIT, Block, Decrypted, Scheme, Tag, decrypt
from ckpt_tools.formats.common.format import HEAD, Anatomy, Damage, make_format, structure
from ckpt_tools.formats.mindspore import mindspore_ckpt
from ckpt_tools.formats.mindspore.mindspore_ckpt import CIPHERS, FINAL_MODE, LITERAL, TRAILER
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import ShortRead, Source

# ---- The framing of MindSpore's encrypted ``.ckpt``: blocks that were encrypted one by one. No key is
# needed to follow them.
#
# Facts: mindspore/core/utils/crypto.cc of MindSpore 1.3 to 2.10. All integers are 32-bit little-endian:
# magic | GCM only: tag[16] | block_len | iv_len = 16 | iv[16] | cipher_len | cipher, with block_len = 4 +
# iv_len + 4 + cipher_len. MindSpore 1.x wrote the magic of AES-GCM for AES-CBC too, and no tags; its
# first blocks held 512 MiB instead of 64.

PLAIN, OLD_PLAIN = 64 * 1024 * 1024, 512 * 1024 * 1024
"""Bytes of plaintext in every block but the last: since MindSpore 1.5 or so, and before."""


class Framing(NamedTuple):
    """One file's blocks, and what the first of them tells: the magic and its cipher ``mode``, which in
    MindSpore 1.x (``is_old``) does not tell GCM from CBC, and the bytes of a tag, of the plaintext of a full
    block, and of its ciphertext.
    """

    mode: str
    magic: bytes
    is_old: bool
    tag: int
    max_plain: int
    max_cipher: int
    blocks: list[Block]

    @property
    def last_is_full(self) -> bool:
        """Return whether the last block so far has the full size, so that another one may follow."""
        size = self.blocks[-1].size
        return size == self.max_cipher or (self.is_old and size == self.max_plain)

    @property
    def fits_cbc(self) -> bool:
        """Return whether every block consists of whole cipher blocks of 16 bytes, as in CBC."""
        return all(b.size % 16 == 0 for b in self.blocks)

    @property
    def is_ambiguous(self) -> bool:
        """Return whether the file with one flipped bit in its magic would be valid in another mode."""
        return len(self.blocks) == 1 and self.fits_cbc and not self.blocks[0].tag

    def explain(self, anatomy: Anatomy, is_ambiguous: bool) -> None:
        """Explain the headers of the blocks; the first byte of an ambiguous magic is unprotected."""
        start = 0
        for i, b in enumerate(self.blocks):
            if is_ambiguous:
                what = "magic: another mode's differs from it in one bit"
                anatomy.explain(start, 1, what, Guard.UNPROTECTED)
            anatomy.explain(start + is_ambiguous, 4 - is_ambiguous, f"magic of block {i}")
            anatomy.explain(b.iv_at - 8, 8, f"lengths of block {i}")
            anatomy.explain(b.at - 4, 4, f"length of the ciphertext of block {i}")
            start = b.at + b.size

    def explain_unchecked(self, anatomy: Anatomy, reason: str) -> None:
        """Explain the headers; explain tags, IVs and ciphertext as unprotected, for this reason."""
        self.explain(anatomy, self.is_ambiguous)
        for i, b in enumerate(self.blocks):
            anatomy.explain(b.tag_at, len(b.tag), f"tag of block {i}: {reason}", Guard.UNPROTECTED)
            anatomy.explain(b.iv_at, len(b.iv), f"IV of block {i}: {reason}", Guard.UNPROTECTED)
            anatomy.explain(b.at, b.size, f"ciphertext of block {i}: {reason}", Guard.UNPROTECTED)


def _u32(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 4], "little")


def read_framing(source: Source) -> Framing:
    """Return all blocks up to the end of the file; reads 48 bytes for each. Raise Damage."""
    f, at = _begin_framing(source), 0
    while at < source.size:
        if f.blocks and not f.last_is_full:
            text = f"{source.size - at} bytes follow the last block"
            if source.size - at == TRAILER and source.read(at, len(LITERAL)) == LITERAL:
                text = "MindSpore appended its CRC (crc_check=True): it loads without the last 17 bytes"
            raise Damage("trailing-data", text, at)
        block = _read_block(source, at, f)
        f.blocks.append(block)
        at = block.at + block.size
    return f


def _begin_framing(source: Source) -> Framing:
    """Return what the first block tells. Raise Damage if no encrypted checkpoint begins so."""
    first = source.read(0, min(48, source.size))
    magic = first[:4]
    mode = CIPHERS.get(magic)
    if mode is None:
        why = f"the file begins with {magic.hex()}, no magic of an encrypted checkpoint"
        raise Damage("bad-header", why, 0)
    # without a tag of 16 bytes the three lengths lie 16 bytes earlier, and agree there
    untagged = len(first) >= 32 and _u32(first, 8) == 16 and _u32(first, 28) + 24 == _u32(first, 4)
    old = mode == "AES-GCM" and untagged
    tag = 16 if mode == "AES-GCM" and not old else 0
    padding = 0 if tag else 16  # CBC pads each block by 1 to 16 bytes (PKCS#7)
    plain = OLD_PLAIN if old and _u32(first, 28) > PLAIN + padding else PLAIN
    return Framing(mode, magic, old, tag, plain, plain + padding, [])


def _read_block(source: Source, at: int, rules: Framing) -> Block:
    """Return the next block, which begins at byte ``at``. Raise Damage."""
    i, size, left = len(rules.blocks), source.size, source.size - at
    lengths = 4 + rules.tag  # where block_len stands
    header = lengths + 28
    head = source.read(at, min(header, left))
    if head[:4] != rules.magic and not rules.magic.startswith(head):
        why = f"block {i} begins with {head[:4].hex()} instead of {rules.magic.hex()}"
        raise Damage("bad-header", why, at)
    if left < header:
        raise Damage("truncated", f"block {i} has {left} of the {header} bytes of its header", size)
    cipher = _u32(head, lengths + 24)
    if _u32(head, lengths + 4) != 16 or _u32(head, lengths) != 24 + cipher:
        why = f"the lengths in the header of block {i} contradict each other"
        raise Damage("bad-header", why, at + lengths)
    # CBC alone makes whole cipher blocks, and the old magic does not tell CBC from GCM
    uneven = not rules.tag and not rules.is_old and cipher % 16
    if not 0 < cipher <= rules.max_cipher or uneven:
        raise Damage("bad-header", f"block {i} cannot hold {cipher} bytes of ciphertext", at + lengths + 24)
    start = at + header
    if start + cipher > size:
        why = f"block {i} should end at byte {start + cipher}, the file ends at {size}"
        raise Damage("truncated", why, size)
    iv, tag = head[lengths + 8 : lengths + 24], head[4:lengths]
    return Block(start, cipher, iv, at + lengths + 8, tag, at + 4)


_SAMPLE = 4096


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the framing of the blocks, and with a key the records in their plaintext."""
    f = read_framing(source)
    mode = "AES-GCM or AES-CBC, without tags as MindSpore 1.x wrote it" if f.is_old and f.fits_cbc else f.mode
    anatomy.metadata["encryption"] = mode
    anatomy.metadata["encrypted_blocks"] = len(f.blocks)
    if f.last_is_full:  # one intact file in 67 million ends like this
        text = f"the last of {len(f.blocks)} blocks is full: the file was probably cut at the border of two"
        yield finding("truncated", f"{text} blocks", offset=source.size, severity=Severity.WARNING)
    if anatomy.key is not None:
        yield from _check_with_key(source, anatomy, f, anatomy.key)
        return
    f.explain_unchecked(anatomy, "it takes the key to check it")
    limit = "this mode has no tag, so even with the key a flipped bit may pass"
    limit = "its tags can only be checked with the key" if f.blocks[0].tag else limit
    yield finding("needs-key", f"encrypted with {mode}: {limit}")
    yield finding("not-checksummed", "no checksum can be read without the key")


def _check_with_key(source: Source, anatomy: Anatomy, f: Framing, key: bytes) -> Iterator[Finding]:
    """Choose the cipher mode, register the tags as checksums, then check the plaintext."""
    scheme = _find_scheme(source, f, key)
    if isinstance(scheme, Finding):
        f.explain_unchecked(anatomy, "it was not decrypted")
        yield scheme
        if scheme.code == "needs-extra":
            yield finding("not-checksummed", "no checksum can be read without decrypting it")
        return
    f.explain(anatomy, f.is_ambiguous and scheme.mode == "AES-CBC")
    anatomy.metadata["encryption"] = scheme.mode
    if f.is_old and scheme.mode == "SM4-CBC":
        why = "the magic is that of AES-GCM, the content is SM4-CBC: a bit of the magic flipped"
        yield finding("odd-header", why, offset=0)
    for i, b in enumerate(f.blocks):
        if b.tag:  # the checksum of the block's nonce and ciphertext
            pieces = Extent(b.iv_at, scheme.nonce), Extent(b.at, b.size)
            make_hash = partial(Tag, scheme, b.tag)
            anatomy.sums.append(Sum(f"the tag of block {i}", b.tag, pieces, b.tag_at, hash=make_hash))
            anatomy.explain(b.tag_at, len(b.tag), f"tag of block {i}")
            rest, what = len(b.iv) - scheme.nonce, f"end of the IV of block {i}, which is not used"
            anatomy.explain(b.iv_at + scheme.nonce, rest, what, Guard.UNPROTECTED)
        else:
            what = f"IV of block {i}: only the form of what it decrypts is checked"
            anatomy.explain(b.iv_at, len(b.iv), what, Guard.UNPROTECTED)
            what = f"ciphertext of block {i}: only the form of what it decrypts to is checked"
            anatomy.explain(b.at, b.size, what, Guard.UNPROTECTED)
    if not f.blocks[0].tag:
        why = "as MindSpore writes it has no tag: a flipped bit in a tensor's content cannot be seen"
        yield finding("not-checksummed", f"{scheme.mode} {why}")
    yield from _check_records(source, anatomy, f, scheme)


def _find_scheme(source: Source, f: Framing, key: bytes) -> Scheme | Finding:
    """Return the scheme by the framing, the key and what they decrypt to, or a finding that there is none."""
    modes = [f.mode, "AES-CBC", "SM4-CBC"] if f.is_old and f.fits_cbc else [f.mode]
    known = [Scheme(m, key, n) for m in modes for n in ((12, 16) if m == "AES-GCM" else (16,))]
    schemes = [s for s in known if s.fits]
    if not schemes:
        sizes = " or ".join(map(str, KEYS[f.mode[:3]]))
        return finding("wrong-key", f"the key has {len(key)} bytes, {f.mode} takes {sizes}")
    if wanted := crypto.find_missing(schemes[0]):
        return finding("needs-extra", f"to decrypt {f.mode} takes {wanted}")
    other = f"it is not this file's key ({f.mode}), or all of the file is damaged"
    wrong = finding("wrong-key", f"the key that was given leaves noise: {other}")
    return _choose_scheme(source, f, [s for s in schemes if not crypto.find_missing(s)]) or wrong


def _choose_scheme(source: Source, f: Framing, schemes: list[Scheme]) -> Scheme | None:
    """Return the scheme whose plaintext begins like a checkpoint. As the beginning may be damaged, else
    return a scheme whose plaintext is no noise, or None.
    """
    first, last = f.blocks[0], f.blocks[-1]
    for s in schemes:
        if mindspore_ckpt.FORMAT.magic(decrypt(source, s, first, 0, min(HEAD, first.size))):
            return s
    ranges = list[tuple[Block, int, int]]()  # (block, offset in it, length)
    for b in dict.fromkeys((first, last)):
        if b.size <= 3 * _SAMPLE:
            ranges.append((b, 0, b.size))
        else:
            ranges += ((b, at, _SAMPLE) for at in (0, b.size // 2, b.size - _SAMPLE))
    for s in schemes:
        sample = b"".join(decrypt(source, s, b, at, size) for b, at, size in ranges)
        if not crypto.is_noise(sample):
            return s
    return None


def _check_records(source: Source, anatomy: Anatomy, f: Framing, scheme: Scheme) -> Iterator[Finding]:
    """Check the plaintext like a plain file; offsets of findings are those of the ciphertext."""
    paddings = [0] * len(f.blocks)
    for i, b in enumerate(f.blocks) if scheme.mode.endswith("CBC") else ():
        is_full, paddings[i] = i < len(f.blocks) - 1, crypto.count_padding(source, scheme, b)
        if not paddings[i] or (is_full and paddings[i] != UNIT):
            text = f"the end of block {i} does not decrypt to the padding of {scheme.mode}: it is damaged"
            yield finding("bad-header", text, offset=b.at + b.size - 2 * UNIT)
            if not is_full:
                return
            paddings[i] = UNIT  # 64 MiB are whole cipher blocks, so a whole block of padding follows
    plain, inner = Decrypted(source, scheme, f.blocks, paddings), Anatomy()
    try:
        for found in structure(plain, inner, mindspore_ckpt.FORMAT.checks[Level.STRUCTURE]):
            if found.code != "not-checksummed":
                place = None if found.offset is None else plain.place(found.offset)
                yield replace(found, message=f"decrypted: {found.message}", offset=place)
    except ShortRead as e:
        why = f"the plaintext ends at byte {plain.size}, in the middle of a record"
        yield finding("truncated", why, offset=plain.place(e.offset))
    inner.metadata.pop("crc_trailer", None)
    anatomy.metadata |= inner.metadata
    anatomy.keys |= inner.keys
    anatomy.tensors += (replace(t, offset=None) for t in inner.tensors)


FORMAT = make_format(
    "mindspore_encrypted", lambda head: head[:4] in CIPHERS, _structure, final_mode=FINAL_MODE
)
