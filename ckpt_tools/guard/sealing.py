"""``ckpt seal``: reads whole checkpoints once, verifies them and writes seals; says why others get none."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools import __version__
from ckpt_tools.discovery import group as grouping
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.document import NAME
from ckpt_tools.formats.seals.seal import CODE
from ckpt_tools.guard.targets import SharedFindings, Target, describe, files_of, find_size, find_targets
from ckpt_tools.guard.writing import SEAL_ELSEWHERE, open_home, remove_abandoned, require_writable, write_seal
from ckpt_tools.inspection.digest_pass import DigestPass
from ckpt_tools.inspection.seals import Known, replaces
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.model.seal import Fragment, Seal, SealedCheckpoint, SealedFile, SealedOne, Sealing
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.planning.engine import check_together
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.reader import place
from ckpt_tools.reading.scheduler import prefetch
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.reading.unseen import list_unlisted
from ckpt_tools.storage import Identity, count_read
from ckpt_tools.storage.retry import exists, is_directory, refresh, status
from ckpt_tools.storage.urls import is_normal, is_url

if TYPE_CHECKING:
    from ckpt_tools.guard.signing import Signer


class SealOptions(Struct, frozen=True):
    """As the arguments of ``guard.seal``; ``compare`` reads sealed files and compares them with their seals,
    ``fragment`` seals what one rank wrote: ``files`` (relative to the checkpoint), or what the layout says.
    """

    read: ReadOptions = ReadOptions()
    algorithm: str = "xxh3"
    also: tuple[str, ...] = ()
    tensors: bool = False
    again: bool = False
    compare: bool = False
    dry_run: bool = False
    merge: bool = False
    fragment: Fragment | None = None
    files: tuple[str, ...] = ()
    sign_key: str | None = None


def seal_below(roots: Sequence[str], options: SealOptions) -> Sealing:
    """Seal every whole checkpoint at or below the absolute roots. Raises CannotLook if a root cannot be
    listed or a seal cannot be written.
    """
    if not options.dry_run and options.read.seal_dir is None:
        require_writable(roots, SEAL_ELSEWHERE)
    started, done, findings = time.perf_counter(), list[SealedOne](), list[Finding]()
    with count_read() as read:
        for root in dict.fromkeys(roots):
            if options.fragment is not None:
                done.append(Sealer(root, options).seal_share(options.fragment))
            elif options.merge:
                done += merge_below(root, options.read, dry_run=options.dry_run)
            else:
                sealer = Sealer(root, options)
                findings += list_unlisted(sealer.session)
                done += sealer.seal()
    return Sealing(
        roots=tuple(roots),
        checkpoints=tuple(done),
        bytes_read=read.bytes,
        seconds=round(time.perf_counter() - started, 6),
        dry_run=options.dry_run,
        findings=tuple(findings),
    )


class Sealer:
    """Seals the checkpoints and files below one root."""

    def __init__(self, root: str, options: SealOptions) -> None:
        if options.fragment is not None and not is_directory(root):
            hint = "name the directory of the checkpoint that the ranks write"
            raise UsageError(f"{root} is not a directory", hint)
        self.root, self.options, read = root, options, options.read
        self.session = s = open_session(root, read)
        if options.fragment is None:
            s.add_members()
        self._parts: dict[str, Part] = {p.path: p for p in s.parts}
        self._pass = DigestPass(
            options.algorithm,
            options.also,
            options.tensors,
            read.jobs,
            s.options.io,
            read.require,
            s.reader.key,
            s.reader.advance,
        )
        self._signer: Signer | None = None
        if options.sign_key is not None:
            from ckpt_tools.guard.signing import Signer  # needs a package that few have

            self._signer = Signer(options.sign_key)

    def seal(self) -> Iterator[SealedOne]:
        """Seal one checkpoint after the other, each before the next is read; yield the results."""
        s, options = self.session, self.options
        prefetch(s, s.parts, Level.STRUCTURE)
        for part in s.parts:
            s.report(part, Level.STRUCTURE)
        checkpoints = grouping.group(s.parts, s.layouts)
        shared = SharedFindings(check_together(s, not s.found.alone), checkpoints)
        self._together = {c.key: _find_wrong_together(shared, c) for c in checkpoints}
        found, seal_dir = list(find_targets(s)), options.read.seal_dir
        if seal_dir is not None:
            found = [target._replace(seal=place(seal_dir, target.seal)) for target in found]
        files = [path for target in found for path in target.files]
        s.reader.files_total = len(set(files))
        s.bytes_total = s.bytes_done + sum(map(find_size, files))
        for home in set() if options.dry_run else {os.path.dirname(target.seal) for target in found}:
            remove_abandoned(home)
        for target in found:
            yield self._seal_target(target)

    def seal_share(self, fragment: Fragment) -> SealedOne:
        """Write the fragment of one rank: of the files in ``options.files``, or of the files whose names have
        its rank. Rank 0 also takes the files that belong to no rank. The save may still go on elsewhere, so
        nothing is asked of other files. Raises UsageError if a file lies outside the checkpoint.
        """
        s, home, seal_dir = self.session, self.root, self.options.read.seal_dir
        paths = [_join_inside(home, name) for name in self.options.files]
        if not paths:
            ranks = {p.path: p.rank for p in s.parts}
            own_ranks = (None, 0) if fragment.rank == 0 else (fragment.rank,)
            paths = [path for path in sorted({*files_of(home), *ranks}) if ranks.get(path) in own_ranks]
        seal = f"{home}/{document.FRAGMENTS}/{document.fragment_name(fragment.rank)}"
        seal = seal if seal_dir is None else place(seal_dir, seal)
        found = [c for c in grouping.group(s.parts, s.layouts) if {p.home for p in c.parts} == {home}]
        target = Target(home, home, seal, tuple(paths), (), found[0] if len(found) == 1 else None)
        share = f"rank {fragment.rank} of {fragment.world_size}"
        result = SealedOne(home, seal, "sealed", share, len(paths), sum(map(find_size, paths)))
        result = self._read_and_seal(target, result)
        if result.state == "sealed":
            remove_abandoned(os.path.dirname(seal))
        return result

    def _seal_target(self, target: Target) -> SealedOne:
        """Seal one target and return the result; its files are read only if it can get a seal."""
        c, n = target.checkpoint, len(target.files)
        size = sum(map(find_size, target.files))
        result = SealedOne(target.path, target.seal, "sealed", c.label if c else "", n, size)
        if wrong := self._find_wrong(target):
            return replace(result, state=find_state(wrong), findings=tuple(wrong))
        if not self.options.again and self._is_sealed(target):
            result = replace(result, state="already")
            return self._read_and_seal(target, result) if self.options.compare else result
        if n > document.MOST_FILES:
            why = f"it has {n:,} files, and a seal names {document.MOST_FILES:,} at most"
            many = finding("too-complex", why, path=target.path, hint=document.SHARED)
            return replace(result, state="unreadable", findings=(many,))
        return self._read_and_seal(target, result)

    def _read_and_seal(self, target: Target, result: SealedOne) -> SealedOne:
        """Read a target's files and write its seal, if nothing is wrong with them; return the result."""
        options = self.options
        files, wrong = self._read_files(target)
        if wrong:
            return replace(result, state=find_state(wrong), findings=wrong)
        if result.state == "already":
            return result
        if options.dry_run:
            return replace(result, state="would-seal")
        c = target.checkpoint
        of = describe(c, self.session.root) if c else SealedCheckpoint()
        made = Seal(__version__, of, options.algorithm, files, options.fragment, target.beside)
        try:
            write_seal(target.seal, document.text(made), away=options.read.seal_dir is not None)
        except CannotLook as e:
            if not isinstance(e.__cause__, FileNotFoundError) or exists(os.path.dirname(target.seal)):
                raise
            gone = finding("in-use", "its directory was removed while it was read", path=target.path)
            return replace(result, state="in-use", findings=(gone,))
        if self._signer is not None:
            for path, data in self._signer.sign(target, files, options.algorithm):
                write_seal(path, data, away=False)
        if options.again and os.path.basename(target.seal) == NAME:
            remove_fragments(os.path.dirname(target.seal))
        return result

    def _is_sealed(self, target: Target) -> bool:
        """Return whether a seal names exactly the target's files and sizes; if we sign, so do signatures."""
        known = self.session.indexes.seals.known.get(target.seal)
        sealed = {f.path: f.size for f in known.seal.files} if known else {}
        if self._signer is not None and not self._signer.is_signed(target):
            return False
        return sealed == {os.path.relpath(path, target.base): find_size(path) for path in target.files}

    # ---- what keeps a target from being sealed

    def _find_wrong(self, target: Target) -> list[Finding]:
        """Return why a target must not be sealed: also files that an earlier seal names and that are gone,
        and an earlier seal that cannot be used, because nobody knows what it says.
        """
        if target.checkpoint is not None and (wrong := self._together[target.checkpoint.key]):
            return wrong
        out = [f for path in target.files for f in self._find_wrong_in(path)]
        seals = self.session.indexes.seals
        if not self.options.again:
            seals.read_all()
            found = [replace(f, path=target.seal) for f in seals.findings.get(target.seal, ())]
            found += (f for path in (target.path, *target.files) for f in seals.about.get(path, ()))
            unique = dict.fromkeys(found)
            out += (f for f in unique if f.severity is Severity.ERROR or f.code == "seal-broken")
        return out

    def _find_wrong_in(self, path: str) -> list[Finding]:
        """Return the findings, from the check of a file's structure, that keep it from being sealed."""
        report = self.session.reports.get(path)
        if report is None or report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN):
            return []
        try:
            if report.verdict is Verdict.UNKNOWN and not exists(path):  # pruning meanwhile hides no damage
                return [finding("in-use", "it was removed after it was listed", path=path)]
        except OSError:
            pass
        found = [f for f in report.findings if f.severity is not Severity.NOTE]
        errors = {f.code for f in found if f.severity is Severity.ERROR}
        if self.options.again and report.verdict is Verdict.BROKEN and errors == {CODE}:
            return []
        return [replace(f, path=path) for f in found]

    # ---- reading and digesting

    def _read_files(self, target: Target) -> tuple[tuple[SealedFile, ...], tuple[Finding, ...]]:
        """Return (all files with their digests, what is wrong). That they are unchanged is checked after the
        last one is read: else a checkpoint that never existed could be sealed.
        """
        before, files, wrong = dict[str, Identity | OSError](), list[SealedFile](), list[Finding]()
        for path in target.files:
            try:
                before[path] = Identity.of(status(path))
            except OSError as e:
                before[path] = e
        for path in target.files:
            try:
                file, found = self._read(target, path)
            except OSError as e:
                wrong.append(_explain(e, path))
                continue
            if file is not None:
                files.append(file)
            wrong += (replace(f, path=path) for f in found if f.severity is not Severity.NOTE)
        failed = refresh(target.files)
        changed = [f for p, was in before.items() if (f := _find_change(p, was, failed.get(p)))]
        return tuple(files), tuple(changed or wrong)  # a change may have caused the rest

    def _read(self, target: Target, path: str) -> tuple[SealedFile | None, Sequence[Finding]]:
        """Read a file; return (its digests, what contradicts indexes, layouts and seals). Raises OSError."""
        s, part, options = self.session, self._parts.get(path), self.options
        s.reader.opened(path)
        name = os.path.relpath(path, target.base)
        if options.fragment and s.indexes.find_undescribed(path) is not None:
            return self._pass.read(path, name, as_bytes=True)  # its index is another rank's
        expect = formats_allowed(part, s.layouts.piece_of(part)) if part else ()
        ignores_seals = options.again or options.fragment is not None
        claims = s.indexes.described(path) if ignores_seals else s.indexes.claims(path)
        if options.again and self._signer is not None:  # the signature is made anew as well
            claims = tuple(c for c in claims if c.format != "model_signing")
        return self._pass.read(path, name, expect, claims)


