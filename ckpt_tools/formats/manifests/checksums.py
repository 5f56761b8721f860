"""``SHA256SUMS`` and its like: a digest for each file, as coreutils, BSD, OpenSSL and b3sum write them, or
one digest alone in ``NAME.sha256``.

Facts: coreutils src/digest.c (split_3): ``hex  name``, ``hex *name``, ``SHA256 (name) = hex``; blanks before
it, and a tab after the digest, are right as well; a backslash before the line says that newlines, returns and
backslashes in the name are escaped; lines that begin with ``#`` are left out. b3sum b3sum/src/main.rs: the
same. OpenSSL 3 apps/dgst.c: ``SHA2-256(name)= hex``. RFC 4880, 7: a text signed in the clear. PowerShell's
about_Character_Encoding: what ``>`` and Out-File of Windows PowerShell write is UTF-16 with a byte order
mark, and what they make of Get-FileHash is a table of Algorithm, Hash and absolute Path; Format-List shows a
line for each of these, Export-Csv writes them in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ntpath import commonpath
from ntpath import dirname as directory_on_windows
from os.path import basename, dirname, isabs, normpath
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats import names
from ckpt_tools.formats.common.format import Anatomy, Damage, limit, make_format
from ckpt_tools.formats.common.pointers import stands_for
from ckpt_tools.formats.common.stored_digests import LENGTHS, Digest, can_compare, claim, needs_blake3
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

MAX_SIZE = 16 << 20
MAX_LINES = 200_000
_FIRST = 1 << 16  # bytes that are searched for a digest in a file without the magic
_HEX = "[0-9a-fA-F]{32,128}"
_TAG = r"[A-Z][\w/-]{1,15}"
_PLAIN = re.compile(rf"[ \t]*(?P<escaped>\\?)(?P<hex>{_HEX})[ \t][ *]?(?P<name>.+)", re.DOTALL)
_TAGGED = re.compile(
    rf"[ \t]*(?P<escaped>\\?)(?P<tag>{_TAG}) ?\((?P<name>.+)\) ?= (?P<hex>{_HEX})", re.DOTALL
)
_TABLE = re.compile(rf"(?P<tag>{_TAG}) +(?P<hex>{_HEX}) +(?P<name>[A-Za-z]:\\.*[^. ]) *")
"""A row of Get-FileHash's table, if the path was not cut at the edge of a window."""
_CSV = re.compile(rf'"?(?P<tag>{_TAG})"?[,;]"?(?P<hex>{_HEX})"?[,;]"?(?P<name>[A-Za-z]:\\[^"]*)"?')
_RULES = (_TAGGED, _TABLE, _CSV, _PLAIN)
_HEADING = re.compile(r'\s*(?:Algorithm +Hash +Path|-+ +-+ +-+|"?Algorithm"?[,;]"?Hash"?[,;]"?Path"?)\s*')
_AS_LIST = re.compile(
    rb"Algorithm +: *([A-Z]\w+) *\r?\nHash +: *([0-9A-Fa-f]+) *\r?\nPath +: *([A-Za-z]:[^\r\n]+)"
)
"""Three lines of Format-List."""
_UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_OTHERWISE = re.compile(rf"(?P<tag>{_TAG}) ?\((?P<name>.+)\) ?= .+")
"""A line with a digest of any algorithm, or a size, as in BSD's distinfo."""
_IN_THE_CLEAR = re.compile(
    rb"-----BEGIN PGP SIGNED MESSAGE-----\r?\n(?:[^\r\n]+\r?\n)*\r?\n(.*?)-----BEGIN PGP SIGNATURE-----.*",
    re.DOTALL,
)
"""A text signed in the clear, and its signature."""
_ALONE = re.compile(_HEX)
_BEGUN = re.compile(r"[ \t]*\\?[0-9a-fA-F]{16}")  # the beginning of a damaged line
_ESCAPES = {r"\n": "\n", r"\r": "\r", r"\\": "\\"}
_SIDECAR = re.compile(
    r"(.+)\.(?:md5|sha1|sha224|sha256|sha384|sha512|b2|b3|blake3)(?:sums?)?(?:\.txt)?", re.IGNORECASE
)
_HINT = re.compile(r"md5|sha(?:1|224|256|384|512)|b2|b3|blake2b?|blake3", re.IGNORECASE)
ANEW = (
    "write it again from sound files ('sha256sum FILES > SHA256SUMS'), or seal them ('ckpt seal CHECKPOINT')"
)
_STDIN = ("-", "stdin")
"""Names that coreutils and OpenSSL write for their standard input."""
_NAMED = {"b2": "blake2b", "blake2": "blake2b", "b3": "blake3"}
_BY_LENGTH = {LENGTHS[a]: a for a in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")}


class _Entry(NamedTuple):
    """One line: the file's name as it is spelled, "" for a digest without a name."""

    name: str
    digest: Digest


def _magic(head: bytes) -> bool:
    """Return True for any text: its first line may be no checksum."""
    return head[:2] in _UTF_16 or re.fullmatch(rb"[\t\r\n\x20-\x7e\x80-\xff]+", head) is not None


def _is_ours(source: Source) -> bool:
    """Return True if a file without the magic has a digest, or only zeros: it is a damaged manifest."""
    data = source.read(0, min(source.size, _FIRST))
    return not data.strip(b"\0") or re.search(rb"(?m)^[ \t]*\\?[0-9a-fA-F]{32,128}[ \t]", data) is not None


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the lines of a checksum file; add a claim for each file that it lists. Reads the whole file."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    if source.size > MAX_SIZE:
        why = f"{source.size:,} bytes of checksums: more than {MAX_SIZE:,} are not read"
        raise Damage("too-complex", why)
    data = source.read(0, source.size)
    if encoding := _UTF_16.get(data[:2]):
        data = data[2:].decode(encoding, "replace").encode("utf-8", "surrogatepass")
    anatomy.explain(0, source.size, "names and digests", Guard.UNPROTECTED)
    if data.count(b"\n") > MAX_LINES:
        raise Damage("too-complex", f"more than {MAX_LINES:,} lines of checksums: they are not read")
    entries, unread = _read_lines(data, basename(source.path))
    # if most lines are no checksums, only those that begin like a digest are damaged
    damaged = [f for f in unread if len(unread) <= len(entries) or _BEGUN.match(f.message)]
    for f in damaged:
        yield finding(f.code, f"no checksum: {f.message[:80]!r}", offset=f.offset, severity=f.severity)
    if not entries and not damaged:
        # only a file with the name of a manifest is expected to have digests
        is_named = "checksums" in names.allowed(basename(source.path))
        severity = Severity.WARNING if is_named else None
        why, pointer = "no file is compared with it", stands_for(source)
        if pointer is not None and is_named:
            yield replace(pointer, message=f"{pointer.message}: {why}", severity=Severity.WARNING)
        else:
            why = f"no line of it is a checksum: {why}"
            yield finding("not-checksummed", why, severity=severity, hint=ANEW)
    yield from _claim_files(entries, source.path, anatomy)


def _join_lines(match: re.Match[bytes]) -> bytes:
    """Return three lines of Format-List as one row and blank lines, of the same length in bytes."""
    return b" ".join(match.groups()).ljust(len(match[0]), b"\n")


def _read_lines(data: bytes, file_name: str) -> tuple[list[_Entry], list[Finding]]:
    """Return the entries of the lines that are checksums, and a finding with the text of each other line."""
    entries, unread, at = list[_Entry](), list[Finding](), 0
    hint = _HINT.search(file_name)
    if signed := _IN_THE_CLEAR.fullmatch(data):
        data, at = signed[1], signed.start(1)
    data = _AS_LIST.sub(_join_lines, data)
    for raw in data.split(b"\n"):
        line = raw.removeprefix(b"\xef\xbb\xbf" if at == 0 else b"").rstrip(b"\r")
        text = line.decode("utf-8", "surrogateescape")
        if text.strip() and not text.startswith("#") and not _HEADING.fullmatch(text):
            if (entry := _read_line(text, hint[0].lower() if hint else "")) is not None:
                entries.append(entry)
            else:
                unread.append(finding("bad-header", text[:200], offset=at, severity=Severity.WARNING))
        at += len(raw) + 1
    # a line may have an unknown algorithm's digest of a file that is listed, or the file's size
    listed = {e.name for e in entries}
    others = ((f, _OTHERWISE.fullmatch(f.message)) for f in unread)
    return entries, [
        f for f, m in others if not m or m["name"] not in listed or _name_algorithm(m["tag"]) in LENGTHS
    ]


def _read_line(line: str, hint: str) -> _Entry | None:
    """Return the entry of a line, None if it is no checksum; ``hint`` is the file name's algorithm, or ""."""
    name, text, algorithm = "", line.strip(), hint
    if not _ALONE.fullmatch(text):
        found = next((m for rule in _RULES if (m := rule.fullmatch(line))), None)
        if found is None:
            return None
        parts = found.groupdict()
        name, text, algorithm = parts["name"], parts["hex"], parts.get("tag", hint)
        if name in _STDIN:
            name = ""
        elif parts.get("escaped"):
            name = re.sub(r"\\[nr\\]", lambda m: _ESCAPES[m[0]], name)
    value = bytes.fromhex(text) if len(text) % 2 == 0 else b""
    algorithm = _name_algorithm(algorithm) or _BY_LENGTH.get(len(value), "")
    is_short_blake = algorithm == "blake2b" and 0 < len(value) < LENGTHS[algorithm]
    fits = is_short_blake or LENGTHS.get(algorithm) == len(value)
    return _Entry(name, Digest(algorithm, value)) if fits else None


def _name_algorithm(tag: str) -> str:
    """Return our name of a digest algorithm, such as "sha256", from any common spelling of it."""
    name = re.sub(r"^(sha)2-(?=\d)|^(blake2b)-\d+$", r"\1\2", tag.lower())
    return _NAMED.get(name, name)


def _claim_files(entries: list[_Entry], path: str, anatomy: Anatomy) -> Iterator[Finding]:
    """Add a claim for each listed file to ``anatomy.members``, but for the manifest and files elsewhere."""
    entries, is_windows = _strip_windows_paths(entries)
    entries = _strip_directory(entries, f"{basename(dirname(path))}/")
    if _find_relative_path("", path) is None and (count := sum(not e.name for e in entries)):
        why = f"{count:,} of its digests have no name: nothing says which files they are of"
        useless = Severity.WARNING if count == len(entries) else None
        yield finding("not-checksummed", why, severity=useless, hint=ANEW)
    digests, outside = _group_digests(entries, path)
    is_nameless = all(not e.name for e in entries)
    for name, hashes in digests.items():
        file_claim = claim("checksums", basename(path), name, hashes, optional=is_windows)
        anatomy.members[name] = file_claim._replace(stem=is_nameless and not names.known(name))
    if outside:
        why = f"{len(outside):,} of the files that it lists lie outside its directory: {outside[0][:80]!r}"
        yield finding("path-escape", f"{why}: they were not compared", severity=Severity.WARNING)
    if unread := sum(not can_compare(d.algorithm) for hashes in digests.values() for d in hashes):
        yield needs_blake3(unread)


def _group_digests(entries: list[_Entry], manifest: str) -> tuple[dict[str, list[Digest]], list[str]]:
    """Return the digests of each file but the ``manifest`` (its path), and the names that lie outside."""
    digests, outside = dict[str, list[Digest]](), list[str]()
    for e in entries:
        name = _find_relative_path(e.name, manifest)
        if name is None:
            outside += [e.name] if e.name else []
        elif name != basename(manifest):
            hashes = digests.setdefault(name, [])
            # two digests by one algorithm differ: one is wrong, and a third adds nothing
            if e.digest not in hashes and sum(d.algorithm == e.digest.algorithm for d in hashes) < 2:
                hashes.append(e.digest)
    return digests, outside


def _strip_directory(entries: list[_Entry], home: str) -> list[_Entry]:
    """Return entries without the directory's name, if all have it: sha256sum run/* was run above it."""
    if home == "/" or not all(e.name.startswith(home) for e in entries):
        return entries
    return [e._replace(name=e.name.removeprefix(home)) for e in entries]


def _strip_windows_paths(entries: list[_Entry]) -> tuple[list[_Entry], bool]:
    """Return (entries, True) with paths below their common directory if all are Windows paths, else False."""
    if not entries or not all(_ON_WINDOWS.match(e.name) for e in entries):
        return entries, False
    try:
        common = commonpath([directory_on_windows(e.name) for e in entries]).rstrip("\\")
    except ValueError:  # of two drives
        return entries, False
    return [e._replace(name=e.name[len(common) + 1 :].replace("\\", "/")) for e in entries], True


_ON_WINDOWS = re.compile(r"[A-Za-z]:\\")


def _find_relative_path(name: str, manifest: str) -> str | None:
    """Return a listed file's path relative to the directory of the ``manifest``, None if it lies outside."""
    home = dirname(manifest)
    sidecar = _SIDECAR.fullmatch(basename(manifest))  # FILE.sha256: its digest is that of FILE
    if sidecar and (not name or basename(name) == sidecar[1]):
        return sidecar[1]
    if isabs(name) and home and name.startswith(f"{home}/"):
        name = name[len(home) + 1 :]
    name = normpath(name) if name else ".."
    return None if isabs(name) or name == ".." or name.startswith("../") else name


FORMAT = make_format("checksums", _magic, _structure, distinct=False, loader=None, ours=_is_ours)
