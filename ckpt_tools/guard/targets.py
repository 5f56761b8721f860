"""What is sealed, put away or pruned together: a checkpoint with its own directory as a whole, other files
one by one. Also what verifying a checkpoint shows.
"""

from __future__ import annotations

import os
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from shlex import quote
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools import formats
from ckpt_tools.discovery import group as grouping
from ckpt_tools.discovery.completeness import name_kind
from ckpt_tools.discovery.seals import walk_up
from ckpt_tools.errors import CannotLook, NoCheckpoint, UsageError
from ckpt_tools.formats.seals.document import NAME, is_apart, name_seal, name_signature
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Severity, Verdict, blind, worst
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.seal import SealedCheckpoint
from ckpt_tools.planning.engine import check_together
from ckpt_tools.reading.scheduler import prefetch
from ckpt_tools.reading.session import Session
from ckpt_tools.reading.unseen import list_unlisted
from ckpt_tools.storage.retry import ABSENT, exists, status
from ckpt_tools.storage.urls import is_url


class Target(NamedTuple):
    """What gets one seal: the directory or file at ``path``. Names in ``seal`` are relative to ``base``;
    ``files`` are absolute. It is missed while a file ``beside`` it is there.
    """

    path: str
    base: str
    seal: str
    files: tuple[str, ...]
    beside: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None


def find_targets(s: Session) -> Iterator[Target]:
    """Yield all that can have a seal: the checkpoints of each run, newest first, then other files."""
    runs = s.runs(grouping.group(s.parts, s.layouts)).values()
    uses = Counter(home for run in runs for c in run for home in {part.home for part in c.parts})
    all_homes, taken = sorted(uses), set[str]()
    for run in runs:
        for c in sorted(run, key=lambda c: (c.order, c.path), reverse=True):
            home, *others = {part.home for part in c.parts}  # "" for files in a shared one
            if home and not others and uses[home] == 1 and s.found.tree:  # it has the directory to itself
                first, end = bisect(all_homes, f"{home}/"), bisect(all_homes, f"{home}0")  # "0" follows "/"
                files = {*files_of(home, all_homes[first:end]), *(p.path for p in s.members(c).parts)}
                found = [Target(home, home, f"{home}/{NAME}", tuple(sorted(files)))]
            else:
                found = list(_make_file_targets(s, c))
            for target in found:
                taken.update(target.files)
                yield target._replace(checkpoint=c)
    yield from _find_loose(s, taken)


def _find_loose(s: Session, taken: set[str]) -> Iterator[Target]:
    """Yield a target for each file that belongs to no checkpoint, and is not in ``taken``."""
    graphs = dict.fromkeys(path for path in s.found.unneeded if path not in taken)
    for bare in s.found.bare:
        is_taken = bare.path in taken or bare.path in graphs
        if not is_taken and bare.size >= 0 and not is_apart(os.path.basename(bare.path)):
            yield _make_target(bare.path)
    parts = {part.path for part in s.parts}
    for path in graphs:  # a graph has no state; it is missed while the files of its run are there
        home, name = os.path.split(path)
        owners = (name.removesuffix(end) + own for end, own in s.layouts.unneeded if name.endswith(end))
        present = tuple(owner for owner in owners if f"{home}/{owner}" in parts)
        yield _make_target(path)._replace(beside=present)


def _make_file_targets(s: Session, c: Checkpoint) -> Iterator[Target]:
    """Yield a target for each file of a checkpoint. A file that another one can replace is not missed when it
    is gone: frameworks remove one of two copies.
    """
    parts = s.members(c).parts
    contents = [(p.role, p.rank, p.coords, p.role == "data" and p.path) for p in parts]
    copies = Counter(contents)
    for part, content in zip(parts, contents, strict=True):
        others = [other.path for other in parts if other is not part and copies[content] == 1]
        names = (os.path.relpath(other, os.path.dirname(part.path)) for other in others)
        present = tuple(name for name in names if not name.startswith("../"))
        yield _make_target(part.path)._replace(beside=present)


def _make_target(path: str) -> Target:
    """Return the target of a file by itself, whose seal lies beside it."""
    base, name = os.path.split(path)
    return Target(path, base, f"{base}/{name_seal(name)}", (path,))


def files_of(home: str, others: Sequence[str] = ()) -> Iterator[str]:
    """Yield the files of a checkpoint's directory, at any depth. If checkpoints lie below it (``others``), it
    is a run's directory as well: then only files with known names are the checkpoint's.
    """
    for directory, entries in walk_up(home):
        if isinstance(entries, ABSENT):
            continue  # removed meanwhile: its listed files are missed when they are read
        if isinstance(entries, OSError):
            raise CannotLook(f"cannot list {directory}: {entries.strerror}")
        if not any(f"{directory}/".startswith(f"{other}/") for other in others):
            known = formats.names.known
            yield from (path for path in entries.files if not others or known(os.path.basename(path)))


