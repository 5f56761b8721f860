"""``ckpt seal``: what is whole is read once, verified and sworn to; what is not is named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import msgpack
from msgspec.structs import replace

from ckpt_tools import __version__
from ckpt_tools.cache.codec import unpack
from ckpt_tools.discovery import completeness
from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import finding
from ckpt_tools.formats import Claim
from ckpt_tools.formats.seals import document, names
from ckpt_tools.formats.seals.names import NAME
from ckpt_tools.formats.seals.seal import CODE
from ckpt_tools.guard.fragments import merged, of_one_rank, remove_fragments
from ckpt_tools.guard.sealed_files import (
    Identities,
    SealOptions,
    digest_pass,
    identities,
    sealed_files,
    state_of,
)
from ckpt_tools.guard.targets import Target, described, targets
from ckpt_tools.guard.writing import SEAL_ELSEWHERE, put, require_writable, tidy
from ckpt_tools.inspection.digest_pass import Digested, DigestPass
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.model.seal import Seal, SealedCheckpoint, SealedFile, SealedOne, Sealing
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.planning.engine import check_together, find_gaps
from ckpt_tools.planning.lost_files import find_no_model
from ckpt_tools.planning.unfinished import TORN, find_hint
from ckpt_tools.reading.engines import Engine
from ckpt_tools.reading.mirrored import place
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.prefetch import prefetch
from ckpt_tools.reading.reader import Reader
from ckpt_tools.reading.scheduler import (
    AHEAD,
    BATCH,
    Request,
    Scheduler,
    say_other,
    say_unseen,
    seen_from_here,
)
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.reading.unseen import not_seen
from ckpt_tools.storage import Identity, counted, opened
from ckpt_tools.storage.retry import status, there

if TYPE_CHECKING:
    from ckpt_tools.guard.signing import Signer
    from ckpt_tools.reading.engines import Engine


Outcome = Digested | OSError
"""What the pass saw, or why nobody could look."""
_FILES = 10_000
"""Files of which the digests are waited for at once."""


class Digesting(Scheduler[Outcome]):
    """Has files read as ``reading`` says. ``names`` are those that the seals have for them, ``before`` is
    what they were when none of them had been handed out.

    A worker that sees anything else under a name has seen nothing: what it digested is not what is sealed.
    """

    def __init__(
        self,
        engine: Engine,
        reader: Reader,
        reading: DigestPass,
        names: Mapping[str, str],
        before: Mapping[str, Identity | OSError],
    ) -> None:
        super().__init__(engine, reader)
        self._reading, self._names, self._before = reading, names, before

    def sent(self, request: Request) -> tuple[Any, ...] | None:
        if any(c.joint for c in request.claims):
            return None
        how = {"name": self._names[request.path], "expect": request.expect, "claims": request.claims}
        return "seal", request.path, how, self._reading._replace(jobs=1, io="auto", progress=None, key=None)

    def answered(self, request: Request, begun_ns: int, host: str, answer: Sequence[Any]) -> Outcome | None:  # noqa: ARG002 - nothing is kept
        """Return what a worker saw, if it is the file that is here."""
        wrong, came, read = answer
        if wrong is not None:
            try:
                opened(request.path).close()
            except OSError:
                return None  # nobody can read it, which is said as it is seen from here
            return OSError(0, say_unseen(wrong, host))
        if not came:
            return None
        packed, identity, file = came
        made = None if packed is None else unpack(request.path, packed)
        if packed is not None:
            here = seen_from_here(request, host, made[0], identity) if made is not None else None
            if made is None or here is None:
                return None
            if here[0] is not made[0]:
                return Digested(here[0], None)
        self.count(request, read)
        before = self._before[request.path]
        if isinstance(before, OSError) or identity is None or tuple(identity[:3]) != before[:3]:
            return OSError(0, say_other(host))  # that it was changed is seen when all are looked at again
        sealed = None if file is None else msgpack.decode(file, type=SealedFile)
        return Digested(None if made is None else made[0], sealed, before)

    def unknown(self, request: Request, why: str) -> Outcome:  # noqa: ARG002 - whoever asks knows it
        return OSError(0, why)


def batches(targets: Iterable[Target], sizes: Mapping[str, int], width: int) -> Iterator[list[Target]]:
    """Targets that are read together: enough for so many workers, and no more than is well kept at once."""
    some, files, size = list[Target](), 0, 0
    for target in targets:
        some.append(target)
        files += len(target.files)
        size += sum(sizes.get(path, 0) for path in target.files)
        if files >= _FILES or size >= 4 * AHEAD * BATCH * max(2, width):
            yield some
            some, files, size = [], 0, 0
    if some:
        yield some


def _is_gone(path: str) -> bool:
    """Whether nothing is there any more: who prunes meanwhile hides nothing."""
    try:
        return not there(path)
    except OSError:
        return False


def seal_below(
    roots: Sequence[str], options: SealOptions, note: Callable[[SealedOne], object] | None = None
) -> Sealing:
    """Seal every whole checkpoint at or below the roots, which are absolute. ``note`` is told of each as soon
    as it is done.

    Raises CannotLook where a root cannot be listed or a seal not be written.
    """
    if not options.dry_run and options.read.seal_dir is None:
        require_writable(roots, SEAL_ELSEWHERE)
    started, done, findings = time.perf_counter(), list[SealedOne](), list[Finding]()
    with counted() as read:
        for root in dict.fromkeys(roots):
            if options.fragment is not None:
                outcomes = of_one_rank(root, options)
            elif options.merge:
                outcomes = merged(root, options)
            else:
                sealer = Sealer(root, options)
                findings += not_seen(sealer.session)
                outcomes = sealer.outcomes()
            for one in outcomes:
                done.append(one)
                if note is not None:
                    note(one)
    return Sealing(
        roots=tuple(roots),
        checkpoints=tuple(done),
        bytes_read=read.bytes,
        seconds=round(time.perf_counter() - started, 6),
        dry_run=options.dry_run,
        findings=tuple(findings),
    )


class Sealer:
    """Seals what is below one root."""

    def __init__(self, root: str, options: SealOptions) -> None:
        self.options = options
        self.session = s = open_session(root, options.read)
        s.add_members()
        self._parts: dict[str, Part] = {p.path: p for p in s.parts}
        self._pass = digest_pass(s, options)
        self._expected: dict[tuple[str, str], completeness.Expected] = {}
        self._gaps: dict[CheckpointKey, list[Finding]] = {}  # each checkpoint and run is looked at once
        self._signer, self._alone = _signer(options.sign_key), set[str]()

    def outcomes(self) -> Iterator[SealedOne]:
        """One checkpoint after the other, each sealed before the next is read."""
        s = self.session
        prefetch(s, s.parts, Level.STRUCTURE, engine=self.options.engine)
        for part in s.parts:
            s.report(part, Level.STRUCTURE)
        check_together(s, s.found.tree, Level.STRUCTURE)
        found, away = list(targets(s)), self.options.read.seal_dir
        if away is not None:
            found = [target._replace(seal=place(away, target.seal)) for target in found]
        self._alone = {target.path for target in found if target.files == (target.path,)}
        sizes = {path: _size(path) for target in found for path in target.files}
        s.reader.files_total = len(sizes)
        s.bytes_total = s.bytes_done + sum(sizes[path] for target in found for path in target.files)
        if not self.options.dry_run:
            for home in {os.path.dirname(target.seal) for target in found}:
                tidy(home)
        yield from self._seal(found, sizes)

    def _seal(self, found: Sequence[Target], sizes: Mapping[str, int]) -> Iterator[SealedOne]:
        engine = self.options.engine
        for some in batches(found, sizes, engine.width()) if engine else ([target] for target in found):
            begun = [(target, *self._begun(target)) for target in some]
            wanted = {path: target for target, _, is_left in begun if is_left for path in target.files}
            before = identities(list(wanted))
            came = self._read_by(engine, wanted, before) if engine else {}
            for target, done, is_left in begun:
                read = partial(self._file, target, came)
                yield self._ended(target, done, read, before) if is_left else done

    def _begun(self, target: Target) -> tuple[SealedOne, bool]:
        """What becomes of one target, and whether that is only known when its files have been read."""
        done = SealedOne(
            target.path,
            target.seal,
            "sealed",
            target.checkpoint.label if target.checkpoint else "",
            len(target.files),
            sum(_size(path) for path in target.files),
        )
        if wrong := self._against(target):
            return replace(done, state=state_of(wrong), findings=tuple(wrong)), False
        if not self.options.again and self._is_sealed(target):
            return replace(done, state="already"), self.options.compare
        if (n := len(target.files)) > document.MOST_FILES:
            why = f"it has {n:,} files, and a seal names {document.MOST_FILES:,} at most"
            many = finding("too-complex", why, path=target.path, hint=document.SHARED)
            return replace(done, state="unreadable", findings=(many,)), False
        return done, True

    def _ended(
        self,
        target: Target,
        done: SealedOne,
        file: Callable[[str], Digested],
        before: Identities,
    ) -> SealedOne:
        """Why a target is not sealed, or its seal, written: ``file`` reads one of its files."""
        read = sealed_files(target.files, file, before)
        if read.wrong:
            return replace(done, state=state_of(read.wrong), findings=read.wrong)
        if done.state == "already":
            return done
        if self.options.dry_run:
            return replace(done, state="would-seal")
        c = target.checkpoint
        of = described(c, self.session.root) if c else SealedCheckpoint()
        made = Seal(__version__, of, self.options.algorithm, read.files, beside=target.beside)
        try:
            put(target.seal, document.text(made), away=self.options.read.seal_dir is not None)
        except CannotLook as e:
            if not isinstance(e.__cause__, FileNotFoundError) or there(os.path.dirname(target.seal)):
                raise
            gone = finding("in-use", "its directory was removed while it was read", path=target.path)
            return replace(done, state="in-use", findings=(gone,))
        for path, data in self._signatures(target, read.files) if self._signer else ():
            put(path, data, away=False)
        if self.options.again and os.path.basename(target.seal) == NAME:
            remove_fragments(os.path.dirname(target.seal))
        return done

    def _read_by(
        self, engine: Engine, wanted: Mapping[str, Target], before: Identities
    ) -> dict[str, Outcome]:
        """What the workers of an engine have seen of files; of those that it lacks nobody could be asked."""
        requests = []
        for path in wanted:
            (expect, claims), now = self._about(path), before[path]
            size, mtime_ns = (-1, 0) if isinstance(now, OSError) else now[:2]
            requests.append(Request(path, size, mtime_ns, Level.CONTENT, tuple(expect), tuple(claims)))
        names = {path: _name(target, path) for path, target in wanted.items()}
        reading = Digesting(engine, self.session.reader, self._pass, names, before)
        return {request.path: outcome for request, outcome in reading.read(requests)}

    def _is_sealed(self, target: Target) -> bool:
        """Whether a seal that counts names these files and no others, with their sizes."""
        seals = self.session.indexes.seals
        known = [] if seals is None else seals.at(target.seal)
        sealed = {f.path: f.size for k in known for f in k.seal.files}
        if self._signer is not None and not self._signer.is_signed(target):
            return False
        return sealed == {_name(target, path): _size(path) for path in target.files}

    # ---- why not

    def _against(self, target: Target) -> list[Finding]:
        """Why a target must not be sealed; nothing where it may be."""
        if target.checkpoint is not None and (gaps := self._lacks(target.checkpoint, target)):
            return gaps
        return [f for path in target.files for f in self._wrong(path)] + self._contradicted(target)

    def _lacks(self, c: Checkpoint, target: Target) -> list[Finding]:
        """What the checkpoint lacks, or that its save goes on."""
        if c.key not in self._gaps:
            self._gaps[c.key] = self._look(c, target)
        return self._gaps[c.key]

    def _look(self, c: Checkpoint, target: Target) -> list[Finding]:
        s, siblings = self.session, target.siblings
        if c.unfinished:
            return [finding("unfinished-save", "the save never finished", path=c.path, hint=find_hint(s, c))]
        run = c.layout, c.run
        if run not in self._expected:
            finished = [o for o in siblings if not o.unfinished]
            self._expected[run] = completeness.expected(finished, s.layouts)
        found = find_gaps(c, self._expected[run]) or [*find_no_model(s, c)]
        gaps = [f for f in found if f.severity is not Severity.NOTE]
        torn = any(map(self._is_torn, c.parts))
        if (gaps or torn) and s.unfinished(c, siblings):
            why = gaps[0].message if gaps else "its newest files end early: it may still be written"
            return [finding("unfinished-save", why, path=c.path, hint=find_hint(s, c))]
        return [f for f in gaps if f.severity is Severity.ERROR]

    def _is_torn(self, part: Part) -> bool:
        """Whether a file ends early of which nobody says that it was finished."""
        report = self.session.reports.get(part.path)
        return report is not None and any(
            f.code in TORN and f.severity is Severity.WARNING for f in report.findings
        )

    def _wrong(self, path: str) -> list[Finding]:
        """What keeps a file from being sealed, as far as its structure tells."""
        report = self.session.reports.get(path)
        if report is None or report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN):
            return []
        if report.verdict is Verdict.UNKNOWN and _is_gone(path):
            return [finding("in-use", "it was removed after it was listed", path=path)]
        found = [f for f in report.findings if f.severity is not Severity.NOTE]
        errors = {f.code for f in found if f.severity is Severity.ERROR}
        if self.options.again and report.verdict is Verdict.BROKEN and errors == {CODE}:
            return []
        return [replace(f, path=path) for f in found]

    def _contradicted(self, target: Target) -> list[Finding]:
        """Files that an earlier seal names and that are gone; an earlier seal that cannot be used: what it
        said is not known.
        """
        seals = self.session.indexes.seals
        if seals is None or self.options.again:
            return []
        seals.read_all()
        found = [replace(f, path=target.seal) for f in seals.findings.get(target.seal, ())]
        found += (f for path in (target.path, *target.files) for f in seals.about.get(path, ()))
        return [f for f in dict.fromkeys(found) if f.severity is Severity.ERROR or f.code == "seal-broken"]

    # ---- read and swear

    def _file(self, target: Target, came: dict[str, Outcome], path: str) -> Digested:
        outcome = came.pop(path, None)
        if isinstance(outcome, OSError):
            raise outcome
        if outcome is not None:
            return outcome
        self.session.reader.opened(path)
        return self._pass.read(path, _name(target, path), *self._about(path))

    def _about(self, path: str) -> tuple[Sequence[str], Sequence[Claim]]:
        """The formats that a file may have, and what others say of it."""
        s, part = self.session, self._parts.get(path)
        expect = formats_allowed(part, s.layouts.piece_of(part)) if part else ()
        claims = s.indexes.described(path) if self.options.again else s.indexes.claims(path)
        if self.options.again and self._signer is not None:  # the signature is made anew as well
            claims = tuple(c for c in claims if c.format != "model_signing")
        return expect, claims

    def _signatures(self, target: Target, files: Sequence[SealedFile]) -> Iterator[tuple[str, bytes]]:
        """(path, content) of its signatures."""
        assert self._signer is not None  # noqa: S101 - for the type checker: the caller has looked
        homes = (os.path.split(path) for path in target.files if path in self._alone and path != target.path)
        hidden = [
            f"{home}/{made(name)}" for home, name in homes for made in (names.beside, names.signature_beside)
        ]
        return self._signer.sign(target, files, self.options.algorithm, hidden)


def _name(target: Target, path: str) -> str:
    return os.path.relpath(path, target.base)


def _signer(key: str | None) -> Signer | None:
    """What signs, where a key is given."""
    if key is None:
        return None
    from ckpt_tools.guard.signing import Signer  # needs a package that few have

    return Signer(key)


def _size(path: str) -> int:
    try:
        return status(path).st_size
    except OSError:
        return 0


def seal_verified(s: Session, c: Checkpoint, options: ReadOptions) -> Sealing:
    """Seal a checkpoint that is known to be good, as the session shows it. It is read once more for that: no
    digest of it was taken before its neighbours had been compared with it, or of one that is suspect.

    The verdict that is kept of each file then rests on the seal too, so that ``plan`` need not compare the
    two. Raises CannotLook where the seal cannot be written.
    """
    homes = {part.home for part in c.parts}
    paths = sorted(homes) if all(homes) else [part.path for part in c.parts]
    parts = s.members(c).parts
    before = {part.path: _basis(s, part.path) for part in parts}
    result = seal_below(paths, SealOptions(read=options))
    for one in result.checkpoints:
        if one.state == "sealed":
            base = one.path if os.path.basename(one.seal) == NAME else os.path.dirname(one.path)
            s.indexes.add_seal(one.seal, base)
    for part in parts:
        expect = formats_allowed(part, s.layouts.piece_of(part))
        s.reader.sealed(part.path, expect, before[part.path], _basis(s, part.path))
    return result


def _basis(s: Session, path: str) -> str | None:
    """What stands for the indexes and seals behind a file."""
    s.indexes.claims(path)
    return s.indexes.based(path)
