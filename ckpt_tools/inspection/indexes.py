"""Read index files (``.metadata``, ``ckpt-8.index`` …) for their claims on the files beside them."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ckpt_tools import formats
from ckpt_tools.cache import Seen
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.formats import Anatomy, Claim, format_of
from ckpt_tools.formats.seals.document import is_seal
from ckpt_tools.inspection.recognise import allow_by_name, gives_format
from ckpt_tools.inspection.seals import Same, Seals
from ckpt_tools.model import ranges
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.storage.listing import list_names
from ckpt_tools.storage.retry import exists
from ckpt_tools.storage.stalls import retry_call
from ckpt_tools.storage.urls import is_url, join_inside

_ABOVE = 5
"""How many directories above a file an index that names it may lie (OCDBT: two, a snapshot: four)."""
_LISTED = 16  # missing files with a finding of their own, at most
_CHUNK = re.compile(r"[0-9]+(\.[0-9]+)*")
"""Names of the chunks of an array, which lie beside its ``.zarray``."""
_FOLLOWED = 100_000
"""Claims with ``follow`` (the nodes of an OCDBT tree) that are read for one index, at most."""


def is_index(name: str) -> bool:
    """Return True if a file of this name may describe the files beside it."""
    return formats.names.may_be_index(name) and any(
        f.index and not f.index_of(name) for f in allow_by_name(name)
    )


_Source = tuple[str, str]
"""The path of a file that was read, and its identity as text; "" if it has just been changed."""


class _Part(NamedTuple):
    """A file to read for an index: the index, or a file that it leads to by way of the files ``above``."""

    path: str
    claims: tuple[Claim, ...] = ()
    above: tuple[_Source, ...] = ()


class Indexes:
    """The indexes of a tree. Each is read once, when a file near it is asked about; ``paths`` are existing
    files that may be indexes.

    ``known`` are the indexes among ``paths``; ``findings`` maps each index that was read to findings on its
    members, such as a path outside its directory, or a missing file.
    ``read`` keeps the claims on each index, and the report, so nobody reads it again.
    ``unseen`` maps an index or member that could not be read to the reason; ``left_out`` maps an index to its
    optional members that are missing.
    """

    def __init__(
        self,
        paths: Iterable[str],
        seals: Mapping[str, str] = MappingProxyType({}),
        same: Same = lambda *_: False,
    ) -> None:
        self.unseen: dict[str, str] = {}
        self.seals = Seals(seals, self.unseen, same)
        self._unread: dict[str, list[str]] = defaultdict(list)  # directory -> indexes
        for path in paths:
            if placed := formats.names.placed(path):
                self._unread[placed.base].append(path)
            elif is_index(os.path.basename(path)):
                self._unread[os.path.dirname(path)].append(path)
        self.known = {path for paths in self._unread.values() for path in paths}
        self._member_paths: dict[str, list[str]] = defaultdict(list)
        self._claims: dict[str, dict[Claim, None]] = defaultdict(dict)  # in order, each once
        self._sources: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._broken: set[str] = set()
        self.findings: dict[str, list[Finding]] = {}
        self.left_out: dict[str, list[str]] = {}
        self.read: dict[str, tuple[tuple[Claim, ...], Seen]] = {}

    def claims(self, path: str) -> tuple[Claim, ...]:
        """Return the claims on a file by the indexes and seals in its directory and above."""
        return (*self.described(path), *self.seals.claims(path))

    def described(self, path: str) -> tuple[Claim, ...]:
        """Return the claims on a file by indexes alone. Reads those in its directory and above."""
        if self._unread:
            directory = os.path.dirname(path)
            for _ in range(_ABOVE):
                for index in self._unread.pop(directory, ()):
                    self._read(index)
                directory = os.path.dirname(directory)
        return (*self._claims.get(path, ()), *claims_by_path(path))

    def sources_digest(self, path: str) -> str | None:
        """Return a digest of the indexes and seals behind ``claims``: "" if none, None if one changes."""
        sources = {*self._sources.get(path, ()), *self.seals.behind(path)}
        if not sources:
            return ""
        if any(not identity for _, identity in sources):
            return None
        import hashlib  # only where there are indexes: it costs start-up time

        return hashlib.sha256(repr(sorted(sources)).encode()).hexdigest()

    def indexes_of(self, path: str) -> set[str]:
        """Return the paths of the indexes with claims on a file."""
        self.claims(path)
        return {index for index, _ in self._sources.get(path, ())}

    def members(self, of: Container[str] | None = None) -> Iterator[str]:
        """Yield every existing file that an index (if given, one of ``of``) names. Reads all indexes."""
        for directory in list(self._unread):
            self.claims(os.path.join(directory, ""))
        for index, named in self._member_paths.items():
            if of is None or index in of:
                yield from named

    def find_undescribed(self, path: str) -> Finding | None:
        """Return a finding if a file needs an index and none describes it. Call after ``claims``."""
        needed = self._list_needed(path)
        if not needed or any(map(gives_format, self._claims.get(path, ()))):
            return None
        directory = os.path.dirname(path)
        if self.hidden(path):
            why_hidden = f"{needed[0]} is damaged, so nothing says what belongs in this file"
            return finding("unreadable", why_hidden, hint="restore the index first")
        if any(os.path.join(directory, w) in self.known for w in needed):
            why = f"{needed[0]} does not name this file: it is left over from another save"
            return finding("extra-file", why)
        why = f"there is no {needed[0]} beside it: the save never finished, or its index was lost"
        return finding("unfinished-save", f"{why} or lies on another node's disk")

    def hidden(self, path: str) -> bool:
        """Return True if a file cannot be judged because the index that it needs is damaged."""
        directory = os.path.dirname(path)
        return any(os.path.join(directory, name) in self._broken for name in self._list_needed(path))

    def _list_needed(self, path: str) -> tuple[str, ...]:
        """Return the names of indexes of which a file needs one, to be understood; () if it needs none."""
        name = os.path.basename(path)
        if not formats.names.may_be_index(name):
            return ()
        return next((names for f in allow_by_name(name) if (names := f.index_of(name))), ())

    def _read(self, index: str) -> None:
        """Read an index and the files it leads to; keep claims on its members, and findings."""
        placed = formats.names.placed(index)
        base = placed.base if placed else os.path.dirname(index)
        found, missing, elsewhere = list[Finding](), dict[str, None](), dict[str, str]()
        left_out = list[str]()
        followed = set[tuple[str, Claim]]()
        waiting = [_Part(index, claims_by_path(index))]
        while waiting:
            part = waiting.pop()
            anatomy, sources = self._inspect(index, part)
            for name, claim in anatomy.members.items():
                path = self._place(base, name, claim, found)
                if path is None:
                    continue
                if self._there(path, found):
                    self._claims[path][claim] = None
                    self._sources[path].update(sources)  # the files that the claim was read from
                    self._member_paths[index].append(path)
                    if claim.follow and (path, claim) not in followed and len(followed) < _FOLLOWED:
                        followed.add((path, claim))
                        # only this claim: the paths in it are relative to the index
                        waiting.append(_Part(path, (claim._replace(whole=True),), sources))
                elif claim.fetch:
                    elsewhere[name] = claim.fetch
                elif claim.optional:
                    left_out.append(path)
                elif claim.spared:  # without which a job resumes all the same
                    why = f"{name[:200]!r}, which was saved with this file, is not there: {claim.spared}"
                    found.append(finding("missing-part", why, severity=Severity.WARNING))
                else:
                    missing[name] = None
        if left_out:
            self.left_out[index] = left_out
            if not missing:
                found += self._say_none_there(index, left_out)
        self.findings[index] = [*found, *_say_missing(list(missing)), *_say_unfetched(elsewhere)]

    def _say_none_there(self, index: str, left_out: Sequence[str]) -> Iterator[Finding]:
        """Yield findings on an index if no member is there: people think that it protects files here."""
        if self._member_paths.get(index) or formats.names.placed(index) is not None:
            return
        if formats.names.is_manifest(os.path.basename(index)):
            why = f"none of the {len(left_out):,} files that it lists is there: no file is compared with it"
            hint = "put it where it was written, or seal the checkpoint: 'ckpt seal CHECKPOINT'"
            yield finding("not-checksummed", why, severity=Severity.WARNING, hint=hint)
        home = os.path.dirname(index)
        chunk = next((name for name in self._list(home) if _CHUNK.fullmatch(name)), None)
        if chunk is not None:
            why = f"none of its chunks is there, but {chunk}, which has no place in it: it is of another"
            yield finding("missing-part", why)

    def _list(self, home: str) -> list[str]:
        """Return the names in a directory; [] if it cannot be read, which is noted in ``unseen``."""
        try:
            return sorted(list_names(home))
        except OSError as e:
            self.unseen[home] = e.strerror or str(e)
            return []

    def _inspect(self, index: str, part: _Part) -> tuple[Anatomy, tuple[_Source, ...]]:
        """Return the anatomy of one file of an index, and the files that its claims rest on."""
        from ckpt_tools.inspection.check import inspect  # few trees have an index

        opened = time.time_ns()
        report, anatomy = inspect(part.path, Level.STRUCTURE, claims=part.claims)
        identity = anatomy.identity if anatomy.identity and anatomy.identity.settled(opened) else ()
        if not part.above:
            self.read[part.path] = part.claims, Seen(report, anatomy.places, anatomy.identity)
        if report.verdict is Verdict.UNKNOWN:
            why = next((f.message for f in report.findings if f.code in NOT_SEEN), "")
            if why:
                self.unseen[part.path] = why
        if report.verdict is not Verdict.OK and not anatomy.members:
            self._broken.add(index)
        return anatomy, (*part.above, (part.path, " ".join(map(str, identity))))

    def _place(self, base: str, name: str, claim: Claim, found: list[Finding]) -> str | None:
        """Return the path of a member of an index; None, and add to ``found``, if it is not clear."""
        path = join_inside(base, name)
        if path is None:
            why = f"it names {name[:200]!r}, which lies outside its directory"
            found.append(finding("path-escape", why))
        elif claim.stem and not self._there(path, found):
            home, stem = os.path.split(path)
            matches = [n for n in self._list(home) if os.path.splitext(n)[0] == stem]
            candidates = [n for n in matches if not formats.names.is_manifest(n)]
            if len(candidates) > 1:
                why = f"it has the digest of {name[:200]!r}, and nothing says of which of"
                why = f"{why} {ranges.names(n[:200] for n in candidates)}: it was not compared"
                hint = "give it the name of the file"
                found.append(finding("not-checksummed", why, severity=Severity.WARNING, hint=hint))
                return None
            return f"{home}/{candidates[0]}" if candidates else path
        return path

    def _there(self, path: str, found: list[Finding]) -> bool:
        """Return True if a member exists. If nobody can look, True, and add to ``found`` and ``unseen``."""
        try:
            return exists(path)
        except OSError as e:
            self.unseen[path] = e.strerror or str(e)
            found.append(finding("unreadable", f"{path}, which this file describes: {e.strerror}"))
            return True


def _say_missing(missing: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each missing member, and one for all beyond _LISTED."""
    for name in missing[:_LISTED]:
        yield finding("missing-part", f"{name[:200]!r}, which this file describes, is not there")
    if more := missing[_LISTED:]:
        listed = ranges.names(name[:200] for name in more)
        why = f"{len(more):,} more files that this one describes are not there: {listed}"
        yield finding("missing-part", why)


