"""How torch's old format begins, and what else such a beginning may be."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source

NUMBER = 0x1950A86A20F9469CFC6C
_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")  # LONG1 0x1950a86a20f9469cfc6c, STOP
_BLOCK = 512
_SUM = slice(148, 156)


def legacy_magic(head: bytes) -> bool:
    """A pickle of torch's magic number: as text in protocols 0 and 1, in binary in 2 and 3, with a frame
    around it in 4 and 5.
    """
    return head.startswith(b"L%dL\n." % NUMBER) or (is_proto(head) and head.find(_MAGIC) in (2, 11))


def is_proto(head: bytes) -> bool:
    """The opcode PROTO of protocol 2 to 5, with which their pickles begin."""
    return head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5")


def also_tar(source: Source) -> Iterator[Finding]:
    """What is wrong with a pickle whose first 512 bytes are a tar header as well: torch.load asks tarfile
    first, and unpickles the archive's members.
    """
    if source.size >= _BLOCK and is_tar_header(source.read(0, _BLOCK)):
        yield finding(
            "unsafe-pickle",
            "the file is a tar archive as well: torch.load would unpickle its members instead of what was"
            " read here",
            offset=0,
        )


def is_tar_header(block: bytes) -> bool:
    """Whether Python's tarfile takes these 512 bytes for a header: it goes by their sum, of signed or
    unsigned bytes (tarfile.calc_chksums, nti).
    """
    others = block[: _SUM.start] + b" " * 8 + block[_SUM.stop :]
    unsigned = sum(others)
    return any(block) and _number(block[_SUM]) in (unsigned, unsigned - 256 * sum(b > 127 for b in others))


def _number(field: bytes) -> int | None:
    """A number as tar writes it: octal digits, or binary behind a byte of 0x80 or 0xff."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    try:
        return int(field.partition(b"\0")[0].decode("ascii").strip() or "0", 8)
    except ValueError:
        return None
