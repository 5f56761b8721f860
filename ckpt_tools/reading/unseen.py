"""Files below ROOT that could not be looked at, which never count as absent; and whether to answer in spite
of them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import ceil
from typing import NamedTuple

import xxhash
from msgspec import Struct

from ckpt_tools.cache import Cache, Entry, Seen
from ckpt_tools.discovery.found import BareFile
from ckpt_tools.discovery.seals import unread
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.formats import names
from ckpt_tools.formats.common.stored_digests import whole_digests
from ckpt_tools.inspection.kept_checksum import Evidence, beside_digests, beside_seal
from ckpt_tools.model import answers
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.model.report import NO_METADATA, Level, Report
from ckpt_tools.model.seal import NAMES, SealedFile, StoreChecksums
from ckpt_tools.reading.prefetch import unknown_requests
from ckpt_tools.reading.reader import recall
from ckpt_tools.reading.scheduler import Request
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.settings.parsers import Share
from ckpt_tools.storage import Identity
from ckpt_tools.storage.retry import status
from ckpt_tools.storage.stores.store import Replaced
from ckpt_tools.storage.stores.told import keeps_checksums
from ckpt_tools.storage.urls import is_url

_SYSTEM = re.compile(r"lost\+found|\.snapshot|\.nfs.*")
"""Names of directories and files that belong to file systems: no framework saves there."""
_NUMBER = re.compile(r"[0-9]+")
HINT = "make it readable, then run this again; --allow unreadable skips it, maybe for an older checkpoint"


class Answer(NamedTuple):
    """The answer so far. ``skip``: unreadable files are allowed; ``run_named``: the user named the run."""

    chosen: Checkpoint | None = None
    rejected: Collection[Checkpoint] = ()
    candidates: Sequence[Checkpoint] | None = None
    skip: bool = False
    run_named: bool = False


def not_seen(s: Session) -> list[Finding]:
    """Return findings on directories that could not be listed, and on entries of unknown type."""
    return [as_finding(row, s.root) for row in s.found.unseen]


def as_finding(row: Unseen, root: str) -> Finding:
    """Return a row as a finding; on a file system's own entries only a note."""
    severity = Severity.NOTE if _is_of_system(row.path, root) else None
    return finding("unreadable", row.why, path=row.path, severity=severity)


def unread_files(s: Session) -> Iterator[Finding]:
    """Yield findings on parts that could not be read as deeply as their names need."""
    yield from (finding("unreadable", why.message, path=p.path) for p, why in _unread_parts(s))


def missed(s: Session, told: Collection[str]) -> Iterator[Finding]:
    """Yield indexes, seals and files to compare with that could not be read, but no path in ``told``."""
    unknown = _map_unknown(s)
    for path, why in {**s.indexes.unseen, **s.unread}.items():
        if path not in unknown and path not in told:
            yield finding("unreadable", why, path=path)


def _map_unknown(s: Session) -> dict[str, Report]:
    return {path: report for path, report in s.reports.items() if report.verdict is Verdict.UNKNOWN}


def _unread_parts(s: Session) -> Iterator[tuple[Part, Finding]]:
    unknown = _map_unknown(s)
    for p in s.parts:  # there may be a million, most of which were not read
        if (p.findings or (unknown and p.path in unknown)) and (why := why_unseen(p, s)) is not None:
            yield p, why


def why_unseen(p: Part, s: Session) -> Finding | None:
    """Return why a part could not be looked at; None if it could, or was not read."""
    report = s.reports.get(p.path)
    findings = report.findings if report is not None and report.verdict is Verdict.UNKNOWN else p.findings
    return next((f for f in findings if f.code in NOT_SEEN), None)


def weigh(s: Session, answer: Answer) -> tuple[list[Unseen], list[Finding]]:
    """Return (files without which no answer can be given, files that are worth a warning beside it)."""
    chosen = {p.path for p in answer.chosen.parts} if answer.chosen is not None else set[str]()
    # unread parts of the choice have another file in their place (``last.ckpt``)
    blocking, warnings = list[Unseen](), [f for f in unread_files(s) if f.path in chosen] if chosen else []
    homes = _find_telling_homes(s, answer.chosen)
    for row in _list_unseen(s, answer, chosen):
        if _is_of_system(row.path, s.root) or _may_be_passed(row, answer, homes, s.root):
            warnings.append(as_finding(row, s.root))
        else:
            blocking.append(row)
    return blocking, warnings


def _list_unseen(s: Session, answer: Answer, chosen: Collection[str]) -> Iterator[Unseen]:
    """Yield whatever was not seen: directories, indexes, trackers, and parts but those of the choice."""
    yield from s.found.unseen
    yield from s.unplaced
    # also indexes of rejected checkpoints, which may be rejected for lack of the files in them
    yield from (Unseen(path, why) for path, why in s.indexes.unseen.items())
    beside = s.unread if answer.chosen else {**s.unread, **unread(s.found.trackers.values())}
    parts = {p.path: p for p in s.parts if p.path in beside} if beside else {}
    for path, why in beside.items():  # trackers, and files that others were to be compared with
        p = parts.get(path)
        if p is None:
            yield Unseen(path, why)
        elif why_unseen(p, s) is None:  # else it is among the parts below
            yield Unseen(path, why, p.step, p.mtime_ns)
    yield from _list_parts(s, answer, chosen)
    if answer.chosen is None:
        yield from _list_others(s)


