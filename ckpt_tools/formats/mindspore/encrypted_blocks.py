"""The framing of MindSpore's encrypted ``.ckpt``: blocks that were encrypted one by one. No key is needed to
follow them.

Facts: mindspore/core/utils/crypto.cc of MindSpore 1.3 to 2.10. All integers are 32-bit little-endian:
magic | GCM only: tag[16] | block_len | iv_len = 16 | iv[16] | cipher_len | cipher, with block_len = 4 +
iv_len + 4 + cipher_len.
MindSpore 1.x wrote the magic of AES-GCM for AES-CBC too, and no tags; its first blocks held 512 MiB instead
of 64.
"""

from __future__ import annotations

from typing import NamedTuple

from ckpt_tools.formats.common.crypto import Block
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.mindspore.records import CIPHERS, LITERAL, TRAILER
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

PLAIN, OLD_PLAIN = 64 * 1024 * 1024, 512 * 1024 * 1024
"""Bytes of plaintext in every block but the last: since 1.5 or so, and before."""


class Framing(NamedTuple):
    """``mode`` is what the magic says. ``old`` is the layout of 1.x, where the magic does not tell GCM from
    CBC. ``full`` is whether the last block is.
    """

    mode: str
    old: bool
    full: bool
    blocks: list[Block]

    @property
    def even(self) -> bool:
        """Whether every block is whole cipher blocks, as CBC makes them."""
        return all(b.size % 16 == 0 for b in self.blocks)

    @property
    def twin(self) -> bool:
        """Whether one flipped bit in the first magic gives the framing of another mode. Further blocks would
        contradict it.
        """
        return len(self.blocks) == 1 and self.even and not self.blocks[0].tag

    def explain(self, anatomy: Anatomy, twin: bool) -> None:
        """What the bytes of the headers are; ``twin`` when that of another mode would pass."""
        start = 0
        for i, b in enumerate(self.blocks):
            if twin:
                anatomy.explain(
                    start, 1, "magic: another mode's differs from it in one bit", Guard.UNPROTECTED
                )
            anatomy.explain(start + twin, 4 - twin, f"magic of block {i}")
            anatomy.explain(b.iv_at - 8, 8, f"lengths of block {i}")
            anatomy.explain(b.at - 4, 4, f"length of the ciphertext of block {i}")
            start = b.at + b.size

    def hide(self, anatomy: Anatomy, why: str) -> None:
        """Explain tags, IVs and ciphertext as unchecked."""
        for i, b in enumerate(self.blocks):
            anatomy.explain(b.tag_at, len(b.tag), f"tag of block {i}: {why}", Guard.UNPROTECTED)
            anatomy.explain(b.iv_at, len(b.iv), f"IV of block {i}: {why}", Guard.UNPROTECTED)
            anatomy.explain(b.at, b.size, f"ciphertext of block {i}: {why}", Guard.UNPROTECTED)


def _u32(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 4], "little")


def _untagged(head: bytes) -> bool:
    """Without the tag of 16 bytes the three lengths fit each other 16 bytes earlier."""
    return len(head) >= 32 and _u32(head, 8) == 16 and _u32(head, 28) + 24 == _u32(head, 4)


def framing(source: Source) -> Framing:
    """Follow the chain of blocks, which must end exactly at the end of the file.

    Reads 48 bytes per block. Raises Damage.
    """
    rules = _rules(source)
    at, full, blocks = 0, True, list[Block]()
    while at < source.size:
        if not full:
            raise _after_last(source, at, source.size - at)
        block = _block(source, at, len(blocks), rules)
        blocks.append(block)
        full = block.size == rules.most or (rules.old and block.size == rules.plain)
        at = block.at + block.size
    return Framing(rules.mode, rules.old, full, blocks)


class _Rules(NamedTuple):
    """What the beginning of a file says of all its blocks.

    ``tag`` are the bytes of a tag, ``plain`` the bytes of plaintext in every block but the last, ``most``
    those of ciphertext.
    """

    mode: str
    magic: bytes
    old: bool
    tag: int
    plain: int
    most: int


def _rules(source: Source) -> _Rules:
    """Raises Damage when the file does not begin like an encrypted checkpoint."""
    first = source.read(0, min(48, source.size))
    magic = first[:4]
    mode = CIPHERS.get(magic)
    if mode is None:
        why = f"the file begins with {magic.hex()}, no magic of an encrypted checkpoint"
        raise Damage("bad-header", why, 0)
    old = mode == "AES-GCM" and _untagged(first)
    tag = 16 if mode == "AES-GCM" and not old else 0
    padding = 0 if tag else 16  # CBC pads each block by 1 to 16 bytes (PKCS#7)
    plain = OLD_PLAIN if old and _u32(first, 28) > PLAIN + padding else PLAIN
    return _Rules(mode, magic, old, tag, plain, plain + padding)


def _block(source: Source, at: int, i: int, rules: _Rules) -> Block:
    """The block ``i``, which begins at ``at``. Raises Damage."""
    size, left = source.size, source.size - at
    lengths = 4 + rules.tag  # where block_len stands
    whole = lengths + 28
    head = source.read(at, min(whole, left))
    if head[:4] != rules.magic and not rules.magic.startswith(head):
        why = f"block {i} begins with {head[:4].hex()} instead of {rules.magic.hex()}"
        raise Damage("bad-header", why, at)
    if left < whole:
        raise Damage("truncated", f"block {i} has {left} of the {whole} bytes of its header", size)
    cipher = _u32(head, lengths + 24)
    if _u32(head, lengths + 4) != 16 or _u32(head, lengths) != 24 + cipher:
        why = f"the lengths in the header of block {i} contradict each other"
        raise Damage("bad-header", why, at + lengths)
    # CBC alone makes whole cipher blocks, and the old magic does not tell CBC from GCM
    uneven = not rules.tag and not rules.old and cipher % 16
    if not 0 < cipher <= rules.most or uneven:
        raise Damage("bad-header", f"block {i} cannot hold {cipher} bytes of ciphertext", at + lengths + 24)
    here = at + whole
    if here + cipher > size:
        why = f"block {i} should end at byte {here + cipher}, the file ends at {size}"
        raise Damage("truncated", why, size)
    iv, tag = head[lengths + 8 : lengths + 24], head[4:lengths]
    return Block(here, cipher, iv, at + lengths + 8, tag, at + 4)


def _after_last(source: Source, at: int, left: int) -> Damage:
    """Only the last block may be short, so nothing can follow a short one."""
    if left == TRAILER and source.read(at, len(LITERAL)) == LITERAL:
        text = (
            "MindSpore appended its CRC trailer to the ciphertext (crc_check=True with enc_key) and cannot"
            " decrypt that: without the last 17 bytes it loads"
        )
        return Damage("trailing-data", text, at)
    return Damage("trailing-data", f"{left} bytes follow the last block", at)
