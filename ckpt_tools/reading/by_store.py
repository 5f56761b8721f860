"""Sealed files of a store judged without their bodies: the checksum that the store keeps of each, beside the
digests that a seal or a manifest has of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ckpt_tools.checksum.store_sums import compared
from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import finding
from ckpt_tools.formats import names
from ckpt_tools.formats.common.stored_digests import whole_digests
from ckpt_tools.inspection.store_evidence import Evidence, Judged, beside_seal, differs
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.model.store_checksum import NAMES, StoreChecksums
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage.stores.store import Replaced
from ckpt_tools.storage.stores.told import keeps_checksums
from ckpt_tools.storage.urls import is_url

REQUESTS = 32
"""Files asked about at a time."""


def prove(s: Session) -> None:
    """Have reports at level content of every file that a seal names, where the store's checksum shows whether
    it is what was sealed. Others are left to be looked at, and noted. Raises CannotLook where nothing of the
    kind can be asked.
    """
    if s.evidence is None or not keeps_checksums(s.root):
        raise CannotLook(
            f"{s.root} lies in no store that keeps checksums: nothing proves its files but their bytes",
            "leave --by-store out",
        )
    evidence = s.evidence
    files = {
        p.path: _File(p.path, p.mtime_ns, tuple(formats_allowed(p, s.layouts.piece_of(p))))
        for p in s.parts
        if not p.findings and p.size > 0
    }
    for b in s.found.bare:
        if not b.findings and b.size > 0:
            files.setdefault(b.path, _File(b.path, b.mtime_ns))
    wanted = [(f, _Stated.of(s, f.path)) for f in files.values() if is_url(f.path)]
    with ThreadPoolExecutor(s.options.jobs or REQUESTS) as pool:
        for (f, _), report in zip(wanted, pool.map(lambda x: _judged(evidence, *x), wanted), strict=True):
            if isinstance(report, Report):
                s.keep(report)
            elif f.path not in s.indexes.known:  # those are read anyway
                s.unproven[f.path] = report


class _File(NamedTuple):
    """A file, and the formats that its layout allows."""

    path: str
    mtime_ns: int
    formats: tuple[str, ...] = ()


class _Stated(NamedTuple):
    """What seals and manifests say of a file."""

    sealed: Sequence[tuple[SealedFile, str]]
    digests: Sequence[Mapping[str, bytes]]

    @classmethod
    def of(cls, s: Session, path: str) -> _Stated:
        claims, seals = s.indexes.claims(path), s.indexes.seals
        digests = [known for c in claims if (known := whole_digests(c))]
        return cls(seals.sealed_by(path) if seals is not None else (), digests)


def _judged(evidence: Evidence, f: _File, stated: _Stated) -> Report | Finding:
    """The report on a file, or why there is none."""
    if not stated.sealed and not stated.digests:
        return finding("unproven-content", "no seal and no manifest has a digest of it")
    try:
        told = evidence.told(f.path)
    except Replaced:
        return _report(f, -1, Verdict.UNKNOWN, finding("in-use", "it was replaced while it was looked at"))
    except OSError as e:
        return _report(f, -1, Verdict.UNKNOWN, finding("unreadable", e.strerror or str(e)))
    found = [judged for of, a in stated.sealed if (judged := beside_seal(told, of, a)) is not None]
    wrong = [finding("seal-mismatch", judged.what, offset=0) for judged in found if not judged.same]
    for known in stated.digests:
        if (agreement := compared(told, known)) is not None:
            what = differs(agreement.checksum.algorithm, agreement.checksum.value, agreement.known)
            found.append(Judged(agreement.same, what))
            wrong += [] if agreement.same else [finding("checksum-mismatch", what, offset=0)]
    if wrong:
        return _report(f, told.size, Verdict.BROKEN, *dict.fromkeys(wrong))
    if not found:
        return finding("unproven-content", _why_not(told))
    return _proven(f, told.size, stated)


def _why_not(told: StoreChecksums) -> str:
    if not told.sums or all(s.claimed for s in told.sums):
        return "the store keeps no checksum of it that it has compared with its bytes"
    kept = ", ".join(dict.fromkeys(NAMES[s.algorithm] + ("" if s.whole else " of parts") for s in told.sums))
    return f"the store keeps {kept}, which cannot be compared with what is known of it"


def _report(f: _File, size: int, verdict: Verdict, *findings: Finding) -> Report:
    """What was judged is so at level content, and what nobody would say has no level: neither is read."""
    broken = verdict is Verdict.BROKEN
    return Report(
        f.path,
        _format(f) if broken else None,
        size,
        verdict,
        Level.CONTENT if broken else Level.PRESENCE,
        findings=findings,
        mtime_ns=f.mtime_ns,
    )


def _proven(f: _File, size: int, stated: _Stated) -> Report:
    """A file that is what was sealed, which was looked at then: its seal also has its counters."""
    sealed = stated.sealed[0][0] if stated.sealed else None
    return Report(
        f.path,
        _format(f),
        size,
        Verdict.OK,
        Level.CONTENT,
        coverage=1.0,
        metadata=dict(sealed.counters) if sealed is not None else {},
        tensors=len(sealed.tensors) if sealed is not None else 0,
        mtime_ns=f.mtime_ns,
    )


def _format(f: _File) -> str | None:
    """What its name leaves no doubt about."""
    known = f.formats or tuple(names.allowed(os.path.basename(f.path)))
    return known[0] if len(known) == 1 else None
