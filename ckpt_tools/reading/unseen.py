"""What could not be looked at below ROOT, which is never absent, and whether to answer in spite of it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from ckpt_tools.discovery.found import BareFile
from ckpt_tools.discovery.seals import unread
from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.formats import names
from ckpt_tools.formats.common.stored_digests import whole_digests
from ckpt_tools.inspection.kept_checksum import Evidence, beside_digests, beside_seal
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.model.report import NO_METADATA, Level, Report
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.model.store_checksum import NAMES, StoreChecksums
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage.stores.store import Replaced
from ckpt_tools.storage.stores.told import keeps_checksums
from ckpt_tools.storage.urls import is_url

_SYSTEM = re.compile(r"lost\+found|\.snapshot|\.nfs.*")
"""Names that file systems give to what is theirs; no framework saves there."""
_NUMBER = re.compile(r"[0-9]+")
HINT = "make it readable, then run this again; --allow unreadable skips it, maybe for an older checkpoint"


class Answer(NamedTuple):
    """``skip`` is leave to pass over what cannot be read; ``run_named``: the run was asked for by name."""

    chosen: Checkpoint | None = None
    rejected: Collection[Checkpoint] = ()
    candidates: Sequence[Checkpoint] | None = None
    skip: bool = False
    run_named: bool = False


def not_seen(s: Session) -> list[Finding]:
    """Directories that could not be listed, and entries of which nobody can say what they are."""
    return [as_finding(row, s.root) for row in s.found.unseen]


def as_finding(row: Unseen, root: str) -> Finding:
    """A row as a finding; what belongs to the file system is worth a note."""
    severity = Severity.NOTE if _is_of_system(row.path, root) else None
    return finding("unreadable", row.why, path=row.path, severity=severity)


def unread_files(s: Session) -> Iterator[Finding]:
    """Parts that could not be read as deeply as their names need."""
    yield from (finding("unreadable", why.message, path=p.path) for p, why in _unread_parts(s))


def missed(s: Session, told: Collection[str]) -> Iterator[Finding]:
    """Yield indexes, seals and files to compare with that could not be read, but those ``told``."""
    unknown = _unknown(s)
    for path, why in {**s.indexes.unseen, **s.unread}.items():
        if path not in unknown and path not in told:
            yield finding("unreadable", why, path=path)


def _unknown(s: Session) -> dict[str, Report]:
    return {path: report for path, report in s.reports.items() if report.verdict is Verdict.UNKNOWN}


def _unread_parts(s: Session) -> Iterator[tuple[Part, Finding]]:
    unknown = _unknown(s)
    for p in s.parts:  # a million, most of which nobody has asked about
        if (p.findings or (unknown and p.path in unknown)) and (why := why_unseen(p, s)) is not None:
            yield p, why


def why_unseen(p: Part, s: Session) -> Finding | None:
    """Why a part could not be looked at; None when it could, or was not asked about."""
    report = s.reports.get(p.path)
    findings = report.findings if report is not None and report.verdict is Verdict.UNKNOWN else p.findings
    return next((f for f in findings if f.code in NOT_SEEN), None)


def weigh(s: Session, answer: Answer) -> tuple[list[Unseen], list[Finding]]:
    """(what the answer cannot be given without, what is worth a warning beside it)."""
    chosen = {p.path for p in answer.chosen.parts} if answer.chosen is not None else set[str]()
    # those of the choice have another file in their place (``last.ckpt``)
    blocking, warnings = list[Unseen](), [f for f in unread_files(s) if f.path in chosen] if chosen else []
    told = _find_telling_homes(s, answer.chosen)
    for row in _rows(s, answer, chosen):
        if _is_of_system(row.path, s.root) or _may_be_passed(row, answer, told, s.root):
            warnings.append(as_finding(row, s.root))
        else:
            blocking.append(row)
    return blocking, warnings


def _rows(s: Session, answer: Answer, chosen: Collection[str]) -> Iterator[Unseen]:
    yield from s.found.unseen
    yield from s.unplaced
    # of indexes also what lost: it may have lost for want of what they name
    yield from (Unseen(path, why) for path, why in s.indexes.unseen.items())
    beside = s.unread if answer.chosen else {**s.unread, **unread(s.found.trackers.values())}
    parts = {p.path: p for p in s.parts if p.path in beside} if beside else {}
    for path, why in beside.items():  # trackers, and files that others were to be compared with
        p = parts.get(path)
        if p is None:
            yield Unseen(path, why)
        elif why_unseen(p, s) is None:  # else it is told as the part it is
            yield Unseen(path, why, p.step, p.mtime_ns)
    yield from _parts(s, answer, chosen)
    if answer.chosen is None:
        yield from _others(s)


def _others(s: Session) -> Iterator[Unseen]:
    """Files of which no name is one of a checkpoint: something is there, and an index may lead to it."""
    for bare in s.found.bare:
        yield from (Unseen(bare.path, f.message) for f in bare.findings if f.code == "unreadable")
    parts = {p.path for p in s.parts}
    for path, report in _unknown(s).items():
        if path not in parts:
            yield from (Unseen(path, f.message) for f in report.findings if f.code in NOT_SEEN)


def _parts(s: Session, answer: Answer, chosen: Collection[str]) -> Iterator[Unseen]:
    """Parts of what could have been chosen, but those of what lost for certain, and of the choice."""
    if not (rows := list(_unread_parts(s))):
        return
    mine = None
    if answer.candidates is not None:
        mine = {p.path for c in answer.candidates if not c.unfinished for p in c.parts}
    decided = {*chosen, *_find_decided(s, answer)}
    for p, why in rows:
        if p.path not in decided and (mine is None or p.path in mine):
            yield Unseen(p.path, why.message, p.step, p.mtime_ns or None)


def _find_decided(s: Session, answer: Answer) -> Iterator[str]:
    """Parts of what lost, unless only content tells of which checkpoint they are, or leave was given."""
    lost = () if answer.skip and answer.chosen is None else answer.rejected
    return (p.path for c in lost for p in c.parts if not s.layouts.piece_of(p).content.step)


def _is_of_system(path: str, root: str) -> bool:
    return any(_SYSTEM.fullmatch(name) for name in path[len(root) :].split("/"))


def _find_telling_homes(s: Session, chosen: Checkpoint | None) -> set[str]:
    """Return the choice's own directories that tell its step, not only files in them."""
    parts = chosen.parts if chosen is not None else ()
    pieces = ((p.home, s.layouts.piece_of(p)) for p in parts)
    return {home for home, piece in pieces if piece.home and not piece.content.step}