def describe(c: Checkpoint, root: str) -> SealedCheckpoint:
    """Return the part of a seal that says which checkpoint it is of."""
    ranks = [p.rank for p in c.parts if p.rank is not None]
    sizes: dict[str, int] = {}
    for p in c.parts:
        for name, index in p.coords:
            sizes[name] = max(sizes.get(name, 0), index + 1)
    return SealedCheckpoint(
        layout=c.layout,
        run=os.path.relpath(c.run, root) if os.path.isabs(c.run) or is_url(c.run) else c.run,
        kind=c.kind.value,
        step=c.step,
        epoch=c.epoch,
        step_in_epoch=c.step_in_epoch,
        world_size=max(ranks) + 1 if ranks else None,
        parallel=sizes,
    )


def find_size(path: str) -> int:
    """Return the bytes of a file; 0 if it cannot be looked at."""
    try:
        return status(path).st_size
    except OSError:
        return 0


class Group(Struct, frozen=True):
    """What goes together into quarantine or is pruned: a checkpoint's directory, or its files (``paths``)."""

    paths: tuple[str, ...]
    files: tuple[str, ...]
    checkpoint: Checkpoint | None

    @property
    def label(self) -> str:
        return self.checkpoint.label if self.checkpoint else ""

    @property
    def path(self) -> str:
        return self.paths[0] if len(self.paths) == 1 or not self.checkpoint else self.checkpoint.path

    @property
    def name(self) -> str:
        return self.label or os.path.basename(self.path)

    @property
    def size(self) -> int:
        """Bytes of all files that can be looked at."""
        return sum(map(find_size, self.files))

    def holds(self, path: str) -> bool:
        """Return whether a path is a file of the group, or lies at or below one of its paths."""
        return path in self.files or any(f"{path}/".startswith(f"{own}/") for own in self.paths)

    def is_below(self, path: str) -> bool:
        """Return whether all paths of the group lie below a directory."""
        return all(own.startswith(f"{path.rstrip('/')}/") for own in self.paths)

    def is_meant_by(self, path: str) -> bool:
        """Return whether a path means the group: its own, one above it, or a prefix such as TensorFlow's."""
        if self.checkpoint and self.checkpoint.path == path and not os.path.isdir(path):
            return True
        return path in self.paths or self.is_below(path)


def list_groups(s: Session) -> list[Group]:
    """Return all that can be moved or removed; a file's seal and signature, useless alone, go with it."""
    by_owner: dict[object, list[Target]] = defaultdict(list)
    for target in find_targets(s):
        by_owner[target.checkpoint.key if target.checkpoint else target.path].append(target)
    out = list[Group]()
    for targets in by_owner.values():
        paths, files = dict[str, None](), dict[str, None]()
        for target in targets:
            paths[target.path] = None
            files.update(dict.fromkeys(target.files))
            if target.files == (target.path,):
                home, name = os.path.split(target.path)
                hidden = (f"{home}/{make_name(name)}" for make_name in (name_seal, name_signature))
                paths.update(dict.fromkeys(path for path in hidden if exists(path)))
        out.append(Group(tuple(paths), tuple(files), targets[0].checkpoint))
    return out


def find_named(found: Sequence[Group], paths: Sequence[str], root: str) -> list[Group]:
    """Return the groups at or below the paths; a file stands for its whole checkpoint if that has no
    directory of its own. Raises UsageError for a part of a group, and NoCheckpoint.
    """
    out = list[Group]()
    for path in paths:
        matches = [g for g in found if g.is_meant_by(path)]
        if not matches and (whole := next((g for g in found if g.holds(path)), None)):
            text = f"{path} is a part of the checkpoint {whole.path}, which goes as a whole or not at all"
            raise UsageError(text, f"name {whole.path}")
        if not matches:
            text = f"there is no checkpoint at {path}"
            raise NoCheckpoint(text, f"'ckpt ls {quote(root)}' shows what is there")
        out += matches
    return list(dict.fromkeys(out))


_WRITTEN = frozenset({"in-use", "unfinished-save"})


class Checked(Struct, frozen=True):
    """The outcome of one verification; ``written``: somebody still writes the checkpoint, so nothing is
    known. ``findings`` have paths and are no notes; all files were checked to ``level`` at least. Of the
    ``hidden`` files nothing is known because their index is damaged.
    """

    verdict: Verdict
    written: bool
    findings: tuple[Finding, ...]
    files: int
    size: int
    level: Level = Level.CONTENT
    hidden: frozenset[str] = frozenset()

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(sorted({f.code for f in self.findings}))


