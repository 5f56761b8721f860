"""A tar archive as Python's tarfile writes it: every header's sum, every padding byte and the zeros at the
end are checked.

Facts: POSIX.1-2008 pax (ustar header, extended headers); CPython Lib/tarfile.py (TarInfo.tobuf,
create_pax_header).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

NAMES = ("sys_info", "pickle", "tensors", "storages")
"""The members of torch's tar, in the order in which it writes them."""
_BLOCK, _RECORD = 512, 10240
_MANY = 64  # headers: torch writes two per member
_PAX = 64 * 1024  # bytes of an extended header read at most


def members(source: Source, anatomy: Anatomy) -> Generator[Finding, None, dict[str, tuple[int, int]]]:
    """Where the content of each regular member begins and ends. Raises Damage when the headers cannot be
    followed.
    """
    found: dict[str, tuple[int, int]] = {}
    at, size = 0, None  # size: what an extended header says about the next member
    for _ in range(_MANY):
        if at + _BLOCK > source.size:
            why = "the archive ends before the blocks of zeros that mark its end"
            raise Damage("truncated", why, source.size)
        head = source.read(at, _BLOCK)
        if not any(head):
            yield from _end(source, at, anatomy)
            yield from _strangers(found)
            return found
        name, kind, length = _header(head, at)
        title, begin = f"{name[:100]!r}", at + _BLOCK
        anatomy.explain(at, _BLOCK, f"tar header of {title}")
        if kind == b"x":
            size = _pax(source, begin, length, anatomy)
        else:
            length, size = length if size is None else size, None
            if kind in (b"0", b"\0"):
                if name in found:
                    why = f"two members are called {title}"
                    yield finding("duplicate-key", why, offset=at, severity=Severity.ERROR)
                found[name] = (begin, begin + length)
                if name not in NAMES:
                    what = f"member {title}, which is not looked at"
                    anatomy.explain(begin, length, what, Guard.UNPROTECTED)
        at = yield from _filled(source, title, begin + length, anatomy)
    why = f"a tar archive of more than {_MANY} headers is none of torch's"
    raise Damage("wrong-format", why, 0, Severity.WARNING)


def _strangers(found: dict[str, tuple[int, int]]) -> Iterator[Finding]:
    """Members that torch does not write. Raises Damage when there are no others."""
    if not set(NAMES) & found.keys():
        why = "a tar archive with none of the members that torch writes"
        raise Damage("wrong-format", why, 0, Severity.WARNING)
    for other in found.keys() - set(NAMES):
        why = f"torch writes no member called {other[:100]!r}"
        yield finding("extra-file", why, offset=found[other][0])


def _filled(source: Source, title: str, end: int, anatomy: Anatomy) -> Generator[Finding, None, int]:
    """Check the zeros behind a member that ends at ``end``; returns where the next header begins."""
    left = -end % _BLOCK
    if end + left > source.size:
        why = f"the file has {source.size:,} bytes; member {title} ends at {end:,}"
        raise Damage("truncated", why, source.size)
    if any(source.read(end, left)):
        why = f"the bytes that fill up the last block of {title} are not all zero"
        yield finding("odd-header", why, offset=end)
    anatomy.explain(end, left, "zeros that fill up a block")
    return end + left


def _header(head: bytes, at: int) -> tuple[str, bytes, int]:
    """Name, type and size in bytes of one header. Raises Damage when its sum does not match."""
    total = sum(head[:148]) + 8 * 32 + sum(head[156:])
    if head[148:156] != b"%06o\0 " % total:
        raise Damage(
            "crc-mismatch", f"the tar header's bytes sum up to {total}, it says {head[148:156]!r}", at
        )
    digits = head[124:136].strip(b" \0")
    if not digits.isdigit() or not set(digits) <= set(b"01234567"):
        raise Damage("bad-header", "the tar header's size is no octal number", at + 124)
    return head[:100].rstrip(b"\0").decode("utf-8", "backslashreplace"), head[156:157], int(digits, 8)


def _pax(source: Source, at: int, length: int, anatomy: Anatomy) -> int | None:
    """The member's size if the extended header says it; it does for 8 GiB and more. Each of its records is a
    line "length key=value".
    """
    if length > _PAX:
        raise Damage("bad-header", f"a pax header of {length:,} bytes", at)
    data, size, done = source.read(at, length), None, 0
    anatomy.explain(at, length, "pax header: times of the writer", Guard.UNPROTECTED)
    while done < length:
        digits, _, rest = data[done : done + 8].partition(b" ")
        n = int(digits) if rest and digits.isdigit() else 0
        record = data[done : done + n]
        if n <= len(digits) + 1 or len(record) != n or not record.endswith(b"\n") or b"=" not in record:
            raise Damage("bad-header", "a pax header's record is damaged", at + done)
        key, _, value = record[len(digits) + 1 : -1].partition(b"=")
        if key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise Damage("bad-header", "a pax header's size is no number", at + done)
            size = int(value)
        done += n
    return size


def _end(source: Source, at: int, anatomy: Anatomy) -> Generator[Finding, None, None]:
    """Two blocks of zeros at least, then zeros up to a multiple of 10,240 bytes (tarfile.TarFile.close)."""
    length = source.size - at
    tail = source.read(at, min(length, 2 * _RECORD))
    if length < 2 * _BLOCK or source.size % _RECORD:
        yield finding(
            "truncated",
            "the archive does not end with its last full record of 10,240 bytes",
            offset=source.size,
        )
    elif any(tail) or length > 2 * _RECORD:
        yield finding("trailing-data", "bytes follow the end of the archive", offset=at)
    anatomy.explain(at, length, "zeros that end the archive")