def _may_be_passed(row: Unseen, answer: Answer, homes: Collection[str], root: str) -> bool:
    """Return True if the choice stands without what was not seen: it is older by its step and its time."""
    chosen = answer.chosen
    if chosen is None:
        return False
    step, is_alike = (row.step, False) if row.step is not None else _find_step(row.path, chosen, homes, root)
    if answer.skip:
        return step is not None or not is_alike
    if chosen.step is None or step is None or row.mtime_ns is None:
        return False
    if step >= chosen.step or row.mtime_ns >= chosen.mtime_ns:
        return False
    of_run = any(row.path.startswith(f"{p.base.rstrip('/')}/") for p in chosen.parts)
    return answer.run_named or row.step is not None or of_run


def _find_step(path: str, chosen: Checkpoint, homes: Collection[str], root: str) -> tuple[int | None, bool]:
    """Return the step that a path tells, as a save's own directory that is called alike tells the choice's;
    and if files of the choice lie in what is called alike: ``ckpt_0`` beside ``ckpt_1`` may hold some.
    """
    own = path
    while len(path) > len(root):
        above, name = os.path.split(path)
        there = (p.path.removeprefix(f"{above}/") for p in chosen.parts if p.path.startswith(f"{above}/"))
        inside = {below.partition("/")[0] for below in there if "/" in below}
        alike = [beside for beside in inside if _NUMBER.sub("#", beside) == _NUMBER.sub("#", name)]
        if len(alike) == 1 and f"{above}/{alike[0]}" in homes:
            numbers = zip(_NUMBER.findall(alike[0]), _NUMBER.findall(name), strict=True)
            steps = [int(mine) for its, mine in numbers if int(its) == chosen.step]
            return steps[0] if len(steps) == 1 else None, path == own
        if alike:
            return None, path == own
        path = above
    return None, False


