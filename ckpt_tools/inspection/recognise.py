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


def allowed_by_name(name: str) -> tuple[Format, ...]:
    """The formats whose whole names match ``name``, then those whose suffixes it ends with, the longest
    suffix first.
    """
    return tuple(map(format_of, formats.names.allowed(name)))


_PROGRAM = b"\x7fELF"
_NUMBERED = re.compile(r"[A-Za-z]+_\d+")
"""A word and a number: Flax calls its files so, and so did many a loop that saved with torch (Tacotron 2)."""


def _recognise(
    source: OpenFile, name: str, expect: Sequence[str], described: bool
) -> tuple[Format | None, list[Finding]]:
    """The format of the content and what is wrong with it being that one.

    ``expect`` are the formats that the layout wants; ``described``: an index says what it is.
    """
    if expect and not (expect := [name for name in expect if name in formats.names.family]):
        # its layout comes from a package whose formats cannot be used, or that forgot one
        text = "its layout says that it has a format which nothing installed knows"
        return None, [finding("unreadable", text)]
    head = source.read(0, min(HEAD, source.size))
    # One after the other: most files are what the first ones say, and the others need not be imported.
    wanted = tuple(expect) or formats.names.allowed(name)
    if found := _like(head, wanted):
        return found, []
    actual = _like(head, formats.names.told_by_magic)
    allowed = _ours(source, wanted, sure=bool(expect))
    if not allowed:
        return _by_head_alone(source, name, actual, head)
    told = " or ".join(f.name for f in allowed)
    if zeros := _zeros(source, head, told):
        return None, [zeros]
    if actual is None:
        damaged = finding("bad-header", f"the file does not begin like {told}", offset=0)
        return allowed[0] if len(allowed) == 1 else None, [damaged]
    if expect:
        return None, [_other(actual, told, error=True)]
    free = not described and _NUMBERED.fullmatch(name)
    return actual, [] if free else [_other(actual, told, error=described)]


def _by_head_alone(
    source: OpenFile, name: str, actual: Format | None, head: bytes
) -> tuple[Format | None, list[Finding]]:
    """What a file is whose name tells nothing."""
    fmt = _of_a_framework(actual, source, head)
    return fmt, [] if fmt else _listing_nothing(name, head)


def _listing_nothing(name: str, head: bytes) -> list[Finding]:
    """What to say of a file that has the name of a list of checksums, and is none; programs have such names
    as well.
    """
    if "checksums" not in formats.names.allowed(name) or head.startswith(_PROGRAM):
        return []
    why = "its name is that of a list of digests, and it holds none: no file is compared with it"
    hint = "write it anew from sound files, or seal them ('ckpt seal CHECKPOINT')"
    return [finding("not-checksummed", why, severity=Severity.WARNING, hint=hint)]


def _like(head: bytes, names: Sequence[str]) -> Format | None:
    """The first of these formats whose files begin so."""
    return next((f for f in map(format_of, names) if f.magic(head)), None)


def _of_a_framework(actual: Format | None, source: OpenFile, head: bytes) -> Format | None:
    """The format that a file begins as; None where somebody has packed an archive that only begins so."""
    from ckpt_tools.formats.archives.packed import of_people  # most names tell a format: a start is faster

    return None if actual is not None and of_people(source, head) else actual


def _zeros(source: OpenFile, head: bytes, told: str) -> Finding | None:
    """That a file begins with nothing but zeros."""
    first = min(_FIRST, source.size)
    if not (_is_zero(head) and _is_zero(source.read(0, first))):
        return None
    return finding("zero-filled", f"the file begins with {first} zero bytes instead of {told}", offset=0)


def _ours(source: OpenFile, names: Sequence[str], *, sure: bool) -> tuple[Format, ...]:
    """The formats of these names that a damaged file of this name may have had; ``sure``: it had one."""
    return tuple(f for f in map(format_of, names) if sure or f.ours(source))


def _is_zero(data: bytes) -> bool:
    return not data.strip(b"\0")


def _other(actual: Format, told: str, *, error: bool) -> Finding:
    """The content is of another format than the name says.

    An error where more than the name says it.
    """
    severity = Severity.ERROR if error else actual.misnamed
    why = f"the name says {told}, the content is {actual.name}"
    return finding("wrong-format", why, offset=0, severity=severity)


def by_layout(claim: Claim) -> bool:
    """Whether the file is what the claim says: a manifest or seal knows a digest, and not what it is of."""
    return formats.names.family[claim.format] not in LISTS


def _empty(source: OpenFile, name: str, expect: Sequence[str]) -> list[Finding]:
    """What to say of a file without bytes: nothing where other software uses such names as well."""
    named = () if expect else allowed_by_name(name)
    ours = not named or any(f.ours(source) for f in named)
    return [finding("empty-file", "the file has no bytes", offset=0)] if ours else []


def recognise(
    source: OpenFile, name: str, expect: Sequence[str], claims: Sequence[Claim]
) -> tuple[Format | None, list[Finding]]:
    """What the file is, by the claims that describe it whole, by its name and its beginning, or by the claims
    alone; and what is wrong with it being that.
    """
    for claim in claims:
        if claim.whole:
            return format_of(claim.format), []
    if source.size == 0:
        return None, _empty(source, name, expect)
    described = any(map(by_layout, claims))
    fmt, wrong = _recognise(source, name, expect, described)
    listed = bool(claims) and not described and not expect
    if listed and fmt and not (fmt.distinct or fmt.state or formats.names.known(name)):
        fmt = None  # a manifest lists texts as well, and many begin as JSON does
    return format_of(claims[0].format) if fmt is None and not wrong and claims else fmt, wrong