def verify(
    s: Session, checkpoints: Sequence[Checkpoint], window: Sequence[Checkpoint] | None = None
) -> dict[CheckpointKey, Checked]:
    """Verify each of the checkpoints. They are compared with the ``window``, neighbours of theirs, whose
    reports alone are kept in the session; without a window with all checkpoints below the root.
    """
    members = {c.key: s.members(c).parts for c in checkpoints}
    parts = s.parts if window is None else [*chain(*members.values())]
    near = () if window is None else [*chain(*(c.parts for c in window))]
    prefetch(s, parts, Level.CONTENT)
    for part in parts:
        s.report(part, Level.CONTENT)
    for part in near:
        s.report(part, Level.STRUCTURE)
    others = checkpoints if window is None else window
    shared = SharedFindings(
        [*list_unlisted(s), *check_together(s, s.found.tree, Level.CONTENT, window)], others
    )
    out = {}
    for c in checkpoints:
        own = members[c.key]
        across = [*shared.find(c, {part.path for part in own}), *_find_in_seals(s, c, own)]
        out[c.key] = _summarize(s, own, across)
    if window is not None:
        for path in s.reports.keys() - ({part.path for part in near} - {part.path for part in parts}):
            del s.reports[path]
        s.places.clear()
    return out


class SharedFindings:
    """Findings on several checkpoints, by path and by each directory above it."""

    def __init__(self, findings: Iterable[Finding], checkpoints: Sequence[Checkpoint]) -> None:
        self._labels = [name_kind(c) for c in checkpoints]
        self._files = {part.path for c in checkpoints for part in c.parts}
        self._of_path = defaultdict[str, list[Finding]](list)
        for f in findings:
            self._of_path[f.path].append(f)
            above = f.path
            while above := above.rpartition("/")[0]:
                self._of_path[f"{above}/"].append(f)

    def find(self, c: Checkpoint, own: set[str]) -> Iterator[Finding]:
        """Yield the findings on a checkpoint with the files ``own``; in doubt all that name no other one."""
        homes = {part.home for part in c.parts} - {""}
        paths = own | homes | {f"{home}/" for home in homes} if homes else own | {c.path} - {"", "/"}
        for f in dict.fromkeys(f for path in paths for f in self._of_path[path]):
            if homes:
                is_meant = f.path not in self._files
            else:  # on a path that several checkpoints share, a finding names its checkpoint
                is_meant = name_kind(c) in f.message or not any(other in f.message for other in self._labels)
            if is_meant or f.path in own:
                yield f


def _summarize(s: Session, parts: Sequence[Part], across: Iterable[Finding]) -> Checked:
    """Return the outcome for a checkpoint, from its files' reports and the findings ``across`` files."""
    reports = [s.known(part) for part in parts if part.path in s.reports]
    found = [replace(f, path=f.path or report.path) for report in reports for f in report.findings]
    serious = [f for f in dict.fromkeys([*found, *across]) if f.severity is not Severity.NOTE]
    hidden = {part.path for part in parts if s.indexes.hidden(part.path)}  # by damage to an index
    return Checked(
        verdict=_find_verdict(s, parts, reports, [f for f in serious if f.path not in hidden], hidden),
        written=not _WRITTEN.isdisjoint(f.code for f in serious),
        findings=tuple(serious),
        files=len(parts),
        size=sum(max(0, part.size) for part in parts),
        level=min((report.level for report in reports), default=Level.PRESENCE),
        hidden=frozenset(hidden),
    )


def _find_verdict(
    s: Session, parts: Sequence[Part], reports: Sequence[Report], causes: list[Finding], hidden: set[str]
) -> Verdict:
    """Return the verdict on a checkpoint, by its reports and the findings on files that are not hidden."""
    verdicts = {report.verdict for report in reports if report.path not in hidden} | {worst(causes)}
    if blind(causes) or any(part.path in s.indexes.unseen for part in parts):  # nobody could look
        verdicts.add(Verdict.UNKNOWN)
    elif hidden:
        verdicts.add(Verdict.BROKEN)
    order = (Verdict.UNKNOWN, Verdict.BROKEN, Verdict.SUSPECT)
    return next((v for v in order if v in verdicts), Verdict.OK)


def _find_in_seals(s: Session, c: Checkpoint, parts: Sequence[Part]) -> Iterator[Finding]:
    """Yield what is wrong with the seals of these files, and the files that seals name and that are gone."""
    seals = s.indexes.seals
    for path in (c.path, *(part.path for part in parts)):
        yield from (replace(f, path=path) for f in seals.about.get(path, ()))
    homes = {part.home or part.path.rpartition("/")[0] for part in c.parts}
    for path, found in seals.findings.items():
        if path.rpartition("/")[0] in homes:
            yield from (replace(f, path=path) for f in found)
