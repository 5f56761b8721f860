"""Recognise the format of a file: by the claims of indexes, by its name, and by its first bytes."""

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
"""Bytes at the beginning of a file that are searched for zeros."""
_PROGRAM = b"\x7fELF"
_NUMBERED = re.compile(r"[A-Za-z]+_\d+")
"""A word and a number: a file name of Flax, and of some training loops that save with torch (Tacotron 2)."""


def allow_by_name(name: str) -> tuple[Format, ...]:
    """Return the formats that the whole name tells, then the formats of its suffixes, longest first."""
    return tuple(map(format_of, formats.names.allowed(name)))


def gives_format(claim: Claim) -> bool:
    """Return True if a claim tells the format: manifests and seals know the digests of files, no formats."""
    return formats.names.family[claim.format] not in LISTS


def recognise(
    source: OpenFile, name: str, expect: Sequence[str], claims: Sequence[Claim]
) -> tuple[Format | None, list[Finding]]:
    """Return the format and the findings on it: the format of a ``whole`` claim, else the one that the name
    and first bytes tell, else that of the claims; None for no known one. ``expect``: those the layout allows.
    """
    for claim in claims:
        if claim.whole:
            return format_of(claim.format), []
    if source.size == 0:
        return None, _say_empty(source, () if expect else allow_by_name(name))
    described = any(map(gives_format, claims))
    fmt, wrong = _recognise_content(source, name, expect, described)
    only_listed = bool(claims) and not described and not expect
    if only_listed and fmt and not (fmt.distinct or fmt.state or formats.names.known(name)):
        fmt = None  # a manifest lists text files as well, and many of them begin like JSON
    return fmt or _find_format_of_claims(claims, wrong), wrong


def _find_format_of_claims(claims: Sequence[Claim], wrong: Sequence[Finding]) -> Format | None:
    """Return the format of the first claim; if something is ``wrong``, of the first seal or manifest: what no
    format recognises any more is still compared with it.
    """
    return next((format_of(c.format) for c in claims if not (wrong and gives_format(c))), None)


def _say_empty(source: OpenFile, candidates: Sequence[Format]) -> list[Finding]:
    if candidates and not any(f.ours(source) for f in candidates):  # other software uses such names as well
        return []
    return [finding("empty-file", "the file has no bytes", offset=0)]


def _recognise_content(
    source: OpenFile, name: str, expect: Sequence[str], described: bool
) -> tuple[Format | None, list[Finding]]:
    """Return the format that name and first bytes tell; ``described``: the claims tell it, too."""
    if expect and not (expect := [name for name in expect if name in formats.names.family]):
        # the layout comes from a plug-in without that format, or whose formats cannot be used
        text = "its layout says that it has a format which nothing installed knows"
        return None, [finding("unreadable", text)]
    head = source.read(0, min(HEAD, source.size))
    # One list after the other: most files have a format of the first, and no other need be imported.
    candidates = tuple(expect) or formats.names.allowed(name)
    if found := _match_magic(head, candidates):
        return found, []
    actual = _match_magic(head, formats.names.told_by_magic)
    # the formats that a damaged file of this name may have had; one that the layout allows, if it names any
    allowed = [f for f in map(format_of, candidates) if expect or f.ours(source)]
    if not allowed:
        return _recognise_head(source, name, actual, head)
    first, expected = min(_FIRST, source.size), " or ".join(f.name for f in allowed)
    if not head.strip(b"\0") and not source.read(0, first).strip(b"\0"):
        why = f"the file begins with {first} zero bytes instead of {expected}"
        return None, [finding("zero-filled", why, offset=0)]
    return _judge_mismatch(name, allowed, actual, expect=bool(expect), described=described)


def _judge_mismatch(
    name: str, allowed: Sequence[Format], actual: Format | None, *, expect: bool, described: bool
) -> tuple[Format | None, list[Finding]]:
    """Return the format (or None) and the findings of a file that begins like none ``allowed``."""
    expected = " or ".join(f.name for f in allowed)
    if actual is None:
        damaged = finding("bad-header", f"the file does not begin like {expected}", offset=0)
        return allowed[0] if len(allowed) == 1 else None, [damaged]
    if not expect and not described and _NUMBERED.fullmatch(name):
        return actual, []
    severity = Severity.ERROR if expect or described else actual.misnamed
    why = f"the name says {expected}, the content is {actual.name}"
    return None if expect else actual, [finding("wrong-format", why, offset=0, severity=severity)]


def _recognise_head(
    source: OpenFile, name: str, actual: Format | None, head: bytes
) -> tuple[Format | None, list[Finding]]:
    """Return the format of a file whose name tells none; a program may be named like a list of checksums."""
    from ckpt_tools.formats.archives.packed import is_hand_made  # imported late: most names tell a format

    if actual is not None and not is_hand_made(source, head):  # else a person packed this archive
        return actual, []
    if "checksums" not in formats.names.allowed(name) or head.startswith(_PROGRAM):
        return None, []
    why = "its name is that of a list of digests, and it holds none: no file is compared with it"
    hint = "write it again from sound files, or seal them ('ckpt seal CHECKPOINT')"
    return None, [finding("not-checksummed", why, severity=Severity.WARNING, hint=hint)]


def _match_magic(head: bytes, names: Sequence[str]) -> Format | None:
    """Return the first format of ``names`` whose magic fits ``head``; None if there is none."""
    return next((f for f in map(format_of, names) if f.magic(head)), None)