def _join_inside(home: str, name: str) -> str:
    """Return the path of ``name`` below ``home``. Raises UsageError if it lies outside."""
    path = os.path.join(home, name) if is_url(home) else os.path.normpath(os.path.join(home, name))
    if not path.startswith(f"{home.rstrip('/')}/") or not is_normal(path):
        raise UsageError(f"{name} lies outside {home}", "a seal names only files of its checkpoint")
    return path


def _find_wrong_together(shared: SharedFindings, c: Checkpoint) -> list[Finding]:
    """Return that a save is unfinished, or the errors on its files together and on those it lacks."""
    found = [*shared.find(c, {part.path for part in c.parts})]
    return [f for f in found if f.code == "unfinished-save"] or [f for f in found if f.is_error]


def _find_change(path: str, before: Identity | OSError, failed: OSError | None) -> Finding | None:
    """Return a finding if a file has changed or cannot be looked at; ``failed`` is its store's error."""
    try:
        if failed is not None:
            raise failed
        now = Identity.of(status(path))
    except OSError as e:
        return _explain(e, path)
    text = "it was changed while its checkpoint was read"
    return None if now == before else finding("in-use", text, path=path)


def _explain(e: OSError, path: str) -> Finding:
    """Return the finding on a file that failed: ``in-use`` if it has gone, else ``unreadable``."""
    code = "in-use" if e.errno in (errno.ESTALE, errno.ENOENT, errno.EBUSY) else "unreadable"
    return finding(code, e.strerror or str(e), path=path)


