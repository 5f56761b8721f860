"""What the tests of formats share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ckpt_tools import checksum
from ckpt_tools.codes import finding
from ckpt_tools.formats import FORMATS, HEAD, Anatomy, Format, structure
from ckpt_tools.model import Finding, Level, Severity
from ckpt_tools.storage import BytesSource, ShortRead

FIXTURES = Path(__file__).parent.parent / "fixtures" / "formats"


def findings(data: bytes, fmt: Format, anatomy: Anatomy) -> Iterator[Finding]:
    """The findings of the structure check and of the stored checksums, one by one, as `verify` puts them together."""
    source = BytesSource(data)
    try:
        yield from structure(source, anatomy, fmt.checks[Level.STRUCTURE])
        for s, _ in checksum.mismatches(source, anatomy.sums, jobs=1):
            yield finding("crc-mismatch", s.what, offset=s.offset)
    except ShortRead as e:
        yield finding("truncated", str(e), offset=e.offset)


def look(data: bytes, fmt: Format | None = None, anatomy: Anatomy | None = None) -> list[Finding]:
    """All findings; without ``fmt`` the magic decides."""
    fmt = fmt or next((f for f in FORMATS if f.magic(data[:HEAD])), None)
    if fmt is None:
        return [finding("wrong-format", "no format has this beginning")]
    return list(findings(data, fmt, Anatomy() if anatomy is None else anatomy))


def bad(found: list[Finding]) -> list[Finding]:
    """Those that change the verdict."""
    return [f for f in found if f.severity > Severity.NOTE]


def is_bad(data: bytes, fmt: Format) -> bool:
    """Whether any finding changes the verdict; stops at the first."""
    return any(f.severity > Severity.NOTE for f in findings(data, fmt, Anatomy()))
