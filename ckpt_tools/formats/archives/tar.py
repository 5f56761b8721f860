"""A tar archive as Python's tarfile writes it: each header's sum, each padding byte and the zeros at the end
are checked.

Facts: POSIX.1-2008 pax (ustar header, extended headers); CPython Lib/tarfile.py (TarInfo.tobuf,
create_pax_header).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from posixpath import dirname, join, normpath
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

NAMES = ("sys_info", "pickle", "tensors", "storages")
"""The members of torch's tar, in the order in which it writes them."""
_BLOCK, _RECORD = 512, 10240
_LINKS, _DEVICES, _EMPTY = b"12", b"346", b"123456"
"""Types of members: hard and symbolic links; devices and pipes; all types without content, whatever size
their header says, as Python's tarfile reads the next header right behind it.
"""
_UP = re.compile(r"(\.{1,2}/)+")
_MAX_PATH = 4096
_MANY = 64  # headers of a torch file at most: torch writes two per member
_PAX = 64 * 1024  # the most bytes of an extended header


class Member(NamedTuple):
    """A regular file in the archive: where its header lies, and where its content begins and ends."""

    name: str
    header: int
    begin: int
    end: int


def read_members(source: Source, anatomy: Anatomy, most: int) -> Generator[Finding, None, list[Member]]:
    """Check a tar and return its regular files in order. Raise Damage, also if headers exceed ``most``."""
    found, links = list[Member](), set[str]()
    at, info, defaults = 0, _MemberInfo(), _MemberInfo()
    for _ in range(most):
        if at + _BLOCK > source.size:
            why = "the archive ends before the blocks of zeros that mark its end"
            raise Damage("truncated", why, source.size)
        head = source.read(at, _BLOCK)
        if not any(head):
            yield from _check_end(source, at, anatomy)
            return found
        kind, length, in_header = _read_header(head, at)
        title, begin = f"{in_header.name[:100]!r}", at + _BLOCK
        anatomy.explain(at, _BLOCK, f"tar header of {title}")
        if kind in b"xXg":
            pax = _read_pax(source, begin, length, anatomy)
            info, defaults = (info, pax) if kind == b"g" else (pax, defaults)
        elif kind == b"S":
            raise Damage("bad-header", f"a sparse member {title}, which no framework writes", at)
        elif kind in b"LK":  # GNU tar's record of a long name, or of a long target of a link
            if length > _PAX:
                raise Damage("bad-header", f"a name of {length:,} bytes", begin)
            anatomy.explain(begin, length, "the name of the member behind it", Guard.UNPROTECTED)
            long = _decode_name(source.read(begin, length))
            info = info._replace(name=long) if kind == b"L" else info._replace(link=long)
        else:
            info = info.fill_from(defaults).fill_from(in_header._replace(size=length))
            yield from _check_path(info.name, kind, info.link, links, at)
            length = 0 if kind in _EMPTY else info.size or 0
            if kind not in _EMPTY:
                found.append(Member(info.name, at, begin, begin + length))
            info = _MemberInfo()
        end = begin + length
        at = end + -end % _BLOCK
        if at > source.size:
            why = f"the file has {source.size:,} bytes; member {title} ends at {end:,}"
            raise Damage("truncated", why, source.size)
        if any(source.read(end, at - end)):
            why = f"the bytes that fill up the last block of {title} are not all zero"
            yield finding("odd-header", why, offset=end)
        anatomy.explain(end, at - end, "zeros that fill up a block")
    why = f"a tar archive of more than {most:,} headers is none of those that are read"
    raise Damage("wrong-format", why, 0, Severity.WARNING)


def _check_path(name: str, kind: bytes, link: str, links: set[str], at: int) -> Iterator[Finding]:
    """Yield ``path-escape`` if unpacking a member leaves the directory; add it to ``links`` if it is one."""
    path, target = normpath(name), link if kind in _LINKS else ""
    leads = normpath(join(dirname(name), target) if kind == b"2" else target)
    back = ".." in _UP.sub("", target).split("/")  # up from a directory, which may be a link
    leaves = back or leads.startswith(("/", ".."))
    if ".." in name.split("/") or name.startswith("/") or not links.isdisjoint(_find_parents(path)):
        why = f"the archive writes {name[:200]!r}, which is outside of its directory or goes through a link"
        yield finding("path-escape", why, offset=at)
    if target and (leaves or not links.isdisjoint((leads, *_find_parents(leads)))):
        why = f"the archive makes {name[:200]!r} a link to {target[:200]!r}, out of its directory"
        yield finding("path-escape", why, offset=at)
    if kind in _DEVICES:
        yield finding("path-escape", f"the archive makes {name[:200]!r} a device or a pipe", offset=at)
    if kind == b"2":
        links.add(path)


