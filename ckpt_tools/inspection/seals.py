"""The claims of seals on the files that they name. Each seal is read once, when it is needed.

Signatures of OpenSSF model signing, checked with a public key by the package that writes them.

The package checks that a signature fits the key and signs the statement that was read. The files are compared
with the digests in the statement, with or without a key (formats/manifests/model_signing.py).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Claim, Damage
from ckpt_tools.formats.manifests.model_signing import Statement, read_statement
from ckpt_tools.formats.seals.document import NAME, is_seal, say_misplaced, sealed_name
from ckpt_tools.formats.seals.seal import compare, read
from ckpt_tools.model import ranges
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.seal import Seal, SealedCheckpoint, SealedFile
from ckpt_tools.storage import ShortRead, opened, urls
from ckpt_tools.storage.local import on_this_machine
from ckpt_tools.storage.retry import exists, is_file, is_link

if TYPE_CHECKING:
    from model_signing.manifest import Manifest

LISTED = 16
"""Missing files with a finding of their own, at most."""
_ABOVE = 16
"""How many directories above a file its seal may lie."""
_CLAIMS = 4
"""Seals of different content that one file is compared with, at most: more than there are algorithms."""
_ASKED = 4
"""Files of a seal whose counters tell whether the seal is of another save, at most."""
_PROOF = 2
"""Counters that must differ for a seal of another save: a single one may be a flipped bit."""
_MOST = 1 << 20
"""Ranks of a job, at most."""


class Known(NamedTuple):
    """One valid seal. Its names are relative to the directory ``base``."""

    path: str
    base: str
    seal: Seal


class _Entry(NamedTuple):
    """One file in one seal."""

    known: Known
    file: SealedFile

    @property
    def content(self) -> tuple[int, str, str]:
        """The size, and the digests of the chunks and of the whole file."""
        return self.file.size, self.file.chunks, self.file.digest


Same = Callable[[str, SealedFile, str], bool]
"""(path, its entry in a seal, the seal's algorithm) -> True if the file is known, unread, to be the same."""


class Seals:
    """The seals of a tree. ``bases`` maps the path of each seal to the directory of its names, ``findings`` a
    seal to the findings on it, ``about`` a file to the findings on the seals that name it. ``known`` are the
    valid seals by path, ``absent`` the paths of those that name missing files.
    """

    def __init__(
        self, bases: Mapping[str, str], unseen: dict[str, str], same: Same = lambda *_: False
    ) -> None:
        self._same = same
        self._unread: dict[str, list[str]] = defaultdict(list)  # directory -> seals
        for path, base in bases.items():
            self._unread[base].append(path)
        self._entries: dict[str, tuple[_Entry, ...]] = {}
        self._whole = set[str]()  # directories of which a valid seal names every file
        self._last: SealedCheckpoint | None = None  # equal in all fragments: kept in memory once
        self.known: dict[str, Known] = {}
        self.absent = set[str]()
        self.findings: dict[str, list[Finding]] = defaultdict(list)
        self.about: dict[str, list[Finding]] = defaultdict(list)
        self.unseen = unseen

    def claims(self, path: str) -> tuple[Claim, ...]:
        """Return the claims on a file by the seals in its directory and above; reads these seals."""
        directory = os.path.dirname(path)
        for _ in range(_ABOVE if self._unread else 0):
            self._read_of(directory)
            directory = os.path.dirname(directory)
        claims = list[Claim]()
        for known, file in self._entries.get(path, ()):
            check = partial(compare, file=file, algorithm=known.seal.algorithm)
            claims.append(Claim("seal", check, whole=not file.size))
        return tuple(claims)

    def behind(self, path: str) -> Sequence[tuple[str, str]]:
        """Return (path, digest of its text) of each seal that the ``claims`` of a file rest on."""
        return [(known.path, known.seal.digest) for known, _ in self._entries.get(path, ())]

    def add(self, path: str, base: str) -> None:
        """Add a seal that was written after the tree was listed."""
        self._unread[base].append(path)

    def sealed_by(self, path: str) -> list[tuple[SealedFile, str]]:
        """Return (entry, algorithm of the seal) of each valid seal that names a file."""
        self.claims(path)
        return [(file, known.seal.algorithm) for known, file in self._entries.get(path, ())]

    def leaves_out(self, path: str, home: str) -> bool:
        """Return True if the directory ``home`` has a seal, and the seal does not name the file."""
        self.claims(path)
        return home in self._whole and path not in self._entries

    def members(self) -> Iterator[str]:
        """Yield every existing file that a seal names; reads all seals."""
        self.read_all()
        yield from self._entries

    def read_all(self, besides: Container[str] = ()) -> None:
        """Read all seals that were not read yet, except those of the directories ``besides``."""
        for base in [base for base in self._unread if base not in besides]:
            self._read_of(base)

    def forget(self) -> None:
        """Drop the entries of all files, once they are compared, to free memory."""
        self._entries = {path: rows for path, rows in self._entries.items() if is_seal(path)}
        self.known = {path: known for path, known in self.known.items() if os.path.basename(path) == NAME}

    def _read_of(self, base: str) -> None:
        """Read the seals of one directory, and check them: fragments together, then the counters of each."""
        paths = self._unread.pop(base, ())
        found = [known for path in paths if (known := self._read(path, base)) is not None]
        self._check_fragments(found)
        for known in found:
            differ = _list_other_counters(known, self._same)
            if len(differ) < _PROOF:
                self.known[known.path] = known
                self._keep(known)
                if os.path.basename(known.path) == NAME:
                    self._whole.add(base)
            else:
                why = f"the seal is of another save: {'; '.join(differ[:3])}"
                self._note(known, finding("seal-stale", why), _list_paths(known))

    def _read(self, path: str, base: str) -> Known | None:
        """Return one seal; None if it is not valid or cannot be read, and note why."""
        try:
            with opened(path, certain=True) as source:
                seal = read(source)
        except Damage as e:
            self._note_for_base(path, base, e.finding)
            return None
        except IsADirectoryError:
            self._note_for_base(path, base, finding("seal-broken", "a directory lies in its place"))
            return None
        except (OSError, ShortRead) as e:
            why = str(getattr(e, "strerror", None) or e)
            if getattr(e, "errno", None) in (errno.ELOOP, errno.ENOENT) and is_link(path):
                why = "a seal belongs there, and the link leads nowhere"  # its target may not be mounted
            self.unseen[path] = why
            return None
        if why := say_misplaced(os.path.basename(path), seal):
            misnamed = finding("seal-broken", why)
            self.findings[path].append(misnamed)
            self._note_for_base(path, base, misnamed)
            return None
        if self._last is not None and self._last == seal.checkpoint:
            seal = replace(seal, checkpoint=self._last)
        self._last = seal.checkpoint
        return Known(path, base, seal)

    def _note_for_base(self, path: str, base: str, f: Finding) -> None:
        """Note a finding on an invalid seal for the file or directory that it was made of."""
        own = sealed_name(os.path.basename(path))
        self.about[f"{base}/{own}" if own else base].append(replace(f, path=path))

    def _check_fragments(self, found: Sequence[Known]) -> None:
        """Note a finding if fragments of some ranks are missing, and no seal of all ranks replaces them."""
        fragments = {k.seal.fragment.rank: k for k in found if k.seal.fragment}
        if not fragments or any(replaces(k, list(fragments.values())) for k in found):
            return
        sizes = {k.seal.fragment.world_size for k in fragments.values() if k.seal.fragment}
        size, first = max(sizes), min(fragments.items())[1]
        missing = [rank for rank in range(size) if rank not in fragments] if size <= _MOST else []
        if len(sizes) > 1:
            why = f"its fragments are of jobs of {' and '.join(map(str, sorted(sizes)))} ranks"
        elif missing or size > _MOST:
            ranks = ranges.names(map(str, missing)) or "too many to list"
            why = f"{len(fragments):,} of {size:,} ranks have sealed their files: missing are {ranks}"
        else:
            return
        self._note(first, finding("seal-incomplete", why), _list_paths(first))

    def _keep(self, known: Known) -> None:
        """Keep the entry of each existing file of a seal; note a finding on missing files and bad paths."""
        absent, present, outside = list[str](), list[str](), list[str]()
        for file in known.seal.files:
            path = inside(known.base, file.path)
            if path is None:
                outside.append(file.path)
            elif not self._exists(path):
                absent.append(file.path)
            else:
                present.append(path)
                entry, have = _Entry(known, file), self._entries.get(path, ())
                if len(have) < _CLAIMS and all(entry.content != other.content for other in have):
                    self._entries[path] = (*have, entry)
        if outside:
            more = f" and {len(outside) - LISTED:,} more" if len(outside) > LISTED else ""
            names = ranges.names(name[:200] for name in outside[:LISTED])
            why = f"it names what lies outside its directory: {names}{more}"
            self.findings[known.path].append(finding("path-escape", why))
        if absent:
            self.absent.add(known.path)
            self._note_absent(known, absent, present)

    def _note_absent(self, known: Known, absent: Sequence[str], present: Sequence[str]) -> None:
        """Note findings on the ``absent`` files of a seal, for the files that were saved with them."""
        beside = [p for name in known.seal.beside if (p := inside(known.base, name)) and self._exists(p)]
        # a lost file that holds no state is no reason to resume from an older checkpoint
        stateless = bool(beside) and known.seal.checkpoint.layout is None
        for f in _say_gone(absent, known.path if stateless else ""):
            if present or beside:
                self._note(known, f, [*present, *beside])
            else:  # no file of that save is left in its directory
                self._note_for_base(known.path, known.base, f)
        for name in () if present else absent[:LISTED]:  # files that were pruned leave their places empty
            try:
                taken = exists(f"{known.base.rstrip('/')}/{name}")
            except OSError:  # the listing of the directory reports it
                taken = False
            if taken:
                why = f"{name[:200]!r} was sealed, and what lies in its place is no file"
                self.findings[known.path].append(finding("seal-missing", why, severity=Severity.WARNING))

    def _note(self, known: Known, f: Finding, present: Iterable[str]) -> None:
        """Note a finding for a seal, and for each path in ``present``."""
        self.findings[known.path].append(f)
        for path in present:
            self.about[path].append(replace(f, path=known.path))

    def _exists(self, path: str) -> bool:
        """Return True if a file exists, or if nobody can look, which is noted in ``unseen``."""
        try:
            return is_file(path)
        except OSError as e:
            self.unseen[path] = e.strerror or str(e)
            return True


def replaces(one: Known, fragments: Sequence[Known]) -> bool:
    """Return True if a seal has the entries of all ``fragments``, left by a process that died."""
    if one.seal.fragment is not None or os.path.basename(one.path) != NAME:
        return False
    sealed = {f.path: (f.size, f.chunks) for f in one.seal.files}
    return all(sealed.get(f.path) == (f.size, f.chunks) for k in fragments for f in k.seal.files)


def inside(base: str, name: str) -> str | None:
    """Return the path of a file that a seal names; None if it is outside ``base``, or no valid name."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return None
    path = urls.join_inside(base, name)
    return path if path == f"{base.rstrip('/')}/{name}" else None


def _list_paths(known: Known) -> list[str]:
    return [p for f in known.seal.files if (p := inside(known.base, f.path)) is not None]


def _list_other_counters(known: Known, same: Same) -> list[str]:
    """Return in words the counters in sound files that differ from the sealed ones. Two or more show that the
    seal is of an earlier save under the same names; a single one may be a flipped bit, which is damage.
    """
    differ = list[str]()
    rows = sorted((f for f in known.seal.files if f.counters), key=lambda f: (f.size, f.path))
    for file in rows[:_ASKED]:
        path = inside(known.base, file.path)
        if path is None or same(path, file, known.seal.algorithm):
            continue
        from ckpt_tools.inspection.check import inspect

        report, _ = inspect(path, Level.STRUCTURE)
        if any(f.severity is Severity.ERROR for f in report.findings):
            continue
        for name, was in file.counters.items():
            now = report.metadata.get(name)
            if now is not None and now != was:
                differ.append(f"{name} is {now} in {file.path}, {was} was sealed")
    return differ


def _say_gone(names: Sequence[str], stateless: str) -> Iterator[Finding]:
    """Yield findings on missing sealed files; ``stateless`` is their seal if they hold no state, else ""."""
    missing = partial(finding, "seal-missing")
    if stateless:
        hint = f"bring it back; if it was removed on purpose, remove its seal, {stateless}, as well"
        missing = partial(missing, severity=Severity.WARNING, hint=hint)
    for name in names[:LISTED]:
        yield missing(f"{name[:200]!r} was sealed and is not there")
    if more := names[LISTED:]:
        others = ranges.names(name[:200] for name in more)
        yield missing(f"{len(more):,} more files were sealed and are not there: {others}")


def is_signature(path: str) -> bool:
    return path.endswith(".sig")


EXTRA = "pip install 'ckpt-tools[sign]'"


class Checked(NamedTuple):
    """A checked signature: its statement, and why it is not valid ("" if it fits the key)."""

    statement: Statement | None
    wrong: str


class Signatures:
    """Checks each signature once, with the public ``key`` in a PEM file. Raises UsageError."""

    def __init__(self, key: str) -> None:
        try:
            from model_signing import verifying
        except ImportError:
            raise UsageError("CKPT_VERIFY_KEY needs the package model-signing", EXTRA) from None
        self._verifier = verifying
        self._key = key
        self.checked = cache(self._check)
        usable(key, lambda: verifying.Config().use_elliptic_key_verifier(public_key=Path(key)))

    def valid(self, path: str) -> Statement | None:
        """Return the statement that the signature in this file signs; None if it is not valid."""
        found = self.checked(path)
        return None if found.wrong else found.statement

    def why_not(self, report: Report, behind: Iterable[str]) -> str:
        """Return why no signature vouches for a file, "" if one does; ``behind`` are indexes that name it."""
        if report.format == "model_signing" and is_signature(report.path):
            return self.checked(report.path).wrong
        signed = [path for path in sorted(behind) if is_signature(path)]
        if any(self.valid(path) for path in signed):
            return ""
        why = (f"{os.path.basename(path)}: {self.checked(path).wrong}" for path in signed)
        return "; ".join(why) or "no signature names this file"

    def _check(self, path: str) -> Checked:
        with contextlib.ExitStack() as stack:
            try:
                source = stack.enter_context(opened(path))
                statement = read_statement(source)
                file = Path(stack.enter_context(on_this_machine(source)))
            except (Damage, OSError, ShortRead) as e:
                return Checked(None, f"it cannot be read: {e}")
            try:
                read = manifest_of(statement.model, statement.serialization, statement.resources)
                config = self._verifier.Config().use_elliptic_key_verifier(public_key=Path(self._key))
                with contextlib.redirect_stdout(io.StringIO()):  # it warns of old signatures there
                    config.set_hashing_config(Given(read)).verify(file.parent, file)
            except Exception as e:  # any error on a hostile file: the signature is not valid
                return Checked(statement, f"it does not fit the key: {str(e) or type(e).__name__}")
        return Checked(statement, "")


def usable(key: str, load: Callable[[], object]) -> None:
    """Load a key. Raises UsageError if it cannot be loaded."""
    try:
        load()
    except OSError as e:
        raise UsageError(f"the key {key!r} cannot be read: {e.strerror}", "name a file in PEM format") from e
    except (ValueError, TypeError, AttributeError) as e:
        hint = "make a pair: openssl ecparam -name prime256v1 -genkey -noout, and openssl ec -pubout"
        raise UsageError(f"{key!r} holds no usable key: {e}", hint) from e


class Given:
    """Known digests in place of ``model_signing.hashing.Config``, which would read the whole model."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def hash(self, model_path: object, *, files_to_hash: object = None) -> Manifest:  # noqa: ARG002
        """Return the known digests, whatever the path."""
        return self._manifest

    def add_ignored_paths(self, *, model_path: object, paths: object) -> None:
        """Do nothing: no files are listed, so none is ignored."""


def manifest_of(
    name: str, serialization: Mapping[str, object], resources: Iterable[tuple[object, object, object]]
) -> Manifest:
    """Return the names and digests as the package's own class. Raises ValueError and KeyError."""
    from model_signing._hashing.hashing import Digest
    from model_signing.manifest import Manifest, SerializationType

    kind = SerializationType.from_args(dict(serialization))
    rows = [kind.new_item(str(n), Digest(str(a), bytes.fromhex(str(d)))) for n, a, d in resources]
    return Manifest(name, rows, kind)
