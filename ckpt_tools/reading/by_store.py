"""Sealed files of a store judged without their bodies, by the checksum that the store keeps of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ckpt_tools.checksum.store_sums import compare_sums
from ckpt_tools.discovery.found import BareFile
from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import finding
from ckpt_tools.formats import names
from ckpt_tools.formats.common.stored_digests import list_whole
from ckpt_tools.inspection.kept_checksum import Evidence, compare_with_seal
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import NO_METADATA, Level, Report
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage.stalls import do_each
from ckpt_tools.storage.stores.store import Replaced
from ckpt_tools.storage.stores.told import keeps_checksums
from ckpt_tools.storage.urls import is_url

REQUESTS = 32
"""How many files a store is asked about at a time."""


class _SealedInStore(NamedTuple):
    """A file, the formats that its layout allows, and the entries of seals and manifests on it."""

    path: str
    mtime_ns: int
    formats: Sequence[str]
    sealed: Sequence[tuple[SealedFile, str]]
    digests: Sequence[Mapping[str, bytes]]


def prove(s: Session) -> None:
    """Make reports on files that are as sealed by the store's checksums. Raise CannotLook."""
    if s.evidence is None or not keeps_checksums(s.root):
        text = f"{s.root} lies in no store that keeps checksums: nothing proves its files but their bytes"
        raise CannotLook(text, "leave --by-store out")
    wanted = list(_list_sealed(s))
    reports = do_each(partial(_judge, s.evidence), wanted, s.options.jobs or REQUESTS)
    for f, report in zip(wanted, reports, strict=True):
        if isinstance(report, Report):
            s.keep(report)
        elif f.path not in s.indexes.known:  # those are read anyway
            s.indexes.findings[f.path] = [report]


def _list_sealed(s: Session) -> Iterator[_SealedInStore]:
    """Yield the files in the store, with the entries of seals and manifests on each."""
    formats = {p.path: formats_allowed(p, s.layouts.piece_of(p)) for p in s.parts}
    files: list[BareFile | Part] = [*s.found.bare, *s.parts]
    times = {x.path: x.mtime_ns for x in files if is_url(x.path) and not x.findings and x.size > 0}
    for path, mtime_ns in times.items():
        digests = [known for c in s.indexes.claims(path) if (known := list_whole(c))]
        sealed = s.indexes.seals.sealed_by(path)
        yield _SealedInStore(path, mtime_ns, formats.get(path, ()), sealed, digests)


def _judge(evidence: Evidence, f: _SealedInStore) -> Report | Finding:
    """Return the report on the file by its checksums in the store, or why there is none."""
    if not f.sealed and not f.digests:
        return finding("unproven-content", "no seal and no manifest has a digest of it")
    try:
        checksums = evidence.told(f.path)
    except Replaced:
        return _conclude(f, -1, Verdict.UNKNOWN, finding("in-use", "it was replaced while it was looked at"))
    except OSError as e:
        return _conclude(f, -1, Verdict.UNKNOWN, finding("unreadable", e.strerror or str(e)))
    found = [("seal-mismatch", compare_with_seal(checksums, of, a)) for of, a in f.sealed]
    found += [("checksum-mismatch", compare_sums(checksums, known)) for known in f.digests]
    wrong = [finding(code, c.what, offset=0) for code, c in found if c is not None and not c.same]
    if wrong:
        return _conclude(f, checksums.size, Verdict.BROKEN, *dict.fromkeys(wrong))
    if not any(comparison for _, comparison in found):
        why = "the store keeps no checksum, compared with its bytes, that a seal or manifest has as well"
        return finding("unproven-content", why)
    return _conclude(f, checksums.size, Verdict.OK)


def _conclude(f: _SealedInStore, size: int, verdict: Verdict, *findings: Finding) -> Report:
    """Return what was judged as a report at level content, with the counters of a seal that fits."""
    sealed = f.sealed[0][0] if f.sealed and verdict is Verdict.OK else None
    judged = verdict is not Verdict.UNKNOWN
    allowed = f.formats or tuple(names.allowed(os.path.basename(f.path)))
    return Report(
        f.path,
        allowed[0] if judged and len(allowed) == 1 else None,  # what its name leaves no doubt about
        size,
        verdict,
        Level.CONTENT if judged else Level.PRESENCE,
        coverage=1.0 if verdict is Verdict.OK else 0.0,
        metadata=dict(sealed.counters) if sealed is not None else NO_METADATA,
        findings=findings,
        tensors=len(sealed.tensors) if sealed is not None else 0,
        mtime_ns=f.mtime_ns,
    )
