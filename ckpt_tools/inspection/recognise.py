"""What a file is: by what an index says, by its name, and by how it begins."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt_tools import formats
from ckpt_tools.findings import finding
from ckpt_tools.formats import HEAD, Claim, Format, format_of
from ckpt_tools.formats.named import LISTS
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage import OpenFile

_FIRST = 4096
"""Bytes at the beginning of a file that are looked at for zeros."""
_PROGRAM = b"\x7fELF"
_NUMBERED = re.compile(r"[A-Za-z]+_\d+")
"""A word and a number: Flax calls its files so, and so did many a loop that saved with torch (Tacotron 2)."""


def allowed_by_name(name: str) -> tuple[Format, ...]:
    """Return the formats whose whole names match, then those of its suffixes, longest first."""
    return tuple(map(format_of, formats.names.allowed(name)))


def by_layout(claim: Claim) -> bool:
    """Whether the file is what the claim says: a manifest or seal knows a digest, and not what it is of."""
    return formats.names.family[claim.format] not in LISTS


def recognise(
    source: OpenFile, name: str, expect: Sequence[str], claims: Sequence[Claim]
) -> tuple[Format | None, list[Finding]]:
    """Return what the file is, by the claims that describe it whole, by its name and its beginning, or by the
    claims alone; and what is wrong with it being that. ``expect`` are the formats that the layout wants.
    """
    for claim in claims:
        if claim.whole:
            return format_of(claim.format), []
    if source.size == 0:
        return None, _say_empty(source, () if expect else allowed_by_name(name))
    described = any(map(by_layout, claims))
    fmt, wrong = _recognise_content(source, name, expect, described)
    listed = bool(claims) and not described and not expect
    if listed and fmt and not (fmt.distinct or fmt.state or formats.names.known(name)):
        fmt = None  # a manifest lists texts as well, and many begin as JSON does
    return format_of(claims[0].format) if fmt is None and not wrong and claims else fmt, wrong


def _say_empty(source: OpenFile, named: Sequence[Format]) -> list[Finding]:
    if named and not any(f.ours(source) for f in named):  # other software uses such names as well
        return []
    return [finding("empty-file", "the file has no bytes", offset=0)]


def _recognise_content(
    source: OpenFile, name: str, expect: Sequence[str], described: bool
) -> tuple[Format | None, list[Finding]]:
    """``described``: an index says what it is."""
    if expect and not (expect := [name for name in expect if name in formats.names.family]):
        # its layout comes from a package whose formats cannot be used, or that forgot one
        text = "its layout says that it has a format which nothing installed knows"
        return None, [finding("unreadable", text)]
    head = source.read(0, min(HEAD, source.size))
    # One after the other: most files are what the first ones say, and the others need not be imported.
    wanted = tuple(expect) or formats.names.allowed(name)
    if found := _find_like(head, wanted):
        return found, []
    actual = _find_like(head, formats.names.told_by_magic)
    # what a damaged file of this name may have been; where a layout names the formats, it was one of them
    allowed = [f for f in map(format_of, wanted) if expect or f.ours(source)]
    if not allowed:
        return _recognise_head(source, name, actual, head)
    if zeros := _find_zeros(source, head, allowed):
        return None, [zeros]
    return _find_other(name, allowed, actual, expect=bool(expect), described=described)


def _find_zeros(source: OpenFile, head: bytes, allowed: Sequence[Format]) -> Finding | None:
    first = min(_FIRST, source.size)
    if head.strip(b"\0") or source.read(0, first).strip(b"\0"):
        return None
    told = " or ".join(f.name for f in allowed)
    why = f"the file begins with {first} zero bytes instead of {told}"
    return finding("zero-filled", why, offset=0)


def _find_other(
    name: str, allowed: Sequence[Format], actual: Format | None, *, expect: bool, described: bool
) -> tuple[Format | None, list[Finding]]:
    """Return what a file counts as that begins like none of the formats ``allowed``."""
    told = " or ".join(f.name for f in allowed)
    if actual is None:
        damaged = finding("bad-header", f"the file does not begin like {told}", offset=0)
        return allowed[0] if len(allowed) == 1 else None, [damaged]
    if not expect and not described and _NUMBERED.fullmatch(name):
        return actual, []
    severity = Severity.ERROR if expect or described else actual.misnamed
    why = f"the name says {told}, the content is {actual.name}"
    return None if expect else actual, [finding("wrong-format", why, offset=0, severity=severity)]


def _recognise_head(
    source: OpenFile, name: str, actual: Format | None, head: bytes
) -> tuple[Format | None, list[Finding]]:
    """Return what a file is whose name tells nothing; programs are named as lists of checksums, too."""
    from ckpt_tools.formats.archives.packed import of_people  # most names tell a format: a start is faster

    if actual is not None and not of_people(source, head):  # else somebody has packed an archive
        return actual, []
    if "checksums" not in formats.names.allowed(name) or head.startswith(_PROGRAM):
        return None, []
    why = "its name is that of a list of digests, and it holds none: no file is compared with it"
    hint = "write it again from sound files, or seal them ('ckpt seal CHECKPOINT')"
    return None, [finding("not-checksummed", why, severity=Severity.WARNING, hint=hint)]


def _find_like(head: bytes, names: Sequence[str]) -> Format | None:
    """Return the first of these formats whose files begin so."""
    return next((f for f in map(format_of, names) if f.magic(head)), None)
