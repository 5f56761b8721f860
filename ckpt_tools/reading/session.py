"""One question about one root: the results of its discovery, and every report made so far."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckpt_tools.cache import Cache
from ckpt_tools.discovery.exclude import Excluded, drop_copies, find_put_away, find_repaired
from ckpt_tools.discovery.found import BareFile, Discovery, stat_of
from ckpt_tools.discovery.seals import read_key, read_tracker
from ckpt_tools.discovery.walk import discover
from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.formats import Anatomy, format_of
from ckpt_tools.formats import Claim as FileClaim
from ckpt_tools.formats.pickles.stubs import lift_trusted
from ckpt_tools.formats.seals.document import find_base
from ckpt_tools.inspection.indexes import Indexes
from ckpt_tools.layouts import Changes, Claim, Layouts, Piece, as_int, layouts_of
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict, is_cut, worst
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.model.report import Box, Level, Report
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.reader import Reader
from ckpt_tools.settings import plugins
from ckpt_tools.storage.paths import names
from ckpt_tools.storage.stalls import run_aside
from ckpt_tools.storage.urls import is_url, normalize, to_absolute

if TYPE_CHECKING:
    from ckpt_tools.inspection.kept_checksum import Evidence
    from ckpt_tools.inspection.seals import Signatures

TRACKER_LIMIT = 1 << 20  # bytes: TensorFlow's tracker names every checkpoint that was kept
Told = tuple[str, int | str | Finding | None]
"""The path of a tracker, and its content: a Finding if it cannot be read, None if it is garbage."""
_NO_STATE = finding("not-needed", "it belongs to the checkpoint but holds no state")
Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes to read as far as known), from any thread. If it has methods
``file(path, files to read or None)`` and ``listing(directory)``, these are called with each path that is
opened or listed.
"""