def _find_parents(path: str) -> list[str]:
    """Return all parent directories of a path."""
    return [path[:i] for i, letter in enumerate(path[:_MAX_PATH]) if letter == "/"]


def list_members(source: Source, anatomy: Anatomy) -> Generator[Finding, None, dict[str, tuple[int, int]]]:
    """Return (begin, end) of each regular member of a tar that torch wrote, by name. Raise Damage."""
    found: dict[str, tuple[int, int]] = {}
    for m in (yield from read_members(source, anatomy, _MANY)):
        title = f"{m.name[:100]!r}"
        if m.name in found:
            why = f"two members are called {title}"
            yield finding("duplicate-key", why, offset=m.header, severity=Severity.ERROR)
        found[m.name] = (m.begin, m.end)
        if m.name not in NAMES:
            what = f"member {title}, which is not looked at"
            anatomy.explain(m.begin, m.end - m.begin, what, Guard.UNPROTECTED)
    if found.keys().isdisjoint(NAMES):
        why = "a tar archive with none of the members that torch writes"
        raise Damage("wrong-format", why, 0, Severity.WARNING)
    for other in found.keys() - set(NAMES):
        yield finding("extra-file", f"torch writes no member called {other[:100]!r}", offset=found[other][0])
    return found


def _read_header(head: bytes, at: int) -> tuple[bytes, int, _MemberInfo]:
    """Return type, size in bytes and names of a tar header block. Raise Damage if its sum does not match."""
    total = sum(head[:148]) + 8 * 32 + sum(head[156:])
    if head[148:156] != b"%06o\0 " % total:
        why = f"the tar header's bytes sum up to {total}, it says {head[148:156]!r}"
        raise Damage("crc-mismatch", why, at)
    digits = head[124:136].strip(b" \0")
    if not digits.isdigit() or not set(digits) <= set(b"01234567"):
        raise Damage("bad-header", "the tar header's size is not an octal number", at + 124)
    kind, name, link, prefix = head[156:157], head[:100], head[157:257], head[345:500].partition(b"\0")[0]
    if prefix and kind not in b"LKS":
        name = prefix + b"/" + name
    return kind, int(digits, 8), _MemberInfo(None, _decode_name(name), _decode_name(link))


def _decode_name(name: bytes) -> str:
    """Return a name of a tar header, up to its NUL; bytes that are no UTF-8 are escaped."""
    return name.partition(b"\0")[0].decode("utf-8", "backslashreplace")


class _MemberInfo(NamedTuple):
    """The size and the names of a member as one or more headers state them; None and "" if they do not."""

    size: int | None = None
    name: str = ""
    link: str = ""

    def fill_from(self, other: _MemberInfo) -> _MemberInfo:
        """Return this, with gaps filled from ``other``."""
        size = other.size if self.size is None else self.size
        return _MemberInfo(size, self.name or other.name, self.link or other.link)


def _read_pax(source: Source, at: int, length: int, anatomy: Anatomy) -> _MemberInfo:
    """Return size and names of an extended header, of lines "length key=value". Raise Damage."""
    if length > _PAX:
        raise Damage("bad-header", f"a pax header of {length:,} bytes", at)
    data, info, done = source.read(at, length), _MemberInfo(), 0
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
                raise Damage("bad-header", "a pax header's size is not a number", at + done)
            info = info._replace(size=int(value))
        elif key == b"path":
            info = info._replace(name=_decode_name(value))
        elif key == b"linkpath":
            info = info._replace(link=_decode_name(value))
        elif key.startswith(b"GNU.sparse"):
            raise Damage("bad-header", "a sparse member, which no framework writes", at + done)
        done += n
    return info


def _check_end(source: Source, at: int, anatomy: Anatomy) -> Generator[Finding, None, None]:
    """Check the zeros that end a tar: two blocks at least, to a multiple of 10,240 bytes (TarFile.close)."""
    length = source.size - at
    tail = source.read(at, min(length, 2 * _RECORD))
    if length < 2 * _BLOCK or source.size % _RECORD:
        why = "the archive does not end with its last full record of 10,240 bytes"
        yield finding("truncated", why, offset=source.size)
    elif any(tail) or length > 2 * _RECORD:
        yield finding("trailing-data", "bytes follow the end of the archive", offset=at)
    anatomy.explain(at, length, "zeros that end the archive")