def _say_unfetched(commands: Mapping[str, str]) -> Iterator[Finding]:
    """Yield one finding on members that are kept elsewhere; ``commands`` maps each to its command."""
    if commands:
        name, command = next(iter(commands.items()))
        more = f" and {len(commands) - 1:,} more" if len(commands) > 1 else ""
        why = f"{name[:200]!r}{more} is not there: this file only stands for it"
        yield finding("pointer-not-data", why, severity=Severity.WARNING, hint=command)


def claims_by_path(path: str) -> tuple[Claim, ...]:
    """Return the claim that a path alone makes, of a seal, an index known by its place, or a blob in Hugging
    Face's cache. Nearly all other paths make none, as does a link that cannot be read.
    """
    if is_seal(path):  # also with damaged first bytes
        return (Claim("seal", format_of("seal").checks[Level.STRUCTURE], whole=True),)
    if placed := formats.names.placed(path):
        return (Claim(placed.format, format_of(placed.format).checks[Level.STRUCTURE], whole=True),)
    if not formats.names.addressed(path):
        return ()
    from ckpt_tools.formats.manifests.hf_cache import list_claims  # needed in that cache alone

    try:
        target = path if is_url(path) else retry_call(os.readlink, path)
    except OSError:
        target = path
    return list_claims(path, target)