class Session:
    """One question about a root, as ``opening.open_session`` makes it. With a ``cache`` files are not read
    again; for a ``listing`` only names are asked for.
    """

    def __init__(
        self,
        root: str,
        options: ReadOptions = ReadOptions(),  # noqa: B008 - a frozen value
        *,
        cache: Cache | None = None,
        listing: bool = False,
    ) -> None:
        if options.stores is not None:
            from ckpt_tools.storage.stores import mounts

            mounts.configure(options.stores)
        self.root = to_absolute(root)
        self.options = options = replace(options, require=names(options.require))
        self.layouts = layouts_of(options)
        # Taken before anything is listed: a younger file was written by somebody else meanwhile.
        self.started_ns = time.time_ns()
        key = read_key(options.key_file, options.trust) if options.key_file else None
        self.reader = Reader(options, key, cache, self._advance)
        self.signatures: Signatures | None = None
        if options.verify_key is not None:
            from ckpt_tools.inspection.seals import Signatures  # needs a package that few have

            self.signatures = Signatures(options.verify_key)
        self.found: Discovery = _discover(root, self.layouts, listing, options)
        self.evidence: Evidence | None = None  # what stores say of their objects
        if options.by_store and is_url(self.root):
            from ckpt_tools.inspection.kept_checksum import Evidence

            self.evidence = Evidence()
        bases = {seal.path: find_base(seal.path) for seal in self.found.seals}
        if options.seal_dir is not None:
            from ckpt_tools.reading.reader import find_mirrored  # only for trees that nobody may write to

            elsewhere = find_mirrored(options.seal_dir, self.root, self.found)
            self.found.seals += elsewhere
            bases |= {seal.path: base for seal, base in elsewhere.items()}
        same = (self.evidence.same,) if self.evidence is not None else ()
        self.indexes = Indexes(self.found.indexes, bases, *same)
        self.reports: dict[str, Report] = {}  # path -> the deepest report on it
        self.companions: list[Part] = []  # parts that each save writes over and that belong to none
        self.unread: dict[str, str] = {}  # trackers, and files to compare with others, that could not be read
        self._texts: dict[str, bytes | Finding] = {}  # path of a tracker -> its bytes, or why it has none
        self.unplaced: list[Unseen] = []  # unreadable files whose place only their content would tell
        # directory -> the pieces of tensors in its files
        self.places: dict[str, dict[str, Mapping[str, Box]]] = defaultdict(dict)
        self.bytes_done = self.bytes_total = 0
        self._expected: dict[str, int] = {}
        self.now_ns = time.time_ns()
        states, aside = self.found.states, drop_copies(self.found, self.root, self.layouts)
        self.aside = [*aside, *find_put_away(states, self.root)]  # copies made by hand, files in quarantine
        self._repaired = list(find_repaired(states))  # warnings about repairs without a witness
        self.parts: list[Part] = self.found.parts

    @property
    def notes(self) -> list[Finding]:
        """The findings that every answer names although they are no part of it."""
        return [*plugins.findings(), *self.aside, *self._repaired, *self.found.lone]

    def make_bare(self, part: Part) -> None:
        """Take a file out of the parts: it is none, or nobody can say which."""
        report = self.reports.pop(part.path, None)
        if report is not None and report.verdict is Verdict.UNKNOWN:
            self.unplaced += (Unseen(part.path, f.message) for f in report.findings if f.code in NOT_SEEN)
        self.found.bare.append(BareFile(part.path, part.size, part.mtime_ns, part.findings))
        self.found.strange[os.path.dirname(part.path)] = None  # its name alone does not tell

    def add_members(self) -> None:
        """Add files that only an index names as bare files; if ROOT is one file, only those it names."""
        known = {p.path for p in self.parts} | {file.path for file in self.found.bare}
        named = self.indexes.members(None if self.found.tree else known)
        sealed = self.indexes.seals.members() if self.found.tree else ()
        for path in chain(named, sealed):
            if path not in known:
                known.add(path)
                self.found.bare.append(stat_of(path))
                # it was counted as unrecognised by its name
                self.found.unrecognised = max(0, self.found.unrecognised - self.found.tree)

    def _advance(self, n: int) -> None:
        self.bytes_done += n
        if self.options.progress:
            self.options.progress(self.bytes_done, max(self.bytes_total, self.bytes_done))

    def expect(self, parts: Iterable[Part]) -> None:
        """Measure progress by the sizes of these files, which are read next."""
        self._expected = {p.path: max(0, p.size) for p in parts}
        self.bytes_total = self.bytes_done + sum(self._expected.values())

    def report(self, part: Part, level: Level) -> Report:
        """Return the part's report at ``level`` or deeper; at presence the report made from the listing."""
        have, piece = self.reports.get(part.path), self.layouts.piece_of(part)
        if have is None and (have := _from_listing(part, piece, level)) is not None:
            self.reports[have.path] = have
        if have is None or self.goes_deeper(have, level):
            new = self._read(part.path, level, part.findings, formats_allowed(part, piece))
            if new is None:  # the budget is spent
                return have or self.report(part, Level.STRUCTURE)
            if new.format is None and not new.findings and not piece.formats:
                new = replace(new, level=level, findings=(_NO_STATE,))
            have = self.reports[new.path] = new  # the report's path: a part makes a new string each time
        if have.unlisted and piece.unasked:
            have = self.reports[part.path] = lift_trusted(have, self.options.trust_global, unasked=True)
        if level > Level.STRUCTURE and self._expected.pop(part.path, None) is not None:
            # the file counts as read even if nothing was, as when an earlier run knew it
            self.bytes_total = self.bytes_done + sum(self._expected.values())
            self._advance(0)
        return have

    def known(self, part: Part) -> Report:
        """Return the part's report as far as it was read, or one on its structure if it was not read."""
        return self.reports.get(part.path) or self.report(part, Level.STRUCTURE)

    def goes_deeper(self, have: Report, level: Level) -> bool:
        """Return True if reading on could say more: answers from one file must fit together."""
        unread = have.verdict is Verdict.UNKNOWN and any(f.code == "unreadable" for f in have.findings)
        if have.level >= level or have.format is None or unread:
            return False
        reader, path = self.reader, have.path
        sampled = path in reader.partial and path not in reader.prefetched
        skipped = path in reader.unread and reader.spent
        return not (sampled or skipped or is_cut(have.findings, have.size))

    def report_file(self, path: str, level: Level, seen: Sequence[Finding] = ()) -> Report:
        """Return a report on one file, or one made from the directory listing if there is no file to read."""
        return self._read(path, level, seen) or self.inspect(path, Level.STRUCTURE, seen)[0]

    def _read(
        self, path: str, level: Level, seen: Sequence[Finding], expect: Sequence[str] = ()
    ) -> Report | None:
        """Return a report on a file in its context; None if the budget is spent."""
        if (shown := self.shown(path, level, seen)) is not None:
            return shown
        claims = self.indexes.claims(path)
        self.is_ready(path, level, expect, claims)
        found = self.reader.report(path, level, expect, claims, self.indexes.sources_digest(path))
        if found is None:
            return None
        report, places = found
        if places:
            self.places[os.path.dirname(path)][path] = places
        return self._in_context(report, seen)

    def is_ready(self, path: str, level: Level, expect: Sequence[str], claims: Sequence[FileClaim]) -> bool:
        """Return True if a report is prefetched, maybe just now from an index read for its members."""
        ready = self.reader.prefetched
        if level is Level.STRUCTURE and (read := self.indexes.read.pop(path, None)) is not None:
            by, seen = read
            plain = not (self.options.require or self.options.explain or self.reader.key)
            if plain and by == claims and seen.report.format in (expect or (seen.report.format,)):
                ready[path] = level, seen
        return path in ready and ready[path][0] is level

    def inspect(
        self, path: str, level: Level, seen: Sequence[Finding] = (), expect: Sequence[str] = ()
    ) -> tuple[Report, Anatomy]:
        if (shown := self.shown(path, level, seen)) is not None:
            return shown, Anatomy()
        report, anatomy = self.reader.read(path, level, expect, self.indexes.claims(path))
        if anatomy.places:
            self.places[os.path.dirname(path)][path] = anatomy.places
        return self._in_context(report, seen), anatomy

    def shown(self, path: str, level: Level, seen: Sequence[Finding]) -> Report | None:
        """Return a report made without opening the file, if that is enough; else None."""
        if any(f.code not in ("rank-mismatch", "step-mismatch", "unfinished-save") for f in seen):
            return report_unread(path, seen)
        self.indexes.claims(path)
        if (lone := self.indexes.find_undescribed(path)) is not None:
            _, size, mtime_ns, more = stat_of(path)
            if lone.code == "extra-file" and not size:
                text = "its index does not name this file, and it is empty: its writer had nothing to save"
                lone = finding(lone.code, text, severity=Severity.NOTE)
            reached, said = level if lone.severity is Severity.NOTE else Level.PRESENCE, (lone, *more)
            return Report(path, None, size, worst(said), reached, findings=said, mtime_ns=mtime_ns)
        return None

    def _in_context(self, report: Report, seen: Sequence[Finding]) -> Report:
        """Return the report with the findings of the listing, the indexes and the signatures on the file."""
        if report.unlisted:  # a format is imported only where one is asked
            unasked = report.format is not None and format_of(report.format).unasked
            report = lift_trusted(report, self.options.trust_global, unasked)
        more = [*seen, *self.indexes.findings.get(report.path, ())]
        if report.format not in (None, "seal"):
            if self.options.require_seal and not self.indexes.seals.claims(report.path):
                more.append(finding("not-sealed", "no valid seal names this file"))
            if self.signatures is not None:
                behind = self.indexes.indexes_of(report.path)
                if why := self.signatures.why_not(report, behind):
                    more.append(finding("signature-invalid", why))
        return with_findings(report, more) if more else report

    def keep(self, report: Report) -> None:
        """Keep a report that was made otherwise than by reading the file."""
        self.reports[report.path] = self._in_context(report, ())

    def members(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint with the files that its indexes name, without those of an earlier save."""
        indexes = [p for p in checkpoint.parts if p.path in self.indexes.known]
        if not indexes:
            return checkpoint
        mine = {p.path: p for p in checkpoint.parts}
        for index in indexes:
            for path in self.indexes.members({index.path}):
                if path not in mine:
                    mine[path] = index._replace(role="data", **stat_of(path)._asdict())
        extra = {p for p in mine if (f := self.indexes.find_undescribed(p)) and f.code == "extra-file"}
        return replace(checkpoint, parts=tuple(p for path, p in mine.items() if path not in extra))

    def runs(self, checkpoints: Iterable[Checkpoint]) -> dict[tuple[str, str], list[Checkpoint]]:
        """Return (layout, run) -> its checkpoints, in the order given."""
        out = defaultdict[tuple[str, str], list[Checkpoint]](list)
        for c in checkpoints:
            out[c.layout, c.run].append(c)
        return out

    def tracker(self, layout: str, base: str) -> Told | None:
        """Return the first tracker beside a run that its framework reads; None if there is none."""
        return next(self.trackers(layout, base), None)

    def trackers(self, layout: str, base: str) -> Iterator[Told]:
        """Yield the trackers beside a run, in the order in which its framework reads them."""
        one = self.layouts[layout].tracker
        if one.state_copy and (by_state := self.state_tracker(one.state_copy, base)) is not None:
            yield by_state
        if (by_text := self.text_tracker(layout, base)) is not None:
            yield by_text
        for path, read in one.others:
            above, name = os.path.split(normalize(os.path.join(base, path)))
            said = self._read_text(name, above, lambda data, read=read: read(data, base))  # type: ignore[misc]
            if said is not None and said[1] is not None:
                yield said

    @cached_property
    def bare_paths(self) -> frozenset[str]:
        """The paths of files of a known format outside any layout."""
        return frozenset(file.path for file in self.found.bare)

    def state_tracker(self, name: str, base: str) -> Told | None:
        """Return the tracker that is a copy of a state, with its step; None without one or with arrays."""
        path = os.path.join(base, name)
        if path not in self.bare_paths:
            return None
        report, anatomy = self.inspect(path, Level.STRUCTURE)
        if any(t.shape for t in anatomy.tensors):
            return None
        if hidden := next((f for f in report.findings if f.code in NOT_SEEN), None):
            self.unread[path] = hidden.message
            return path, hidden
        return path, None if report.verdict is Verdict.BROKEN else as_int(report.metadata.get("step"))

    def text_tracker(self, layout: str, base: str) -> Told | None:
        """Return the tracker that is a text, which alone is ever written anew; a Finding if unreadable."""
        one = self.layouts[layout].tracker
        return self._read_text(one.file, base, one.read) if one.read else None

    def _read_text(self, name: str, directory: str, read: Callable[[bytes], int | str | None]) -> Told | None:
        path = self.found.trackers.get((name, directory))
        if path is None:
            return None
        data = self._texts.get(path)
        if data is None:  # read once: several layouts have a tracker of this name, and use the same text
            data = self._texts[path] = read_tracker(path, TRACKER_LIMIT)
        if not isinstance(data, Finding):
            return path, read(data)
        if data.code == "unreadable":
            self.unread[path] = data.message
        return path, data

    def unfinished(self, checkpoint: Checkpoint, siblings: Sequence[Checkpoint]) -> bool:
        """Return True if a torn newest checkpoint may still be written."""
        tracker = self.layouts.of(siblings[0]).tracker
        found = self.tracker(siblings[0].layout, siblings[0].parts[0].base)
        says = None if found is None or isinstance(found[1], Finding) else found[1]
        tracked = max((c.order for c in siblings if tracker.names(c, says)), default=None)
        young = self.now_ns - checkpoint.mtime_ns < self.options.settle * 1e9
        young = young and checkpoint is max(siblings, key=lambda c: c.mtime_ns)
        if tracked is not None and checkpoint.order <= tracked:
            # The framework has declared it finished, however young it is.
            return young and tracker.early
        past = isinstance(says, int) and (checkpoint.step or 0) > says
        is_highest = checkpoint is max(siblings, key=lambda c: c.order)
        return young or (is_highest and (tracked is not None or past))


def formats_allowed(part: Part, piece: Piece) -> Sequence[str]:
    """Return the formats that a part's place in its layout allows; () if its name does not tell the place."""
    return () if piece.claim is Claim.WEAK or part.role != piece.role else piece.formats


def _from_listing(part: Part, piece: Piece, level: Level) -> Report | None:
    """Return the report on a part that is not opened (an empty mark, or any part at presence); else None."""
    is_mark, is_empty = piece.changes is Changes.MARK, part.size == 0 and not part.findings
    found = part.findings
    if is_empty:
        found = (_NO_STATE if is_mark else finding("empty-file", "the file has no bytes", offset=0),)
    if level is not Level.PRESENCE and not (is_empty and is_mark):
        return None
    return report_unread(part.path, found, level, part.size, part.mtime_ns)


def report_unread(
    path: str, found: Sequence[Finding], level: Level = Level.PRESENCE, size: int = 0, mtime_ns: int = 0
) -> Report:
    """Return a report on a file that was not opened."""
    verdict = Verdict.UNKNOWN if any(f.code == "unreadable" for f in found) else worst(tuple(found))
    return Report(path, None, size, verdict, level, findings=tuple(found), mtime_ns=mtime_ns)


def _discover(root: str, layouts: Layouts, listing: bool, options: ReadOptions) -> Discovery:
    """Return everything below the root; a store is asked for a new list. Raise CannotLook."""
    excluded, hear = Excluded(options.exclude), getattr(options.progress, "listing", None)
    try:
        if is_url(url := to_absolute(root)):
            from ckpt_tools.storage.stores.mounts import refresh

            run_aside(refresh, url)
        return run_aside(discover, root, layouts, listing=listing, excluded=excluded, hear=hear)
    except OSError as e:
        raise CannotLook(f"cannot look at {e.filename or url}: {e.strerror or e}") from e


def with_findings(report: Report, more: Sequence[Finding]) -> Report:
    """Return the report with further findings and their verdict, UNKNOWN if the file could not be read."""
    both = (*report.findings, *more)
    blind = report.verdict is Verdict.UNKNOWN or any(f.code == "unreadable" for f in more)
    return replace(report, findings=both, verdict=Verdict.UNKNOWN if blind else worst(both))