REQUESTS = 32
"""Files asked about at a time."""


class _File(NamedTuple):
    """A file, the formats that its layout allows, and what seals and manifests say of it."""

    path: str
    mtime_ns: int
    formats: Sequence[str]
    sealed: Sequence[tuple[SealedFile, str]]
    digests: Sequence[Mapping[str, bytes]]


def prove(s: Session) -> None:
    """Have reports of what the store's checksums show to be as sealed. Raises CannotLook."""
    if s.evidence is None or not keeps_checksums(s.root):
        raise CannotLook(
            f"{s.root} lies in no store that keeps checksums: nothing proves its files but their bytes",
            "leave --by-store out",
        )
    wanted = list(_sealed_files(s))
    with ThreadPoolExecutor(s.options.jobs or REQUESTS) as pool:
        for f, report in zip(wanted, pool.map(partial(_judge, s.evidence), wanted), strict=True):
            if isinstance(report, Report):
                s.keep(report)
            elif f.path not in s.indexes.known:  # those are read anyway
                s.unproven[f.path] = report


def _sealed_files(s: Session) -> Iterator[_File]:
    formats = {p.path: formats_allowed(p, s.layouts.piece_of(p)) for p in s.parts}
    every: list[BareFile | Part] = [*s.found.bare, *s.parts]
    times = {x.path: x.mtime_ns for x in every if is_url(x.path) and not x.findings and x.size > 0}
    for path, mtime_ns in times.items():
        digests = [known for c in s.indexes.claims(path) if (known := whole_digests(c))]
        sealed = s.indexes.seals.sealed_by(path) if s.indexes.seals is not None else ()
        yield _File(path, mtime_ns, formats.get(path, ()), sealed, digests)


def _judge(evidence: Evidence, f: _File) -> Report | Finding:
    """Return the report on the file, or why there is none."""
    if not f.sealed and not f.digests:
        return finding("unproven-content", "no seal and no manifest has a digest of it")
    try:
        told = evidence.told(f.path)
    except Replaced:
        return _report(f, -1, Verdict.UNKNOWN, finding("in-use", "it was replaced while it was looked at"))
    except OSError as e:
        return _report(f, -1, Verdict.UNKNOWN, finding("unreadable", e.strerror or str(e)))
    found = [("seal-mismatch", beside_seal(told, of, a)) for of, a in f.sealed]
    found += [("checksum-mismatch", beside_digests(told, known)) for known in f.digests]
    wrong = [finding(code, one.what, offset=0) for code, one in found if one is not None and not one.same]
    if wrong:
        return _report(f, told.size, Verdict.BROKEN, *dict.fromkeys(wrong))
    if not any(one for _, one in found):
        return finding("unproven-content", _why_not(told))
    return _report(f, told.size, Verdict.OK)


def _why_not(told: StoreChecksums) -> str:
    if not told.sums or all(s.claimed for s in told.sums):
        return "the store keeps no checksum of it that it has compared with its bytes"
    kept = ", ".join(dict.fromkeys(NAMES[s.algorithm] + ("" if s.whole else " of parts") for s in told.sums))
    return f"the store keeps {kept}, which cannot be compared with what is known of it"


def _report(f: _File, size: int, verdict: Verdict, *findings: Finding) -> Report:
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
