"""What the tests of formats share."""

from __future__ import annotations

from pathlib import Path

from ckpt_tools import checksum
from ckpt_tools.codes import finding
from ckpt_tools.formats import FORMATS, HEAD, Anatomy, Format, structure
from ckpt_tools.model import Finding, Level, Severity
from ckpt_tools.storage import BytesSource, ShortRead

FIXTURES = Path(__file__).parent.parent / "fixtures" / "formats"


def look(data: bytes, fmt: Format | None = None, anatomy: Anatomy | None = None) -> list[Finding]:
    """All findings of the structure check and of the stored checksums, as `verify` puts them together; the magic decides without ``fmt``."""
    fmt = fmt or next((f for f in FORMATS if f.magic(data[:HEAD])), None)
    if fmt is None:
        return [finding("wrong-format", "no format has this beginning")]
    source, anatomy, out = BytesSource(data), anatomy or Anatomy(), []
    try:
        out.extend(structure(source, anatomy, fmt.checks[Level.STRUCTURE]))
        for s, _ in checksum.mismatches(source, anatomy.sums, jobs=1):
            out.append(finding("crc-mismatch", s.what, offset=s.offset))
    except ShortRead as e:
        out.append(finding("truncated", str(e), offset=e.offset))
    return out


def bad(findings: list[Finding]) -> list[Finding]:
    """Those that change the verdict."""
    return [f for f in findings if f.severity > Severity.NOTE]
