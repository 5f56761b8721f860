"""What a file is: by what an index says, by its name, and by how it begins."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools import formats
from ckpt_tools.findings import finding
from ckpt_tools.formats import HEAD, Claim, Format, format_of
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage import LocalSource


def allowed_by_name(name: str) -> tuple[Format, ...]:
    """The formats whose whole names match ``name``, then those whose suffixes it ends with, the longest suffix first."""
    return tuple(map(format_of, formats.names.allowed(name)))


def _recognise(
    source: LocalSource, name: str, expect: Sequence[str], described: bool
) -> tuple[Format | None, list[Finding]]:
    """The format of the content and what is wrong with it being that one. ``expect`` are the formats that the layout wants; ``described``: an index says what it is."""
    head = source.read(0, min(HEAD, source.size))
    named = tuple(expect) or formats.names.allowed(name)
    for f in map(
        format_of, named
    ):  # one after the other: most files are what the first ones say, and the others need not be imported
        if f.magic(head):
            return f, []
    allowed = tuple(map(format_of, named))
    actual = next((f for f in map(format_of, formats.names.order) if f.magic(head)), None)
    allowed = allowed if expect else tuple(f for f in allowed if f.ours(source))
    if not allowed:
        return actual, []
    wanted = " or ".join(f.name for f in allowed)
    if not head.strip(b"\0") and not source.read(0, min(4096, source.size)).strip(b"\0"):
        return None, [
            finding(
                "zero-filled",
                f"the file begins with {min(4096, source.size)} zero bytes instead of {wanted}",
                offset=0,
            )
        ]
    if actual is not None:
        severity = (
            Severity.ERROR if expect or described or actual.name == "mindspore_ckpt" else Severity.WARNING
        )
        return (None if expect else actual), [
            finding(
                "wrong-format",
                f"the name says {wanted}, the content is {actual.name}",
                offset=0,
                severity=severity,
            )
        ]
    return allowed[0] if len(allowed) == 1 else None, [
        finding("bad-header", f"the file does not begin like {wanted}", offset=0)
    ]


def recognise(
    source: LocalSource, name: str, expect: Sequence[str], claims: Sequence[Claim], found: list[Finding]
) -> Format | None:
    """What the file is, by the claims that describe it whole, by its name and its beginning, or by the claims alone."""
    for claim in claims:
        if claim.whole:
            return format_of(claim.format)
    if source.size == 0:
        named = () if expect else allowed_by_name(name)
        if not named or any(f.ours(source) for f in named):
            found.append(finding("empty-file", "the file has no bytes", offset=0))
        return None
    fmt, said = _recognise(source, name, expect, bool(claims))
    found += said
    return format_of(claims[0].format) if fmt is None and not said and claims else fmt