def _list_others(s: Session) -> Iterator[Unseen]:
    """Yield files without the name of a checkpoint's: something is there, and an index may lead to it."""
    for bare in s.found.bare:
        yield from (Unseen(bare.path, f.message) for f in bare.findings if f.code == "unreadable")
    parts = {p.path for p in s.parts}
    for path, report in _map_unknown(s).items():
        if path not in parts:
            yield from (Unseen(path, f.message) for f in report.findings if f.code in NOT_SEEN)


def _list_parts(s: Session, answer: Answer, chosen: Collection[str]) -> Iterator[Unseen]:
    """Yield parts of checkpoints that could have been chosen, but not of the choice or of certain losers."""
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
    """Yield parts of rejected checkpoints, unless content alone tells their checkpoint, or ``skip``."""
    lost = () if answer.skip and answer.chosen is None else answer.rejected
    return (p.path for c in lost for p in c.parts if not s.layouts.piece_of(p).content.step)


def _is_of_system(path: str, root: str) -> bool:
    return any(_SYSTEM.fullmatch(name) for name in path[len(root) :].split("/"))


def _find_telling_homes(s: Session, chosen: Checkpoint | None) -> set[str]:
    """Return the choice's own directories that tell its step by name, not only by files in them."""
    parts = chosen.parts if chosen is not None else ()
    pieces = ((p.home, s.layouts.piece_of(p)) for p in parts)
    return {home for home, piece in pieces if piece.home and not piece.content.step}


def _may_be_passed(row: Unseen, answer: Answer, homes: Collection[str], root: str) -> bool:
    """Return True if the choice stands without a file that was not seen: its step and its time are older."""
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
    """Return the step in a path, as the choice's own directory of a like name has it; and if files of the
    choice lie in a directory of a like name, so that the path may hold some as well: ``ckpt_0`` beside
    ``ckpt_1``.
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


def _sealed_files(s: Session) -> Iterator[_SealedInStore]:
    """Yield the files in the store, with the entries of seals and manifests on each."""
    formats = {p.path: formats_allowed(p, s.layouts.piece_of(p)) for p in s.parts}
    every: list[BareFile | Part] = [*s.found.bare, *s.parts]
    times = {x.path: x.mtime_ns for x in every if is_url(x.path) and not x.findings and x.size > 0}
    for path, mtime_ns in times.items():
        digests = [known for c in s.indexes.claims(path) if (known := whole_digests(c))]
        sealed = s.indexes.seals.sealed_by(path) if s.indexes.seals is not None else ()
        yield _SealedInStore(path, mtime_ns, formats.get(path, ()), sealed, digests)


def _judge(evidence: Evidence, f: _SealedInStore) -> Report | Finding:
    """Return the report on the file by its checksums in the store, or why there is none."""
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
    """Return why the store's checksums prove nothing about a file."""
    if not told.sums or all(s.claimed for s in told.sums):
        return "the store keeps no checksum of it that it has compared with its bytes"
    kept = ", ".join(dict.fromkeys(NAMES[s.algorithm] + ("" if s.whole else " of parts") for s in told.sums))
    return f"the store keeps {kept}, which cannot be compared with what is known of it"


def _report(f: _SealedInStore, size: int, verdict: Verdict, *findings: Finding) -> Report:
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


_QUESTION = b"when its contents were checked"
_DAMAGED = b"damaged"


class File(Struct):
    """A file to sample. ``home`` is a number made of its path. Times are in ns since 1970, 0 for never:
    ``checked`` when its contents were last read to their end, ``tried`` also when the time did not suffice.
    """

    request: Request
    home: int
    checked: int = 0
    tried: int = 0
    damaged: bool = False
    done: bool = False

    @property
    def size(self) -> int:
        return max(0, self.request.size)


