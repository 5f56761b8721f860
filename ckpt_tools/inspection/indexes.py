"""What index files (``.metadata``, ``ckpt-8.index`` …) say about the files beside them."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools import formats
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.formats import Anatomy, Claim, format_of
from ckpt_tools.formats.seals.document import is_seal
from ckpt_tools.inspection.recognise import allowed_by_name, by_layout
from ckpt_tools.model import ranges
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.report import Box, Level, Report
from ckpt_tools.storage import Identity
from ckpt_tools.storage.attempts import patiently
from ckpt_tools.storage.listing import names_of
from ckpt_tools.storage.retry import there
from ckpt_tools.storage.urls import inside, is_url

if TYPE_CHECKING:
    from ckpt_tools.inspection.seals import Same, Seals

_ABOVE = 5
"""How many directories above a file an index that names it may lie (OCDBT: two, a snapshot: four)."""
_LISTED = 16
_CHUNK = re.compile(r"[0-9]+(\.[0-9]+)*")
"""What chunks of an array beside its ``.zarray`` are called."""
_FOLLOWED = 100_000
"""Parts of other files that an index leads to, at most: the nodes of an OCDBT tree."""


def is_index(name: str) -> bool:
    """Whether a file of this name may describe the files beside it."""
    return formats.names.may_be_index(name) and any(
        f.index and not f.index_of(name) for f in allowed_by_name(name)
    )


_Seen = tuple[str, str]
"""A file that was read, and its identity; "" when it has just been changed."""


class _Part(NamedTuple):
    """A file to read for an index: itself, or one that it leads to, ``above`` those on the way."""

    path: str
    claims: tuple[Claim, ...] = ()
    above: tuple[_Seen, ...] = ()


class Indexes:
    """Reads each index once, when a file near it is asked about. ``paths`` are the index files that are known
    to exist.

    ``known`` are the indexes among them, ``findings`` maps an index to what its members show: paths that
    leave its directory, files that are not there.
    ``read`` has what the structure of each index told, and by which claims: nobody reads it once more.
    ``unseen`` maps an index or member that could not be looked at to the reason, ``left_out`` an index to the
    members that need not be there and are not.
    """

    def __init__(
        self,
        paths: Iterable[str],
        seals: Mapping[str, str] = MappingProxyType({}),
        same: Same = lambda *_: False,
    ) -> None:
        self.unseen: dict[str, str] = {}
        self.seals: Seals | None = None
        self._same = same
        if seals:
            self._make_seals(seals)
        self._waiting: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            if placed := formats.names.placed(path):
                self._waiting[placed.base].append(path)
            elif is_index(os.path.basename(path)):
                self._waiting[os.path.dirname(path)].append(path)
        self.known = {path for paths in self._waiting.values() for path in paths}
        self._named: dict[str, list[str]] = defaultdict(list)
        self._claims: dict[str, list[Claim]] = defaultdict(list)
        self._bases: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._said: set[tuple[str, Claim]] = set()
        self._broken: set[str] = set()
        self.findings: dict[str, list[Finding]] = {}
        self.left_out: dict[str, list[str]] = {}
        self.read: dict[str, tuple[tuple[Claim, ...], Report, Mapping[str, Box], Identity | None]] = {}
        self.bytes_read = 0

    def _make_seals(self, seals: Mapping[str, str]) -> Seals:
        from ckpt_tools.inspection.seals import Seals  # most trees have none

        self.seals = made = Seals(seals, self.unseen, self._same)
        return made

    def add_seal(self, path: str, base: str) -> None:
        """A seal that was written since the others were listed, of the directory ``base``."""
        (self.seals or self._make_seals({})).add(path, base)

    def claims(self, path: str) -> tuple[Claim, ...]:
        """What the indexes and seals in the directory of ``path`` and above it say about it."""
        sealed = self.seals.claims(path) if self.seals else ()
        return (*self.described(path), *sealed)

    def described(self, path: str) -> tuple[Claim, ...]:
        """What the indexes alone say about it."""
        if self._waiting:
            directory = os.path.dirname(path)
            for _ in range(_ABOVE):
                for index in self._waiting.pop(directory, ()):
                    self._read(index)
                directory = os.path.dirname(directory)
        return (*self._claims.get(path, ()), *claims_by_path(path))

    def sealed(self, path: str) -> bool:
        """Whether a seal says what the file must be."""
        return self.seals is not None and bool(self.seals.claims(path))

    def based(self, path: str) -> str | None:
        """Return a digest of what is behind the ``claims``: "" of none, None if it just changed."""
        behind = {*self._bases.get(path, ()), *(self.seals.behind(path) if self.seals else ())}
        if not behind:
            return ""
        if any(not identity for _, identity in behind):
            return None
        import hashlib  # only where there are indexes: it costs start-up time

        return hashlib.sha256(repr(sorted(behind)).encode()).hexdigest()

    def behind(self, path: str) -> set[str]:
        """The indexes that say something about it."""
        self.claims(path)
        return {index for index, _ in self._bases.get(path, ())}

    def members(self, of: Container[str] | None = None) -> Iterator[str]:
        """Yield every existing file that an index, or one of ``of``, names; reads all indexes."""
        for directory in list(self._waiting):
            self.claims(os.path.join(directory, ""))
        for index, named in self._named.items():
            if of is None or index in of:
                yield from named

    def lone(self, path: str) -> Finding | None:
        """Return why nothing explains a file that only its index can. Call after ``claims``."""
        wanted = self._wanted(path)
        if not wanted or any(map(by_layout, self._claims.get(path, ()))):
            return None
        directory = os.path.dirname(path)
        if self.hidden(path):
            said = f"{wanted[0]} is damaged, so nothing says what belongs in this file"
            return finding("unreadable", said, hint="restore the index first")
        if any(os.path.join(directory, w) in self.known for w in wanted):
            return finding(
                "extra-file", f"{wanted[0]} does not name this file: it is left over from another save"
            )
        return finding(
            "unfinished-save",
            f"there is no {wanted[0]} beside it: the save never finished, or its index was lost"
            " or lies on another node's disk",
        )

    def hidden(self, path: str) -> bool:
        """Whether nothing can be said of a file because its index is damaged."""
        directory = os.path.dirname(path)
        return any(os.path.join(directory, name) in self._broken for name in self._wanted(path))

    def _wanted(self, path: str) -> tuple[str, ...]:
        """The names of the indexes of which a file needs one."""
        name = os.path.basename(path)
        if not formats.names.may_be_index(name):
            return ()
        return next((names for f in allowed_by_name(name) if (names := f.index_of(name))), ())

    def _read(self, index: str) -> None:
        placed = formats.names.placed(index)
        base = placed.base if placed else os.path.dirname(index)
        found, missing, elsewhere = list[Finding](), dict[str, None](), dict[str, str]()
        left_out = list[str]()
        followed = set[tuple[str, Claim]]()
        waiting = [_Part(index, claims_by_path(index))]
        while waiting:
            part = waiting.pop()
            anatomy, behind = self._inspect(index, part)
            for name, claim in anatomy.members.items():
                path = self._place(base, name, claim, found)
                if path is None:
                    continue
                if self._there(path, found):
                    self._keep(index, path, claim, behind)
                    if claim.follow and (path, claim) not in followed and len(followed) < _FOLLOWED:
                        followed.add((path, claim))
                        # the claim alone: what it names starts at the index
                        waiting.append(_Part(path, (claim._replace(whole=True),), behind))
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
            if not missing and self.names_no_file(index):
                found += self._say_none_there(index, left_out)
        self.findings[index] = [*found, *_say_missing(list(missing)), *_say_unfetched(elsewhere)]

    def _say_none_there(self, index: str, left_out: Sequence[str]) -> Iterator[Finding]:
        """Say that what is listed is not here: who sees a list takes what is for protected."""
        if formats.names.is_manifest(os.path.basename(index)):
            why = f"none of the {len(left_out):,} files that it lists is there: no file is compared with it"
            hint = "put it where it was written, or seal the checkpoint: 'ckpt seal CHECKPOINT'"
            yield finding("not-checksummed", why, severity=Severity.WARNING, hint=hint)
        home = os.path.dirname(index)
        beside = next((name for name in self._list(home) if _CHUNK.fullmatch(name)), None)
        if beside is not None:
            why = f"none of its chunks is there, but {beside}, which has no place in it: it is of another"
            yield finding("missing-part", why)

    def _list(self, home: str) -> list[str]:
        try:
            return sorted(names_of(home))
        except OSError as e:
            self.unseen[home] = e.strerror or str(e)
            return []

    def names_no_file(self, index: str) -> bool:
        """Whether none of the files that it describes is there."""
        return not self._named.get(index) and formats.names.placed(index) is None

    def _inspect(self, index: str, part: _Part) -> tuple[Anatomy, tuple[_Seen, ...]]:
        """Read one file of an index: what it holds, and the files that its claims rest on."""
        from ckpt_tools.inspection.check import inspect  # few trees have an index

        opened = time.time_ns()
        report, anatomy = inspect(part.path, Level.STRUCTURE, claims=part.claims)
        known = anatomy.identity if anatomy.identity and anatomy.identity.settled(opened) else ()
        self.bytes_read += report.bytes_read
        if not part.above:
            self.read[part.path] = part.claims, report, anatomy.places, anatomy.identity
        if report.verdict is Verdict.UNKNOWN:
            why = next((f.message for f in report.findings if f.code in NOT_SEEN), "")
            if why:
                self.unseen[part.path] = why
        if report.verdict is not Verdict.OK and not anatomy.members:
            self._broken.add(index)
        return anatomy, (*part.above, (part.path, " ".join(map(str, known))))

    def _keep(self, index: str, path: str, claim: Claim, behind: tuple[_Seen, ...]) -> None:
        """Note what an index says about a file, the same claim once."""
        if (path, claim) not in self._said:
            self._said.add((path, claim))
            self._claims[path].append(claim)
        self._bases[path].update(behind)
        self._named[index].append(path)

    def _place(self, base: str, name: str, claim: Claim, found: list[Finding]) -> str | None:
        """Where the file lies that an index names; None where nobody knows, which is said."""
        path = inside(base, name)
        if path is None:
            why = f"it names {name[:200]!r}, which lies outside its directory"
            found.append(finding("path-escape", why))
        elif claim.stem and not self._there(path, found):
            home, stem = os.path.split(path)
            named = [n for n in self._list(home) if os.path.splitext(n)[0] == stem]
            beside = [n for n in named if not formats.names.is_manifest(n)]  # those with a suffix
            if len(beside) > 1:
                why = f"it has the digest of {name[:200]!r}, and nothing says of which of"
                why = f"{why} {ranges.names(n[:200] for n in beside)}: it was not compared"
                hint = "give it the name of the file"
                found.append(finding("not-checksummed", why, severity=Severity.WARNING, hint=hint))
                return None
            return f"{home}/{beside[0]}" if beside else path
        return path

    def _there(self, path: str, found: list[Finding]) -> bool:
        """Return True if a member is there, or cannot be looked at: then its index is unreadable."""
        try:
            return there(path)
        except OSError as e:
            self.unseen[path] = e.strerror or str(e)
            found.append(finding("unreadable", f"{path}, which this file describes: {e.strerror}"))
            return True


def _say_missing(missing: Sequence[str]) -> Iterator[Finding]:
    for name in missing[:_LISTED]:
        yield finding("missing-part", f"{name[:200]!r}, which this file describes, is not there")
    if more := missing[_LISTED:]:
        listed = ranges.names(name[:200] for name in more)
        why = f"{len(more):,} more files that this one describes are not there: {listed}"
        yield finding("missing-part", why)


def _say_unfetched(commands: Mapping[str, str]) -> Iterator[Finding]:
    if commands:
        name, command = next(iter(commands.items()))
        more = f" and {len(commands) - 1:,} more" if len(commands) > 1 else ""
        why = f"{name[:200]!r}{more} is not there: this file only stands for it"
        yield finding("pointer-not-data", why, severity=Severity.WARNING, hint=command)


def claims_by_path(path: str) -> tuple[Claim, ...]:
    """One claim, or none for nearly every path. A link that cannot be read says nothing."""
    if is_seal(path):  # whatever its first bytes are by now
        return (Claim("seal", format_of("seal").checks[Level.STRUCTURE], whole=True),)
    if placed := formats.names.placed(path):
        return (Claim(placed.format, format_of(placed.format).checks[Level.STRUCTURE], whole=True),)
    if not formats.names.addressed(path):
        return ()
    from ckpt_tools.formats.manifests.hf_cache import claims_on  # only in such a cache

    try:
        target = path if is_url(path) else patiently(os.readlink, path)
    except OSError:
        target = path
    return claims_on(path, target)
