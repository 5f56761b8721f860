"""MindSpore's encrypted ``.ckpt``: the plain file cut into blocks of 64 MiB, each encrypted alone. Only the framing is read: no key is needed.

Facts: ``_encrypt`` and ``_decrypt`` of MindSpore 2.10 (checked by decrypting with another library), mindspore/train/serialization.py
(``_exec_save``). All integers are 32-bit little-endian:
magic | GCM only: tag[16] | block_len | iv_len = 16 | iv[16] | cipher_len | cipher, with block_len = 4 + iv_len + 4 + cipher_len.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.codes import finding
from ckpt_tools.formats._base import Anatomy, Damage, Format
from ckpt_tools.formats._mindspore_records import LITERAL, TRAILER
from ckpt_tools.model import Finding, Level, Severity
from ckpt_tools.storage import Source

MODES = {b"\xd8\x5e\x3a\x7f": "AES-GCM", b"\xd9\x5e\x3a\x7f": "AES-CBC", b"\xda\x5e\x3a\x7f": "SM4-CBC"}
PLAIN = 64 * 1024 * 1024
"""Bytes of plaintext in every block but the last."""


def _u32(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 4], "little")


def _magic(head: bytes) -> bool:
    return head[:4] in MODES


def _untagged(head: bytes) -> bool:
    """MindSpore 1.x wrote AES-GCM blocks without the tag: then the three lengths fit each other 16 bytes earlier."""
    return len(head) >= 32 and _u32(head, 8) == 16 and _u32(head, 28) + 24 == _u32(head, 4)


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Follow the chain of blocks, which must end exactly at the end of the file. Reads 48 bytes per block."""
    size, at, blocks, cipher, full = source.size, 0, 0, 0, True
    first = source.read(0, min(48, size))
    mode = MODES.get(first[:4])
    if mode is None:
        raise Damage("bad-header", f"the file begins with {first[:4].hex()}, no magic of an encrypted checkpoint", 0)
    tag = 16 if mode == "AES-GCM" and not _untagged(first) else 0
    padding = 0 if mode == "AES-GCM" else 16  # CBC pads each block by 1 to 16 bytes (PKCS#7)
    anatomy.metadata["encryption"] = mode
    lengths = 4 + tag  # where block_len stands
    while at < size:
        left = size - at
        if not full:
            raise _after_last(source, at, left)
        head = source.read(at, min(lengths + 28, left))
        if head[:4] != first[:4] and not first.startswith(head):
            raise Damage("bad-header", f"block {blocks} begins with {head[:4].hex()} instead of {first[:4].hex()}", at)
        if left < lengths + 28:
            raise Damage("truncated", f"block {blocks} has {left} of the {lengths + 28} bytes of its header", size)
        cipher = _u32(head, lengths + 24)
        if _u32(head, lengths + 4) != 16 or _u32(head, lengths) != 24 + cipher:
            raise Damage("bad-header", f"the lengths in the header of block {blocks} contradict each other", at + lengths)
        if not 0 < cipher <= PLAIN + padding or (padding and cipher % 16):
            raise Damage("bad-header", f"block {blocks} cannot hold {cipher} bytes of ciphertext", at + lengths + 24)
        if lengths + 28 + cipher > left:
            raise Damage("truncated", f"block {blocks} should end at byte {at + lengths + 28 + cipher}, the file ends at {size}", size)
        full, blocks, at = cipher == PLAIN + padding, blocks + 1, at + lengths + 28 + cipher
    anatomy.metadata["encrypted_blocks"] = blocks
    if not tag and not padding and cipher % 16 == 0:  # the magics of the CBC modes are one bit away from that of GCM
        yield finding("odd-header", "AES-GCM without tags, as MindSpore 1.x wrote it, or a CBC mode whose magic lost a bit", offset=0)
    if full:  # one intact file in 67 million ends like this
        text = f"the last of {blocks} blocks is full: the file was probably cut at the border of two blocks"
        yield finding("truncated", text, offset=size, severity=Severity.WARNING)
    seen = "its tags can only be checked with the key" if tag else "this mode has no tag, so even with the key a flipped bit may pass"
    yield finding("needs-key", f"encrypted with {mode}: {seen}")
    yield finding("not-checksummed", "no checksum can be read without the key")


def _after_last(source: Source, at: int, left: int) -> Damage:
    """Only the last block may be short, so nothing can follow a short one."""
    if left == TRAILER and source.read(at, len(LITERAL)) == LITERAL:
        text = "MindSpore appended its CRC trailer to the ciphertext (crc_check=True with enc_key) and cannot decrypt that: without the last 17 bytes it loads"
        return Damage("trailing-data", text, at)
    return Damage("trailing-data", f"{left} bytes follow the last block", at)


FORMAT = Format(
    name="mindspore_encrypted",
    suffixes=(".ckpt",),
    magic=_magic,
    checks={Level.STRUCTURE: _structure},
    protects="AES-GCM: a tag per block, which needs the key; AES-CBC and SM4-CBC: nothing",
    limits=(
        "the ciphertext is not checked without the key",
        "nothing protects the number and order of blocks: a file of several blocks that lost whole ones in the middle has a valid framing",
        "names, steps and tensors are not known",
    ),
    reference="MindSpore 2.10: mindspore/train/serialization.py, _encrypt; blocks decrypted with an independent library",
)