class Asked:
    """How much to read, over all roots of one question, and how much of it was read."""

    def __init__(self, share: Share | None, max_duration: float | None, level: Level) -> None:
        if level is not Level.CONTENT:
            what = "--budget" if share is None else f"--sample {share.text}"
            raise UsageError(
                f"{what} is about reading contents, and level {level}"
                f" {'reads none' if level < Level.CONTENT else 'needs all of them'}",
                "add --level content, or leave it out",
            )
        self.share, self.max_duration, self.stopped = share, max_duration, False
        self._ends = None if max_duration is None else time.monotonic() + max_duration
        self._left = share.size if share else None
        self.files: list[File] = []

    @property
    def seconds(self) -> float | None:
        """The seconds that are left; None without a limit."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    def pick(self, files: Sequence[File], seed: int) -> list[File]:
        """Return the files to read: damaged ones first, then those not tried for longest, then at random."""
        share = self.share
        mine = [f for f in files if share is None or share.has(f.home)]
        chance = {f.home: xxhash.xxh3_64_intdigest(f.home.to_bytes(8, "big"), seed) for f in mine}
        mine.sort(key=lambda f: (not f.damaged, f.tried, chance[f.home]))
        limit = self._left
        if share is not None and share.fraction is not None:
            limit = ceil(share.fraction * sum(f.size for f in mine))
        if limit is None:
            return mine
        picked = list[File]()
        for f in mine:
            if limit > 0:
                picked.append(f)
                limit -= f.size
        self._left = None if self._left is None else max(0, limit)
        return picked

    def told(self) -> answers.Sample:
        """Return the part of the answer that is about the sample."""
        files = self.files
        never = sum(not f.checked for f in files)
        read = [f for f in files if f.done]
        return answers.Sample(
            asked=self.share.text if self.share else None,
            max_duration=self.max_duration,
            stopped=self.stopped,
            bytes=sum(f.size for f in files),
            bytes_read=sum(f.size for f in read),
            blocks=len(files),
            blocks_read=len(read),
            files=len(files),
            files_read=len(read),
            never=never,
            oldest_ns=None if never else min((f.checked for f in files), default=None),
        )

    def why_nothing(self) -> str:
        """Return what to tell the user if the time did not suffice for any file; else ""."""
        if not self.stopped or any(f.done for f in self.files):
            return ""
        return "--budget ran out before any file had been read to its end: give more time"


class Sampling:
    """The sampling of one root, for an ``Asked``."""

    def __init__(self, asked: Asked, s: Session, cache: Cache | None) -> None:
        self.asked, self.s, self.reader, self.cache = asked, s, s.reader, cache
        self.now_ns, self.begun = time.time_ns(), False

    def read(self, level: Level) -> None:
        """Have a report ready on every file; on files not picked, or without time left, one on structure."""
        s, files = self.s, self._find_files(level)
        self.asked.files += files
        picked = self.asked.pick(files, self.now_ns)
        s.bytes_total = s.bytes_done + sum(f.size for f in picked)
        wanted = {f.home for f in picked}
        if self.asked.max_duration is not None:  # else in their order: an index may add up over several
            files = [*picked, *(f for f in files if f.home not in wanted)]
        for f in files:
            if f.home in wanted and not self.reader.spent:
                self._check(f)
            else:
                self._look(f, Level.STRUCTURE)
            if not f.done:
                self.reader.partial.add(f.request.path)
        self.asked.stopped = self.asked.stopped or not all(f.done for f in picked)

    def _find_files(self, level: Level) -> list[File]:
        """Return the files that have contents, with the times of earlier runs."""
        s, base = self.s, self.s.root if self.s.found.tree else os.path.dirname(self.s.root)
        files = list[File]()
        for r in unknown_requests(s, s.parts, level, bare=True):
            if r.size <= 0:
                continue
            f = File(r, xxhash.xxh3_64_intdigest(os.fsencode(os.path.relpath(r.path, base))))
            files.append(f)
            if known := recall(self.cache, r.path, _QUESTION, Level.CONTENT, ever=True):
                own = known[0]
                f.damaged, f.tried = own.data == _DAMAGED, own.seen_ns
                f.checked = int(own.data) if own.data.isdigit() else 0
            question = self.reader.question(r.expect, s.indexes.based(r.path))
            if known := recall(self.cache, r.path, question, Level.CONTENT, ever=True):
                whole = known[0]
                f.checked, f.tried = max(f.checked, whole.seen_ns), max(f.tried, whole.seen_ns)
                f.damaged = f.damaged or whole.bad
        return files

    def _look(self, f: File, level: Level) -> Seen:
        """Read a file, and prefetch the result as the report on its contents, whatever its level."""
        began, path = time.time_ns(), f.request.path
        report, anatomy = self.reader.read(path, level, f.request.expect, f.request.claims)
        identity = anatomy.identity if anatomy.identity and anatomy.identity.settled(began) else None
        seen = Seen(report, anatomy.places, identity)
        self.reader.prefetched[path] = Level.CONTENT, seen
        return seen

    def _check(self, f: File) -> None:
        """Read a file's contents, and keep when. A file that had all the time there was counts as tried."""
        began = time.time_ns()
        if not self.begun:
            self.begun, f.tried = True, self.now_ns
            with suppress(OSError):  # what is wrong with it is said when it is read
                self._keep(f, Identity.of(status(f.request.path)), began)
        seen = self._look(f, Level.CONTENT)
        f.done, f.damaged = not self.reader.stopped, seen.report.verdict is Verdict.BROKEN
        if f.done:
            f.checked = f.tried = self.now_ns
        if f.damaged and self.cache is not None:
            self.cache.forget(f.request.path)  # what an earlier run said of it
        if f.done or f.damaged:
            self._keep(f, seen.identity, began)

    def _keep(self, f: File, identity: Identity | None, began: int) -> None:
        """Keep a file's times for later runs, if it is still the file that was read."""
        if self.cache is not None and identity is not None and identity.settled(began):
            data = _DAMAGED if f.damaged else str(f.checked).encode()
            self.cache.put(
                f.request.path, _QUESTION, identity, Entry(data, int(Level.CONTENT), f.tried, False)
            )
