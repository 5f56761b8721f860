"""Seals below a root: whether each can be used, and which files of a sealed checkpoint it does not name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ckpt_tools.discovery.sealable import directories
from ckpt_tools.findings import finding
from ckpt_tools.formats.seals.names import NAME
from ckpt_tools.inspection.seals import Known, inside
from ckpt_tools.inspection.signatures import is_signature
from ckpt_tools.model.answers import FileReport
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session, with_findings

_LISTED = 16
"""Files said by name that a seal does not name."""


def reports(s: Session, level: Level) -> list[FileReport]:
    """On every seal that was found, with what is wrong with what it says; the last that is asked of them:
    what the fragments of 100,000 ranks say, and a report on each, are not in memory together.
    """
    seals = s.indexes.seals
    if seals is None:
        return []
    seals.forget()
    out = list[FileReport]()
    for seal in s.found.seals:
        report = s.report_file(seal.path, min(level, Level.CONTENT), seal.findings)
        out.append(FileReport(None, with_findings(report, seals.findings.get(seal.path, ()))))
    return out


def unnamed(s: Session) -> Iterator[Finding]:
    """Files that lie in a sealed directory, and that no seal of it names."""
    seals = s.indexes.seals
    for base, known in _of_directories(seals.known if seals else ()).items():
        named = {inside(base, f.path) for k in known for f in k.seal.files}
        found = [path for path in _files(base) if path not in named]
        for path in found[:_LISTED]:
            yield finding("seal-extra", "the seal of its checkpoint does not name it", path=path)
        if more := found[_LISTED:]:
            yield finding("seal-extra", f"{len(more):,} more files that its seal does not name", path=base)


def unsigned(s: Session) -> Iterator[Finding]:
    """Files of a directory that was signed, of which its signature says nothing."""
    if s.signatures is None:
        return
    for path in sorted(s.indexes.known):
        statement = s.signatures.valid(path) if is_signature(path) else None
        home = statement.home(path) if statement else ""
        if statement is None or not home:
            continue
        names = {os.path.relpath(file, home): file for file in _files(home)}
        more = [n for n in names if n not in statement.names and not statement.ignores(n)]
        for name in sorted(more)[:_LISTED]:
            why = f"{os.path.basename(path)} signs the files of its directory, and not this one"
            yield finding("signature-invalid", why, path=names[name])
        if len(more) > _LISTED:
            yield finding("signature-invalid", f"{len(more) - _LISTED:,} more files not signed", path=home)


def _of_directories(known: Iterable[Known]) -> dict[str, list[Known]]:
    """The seals of whole directories. Those that wait for further fragments do not say what is missing."""
    out: dict[str, list[Known]] = {}
    for k in known:
        if os.path.basename(k.path) == NAME:
            out.setdefault(k.base, []).append(k)
    return out


def _files(base: str) -> Iterator[str]:
    """The files at and below a directory, without seals, what is being written, and what has seals of its
    own.
    """
    below = set[str]()
    for directory, entries in directories(base):
        if isinstance(entries, OSError):
            continue  # who listed the tree has said so
        if directory != base and (entries.has_seal or os.path.dirname(directory) in below):
            below.add(directory)
            continue
        yield from entries.files