def seal_verified(s: Session, c: Checkpoint, options: ReadOptions) -> Sealing:
    """Seal a checkpoint that is verified as good, as the session shows it. It is read once more for digests:
    a verification takes none, because neighbours are compared after it, and suspect files get no seal.

    The cached verdict of each file then rests on the seal too, so that ``plan`` need not compare the two.
    Raises CannotLook if the seal cannot be written.
    """
    homes = {part.home for part in c.parts}
    paths = sorted(homes) if all(homes) else [part.path for part in c.parts]
    parts = s.members(c).parts
    before = {part.path: _find_basis(s, part.path) for part in parts}
    result = seal_below(paths, SealOptions(read=options))
    for sealed in result.checkpoints:
        if sealed.state == "sealed":
            base = sealed.path if os.path.basename(sealed.seal) == NAME else os.path.dirname(sealed.path)
            s.indexes.seals.add(sealed.seal, base)
    for part in parts:
        expect = formats_allowed(part, s.layouts.piece_of(part))
        s.reader.sealed(part.path, expect, before[part.path], _find_basis(s, part.path))
    return result


def _find_basis(s: Session, path: str) -> str | None:
    """Return a digest of the indexes and seals that name a file; "" without any, None if one changes."""
    s.indexes.claims(path)
    return s.indexes.sources_digest(path)


# ---- fragments, which ranks have sealed


def merge_below(root: str, read: ReadOptions, *, dry_run: bool) -> Iterator[SealedOne]:
    """Write one seal for each directory in which all ranks have sealed their own files; yield the results."""
    seals = open_session(root, read).indexes.seals  # the files of 100,000 ranks are not kept
    seals.read_all()
    by_home: dict[str, list[Known]] = {}
    for known in seals.known.values():
        if known.seal.fragment is not None:
            by_home.setdefault(known.base, []).append(known)
    for home, found in sorted(by_home.items()):
        fragments = sorted(found, key=lambda k: k.path)
        above = os.path.dirname(os.path.dirname(fragments[0].path))
        result = SealedOne(home, f"{above}/{document.NAME}", "merged", f"{len(fragments)} ranks")
        for directory in () if dry_run else (above, os.path.dirname(fragments[0].path)):
            remove_abandoned(directory)
        # a merge that was interrupted has left a whole seal
        before = seals.known.get(result.seal)
        whole = before.seal if before is not None and replaces(before, fragments) else None
        if whole is None:
            whole, wrong = _merge(fragments, seals.findings)
            if whole is None:
                yield replace(result, state=find_state(wrong), findings=tuple(wrong))
                continue
            if not dry_run:
                write_seal(result.seal, document.text(whole), away=read.seal_dir is not None)
        if not dry_run:
            remove_fragments(above, [os.path.basename(k.path) for k in fragments])
        yield replace(result, files=len(whole.files), size=sum(f.size for f in whole.files))


def _merge(
    fragments: Sequence[Known], findings: dict[str, list[Finding]]
) -> tuple[Seal | None, list[Finding]]:
    """Return (the seal of all fragments, []), or (None, why they cannot be merged, from ``findings`` too)."""
    first = fragments[0]
    wrong = [replace(f, path=k.path) for k in fragments for f in findings.get(k.path, ())]
    algorithms = {k.seal.algorithm for k in fragments}
    if len(algorithms) > 1:
        why = f"its fragments have digests of {' and '.join(sorted(algorithms))}"
        wrong.append(finding("seal-incomplete", why, path=first.path))
    files = dict[str, SealedFile]()
    for known in fragments:
        for f in known.seal.files:
            if files.setdefault(f.path, f) != f:
                why = f"another rank has sealed other contents of {f.path!r}"
                wrong.append(finding("seal-mismatch", why, path=known.path))
    if wrong:
        return None, wrong
    sealed = tuple(files[name] for name in sorted(files))
    return Seal(__version__, first.seal.checkpoint, algorithms.pop(), sealed), []


def find_state(wrong: Sequence[Finding]) -> str:
    """Return the state of a target that is not sealed, by the most serious finding."""
    codes = {f.code for f in wrong}
    if codes & {"unreadable", "unread-pickle"}:
        return "unreadable"
    if "in-use" in codes:
        return "in-use"
    return "unfinished" if codes in ({"unfinished-save"}, {"seal-incomplete"}) else "broken"


def remove_fragments(home: str, names: Sequence[str] | None = None) -> None:
    """Remove the fragments of seals below a checkpoint's directory, all or those with the given file names,
    after the seal that replaces them is written. Fragments that stay are compared with the files too.
    """
    home = f"{home}/{document.FRAGMENTS}"
    with suppress(OSError):
        if is_url(home):
            from ckpt_tools.storage.stores.mounts import store_of

            store, key = store_of(home)
            listed = [o.key.rpartition("/")[2] for o in store.directory(key)[0]] if names is None else names
            store.delete([f"{key}/{name}" for name in listed if document.is_fragment(name)])
            return
        with open_home(home) as directory_fd:
            for name in filter(document.is_fragment, os.listdir(directory_fd) if names is None else names):
                os.unlink(name, dir_fd=directory_fd)
        os.rmdir(home)
