"""Checkpoints, verified as ``ckpt verify`` does, each with those that it is compared with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.discovery.completeness import label
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Severity, Verdict, blind, worst
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.planning.engine import check_together
from ckpt_tools.reading.prefetch import prefetch
from ckpt_tools.reading.session import Session
from ckpt_tools.reading.unseen import not_seen

_WRITTEN = frozenset({"in-use", "unfinished-save"})


class Checked(Struct, frozen=True):
    """What came of one verification; ``written``: somebody still writes the checkpoint, so nothing is known.
    ``findings`` have paths and are no notes; ``level`` is what all files were looked at to; of the files that
    are ``hidden`` nothing is known because their index is damaged.
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
    """Return what verifying shows of each of the checkpoints. They are compared with those of the ``window``,
    whose reports alone are kept then; without one with all below the root, which is read to the end.
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
    about = _Findings([*not_seen(s), *check_together(s, s.found.tree, Level.CONTENT, window)], others)
    out = {}
    for c in checkpoints:
        own = members[c.key]
        across = [*about.find(c, {part.path for part in own}), *_find_in_seals(s, c, own)]
        out[c.key] = _conclude(s, own, across)
    if window is not None:
        for path in s.reports.keys() - ({part.path for part in near} - {part.path for part in parts}):
            del s.reports[path]
        s.places.clear()
    return out


class _Findings:
    """Findings on several checkpoints, by the paths and the directories that they are about."""

    def __init__(self, findings: Iterable[Finding], checkpoints: Sequence[Checkpoint]) -> None:
        self._labels = [label(c) for c in checkpoints]
        self._files = {part.path for c in checkpoints for part in c.parts}
        self._of_path = defaultdict[str, list[Finding]](list)
        for f in findings:
            self._of_path[f.path].append(f)
            above = f.path
            while above := above.rpartition("/")[0]:
                self._of_path[f"{above}/"].append(f)

    def find(self, c: Checkpoint, own: set[str]) -> Iterator[Finding]:
        """Those about one of the checkpoints: when in doubt all that are not about another one."""
        homes = {part.home for part in c.parts} - {""}
        places = own | homes | {f"{home}/" for home in homes} if homes else own | {c.path} - {"", "/"}
        for f in dict.fromkeys(f for place in places for f in self._of_path[place]):
            if homes:
                is_meant = f.path not in self._files
            else:  # of a path that several have in common a finding names the one that it is about
                is_meant = label(c) in f.message or not any(other in f.message for other in self._labels)
            if is_meant or f.path in own:
                yield f


def _conclude(s: Session, parts: Sequence[Part], across: Iterable[Finding]) -> Checked:
    own = [s.known(part) for part in parts if part.path in s.reports]
    found = [replace(f, path=f.path or report.path) for report in own for f in report.findings]
    serious = [f for f in dict.fromkeys([*found, *across]) if f.severity is not Severity.NOTE]
    hidden = {part.path for part in parts if s.indexes.hidden(part.path)}  # by damage, and so damaged
    return Checked(
        verdict=_find_verdict(s, parts, own, [f for f in serious if f.path not in hidden], hidden),
        written=not _WRITTEN.isdisjoint(f.code for f in serious),
        findings=tuple(serious),
        files=len(parts),
        size=sum(max(0, part.size) for part in parts),
        level=min((report.level for report in own), default=Level.PRESENCE),
        hidden=frozenset(hidden),
    )


def _find_verdict(
    s: Session, parts: Sequence[Part], own: Sequence[Report], causes: list[Finding], hidden: set[str]
) -> Verdict:
    verdicts = {report.verdict for report in own if report.path not in hidden} | {worst(causes)}
    if blind(causes) or any(part.path in s.indexes.unseen for part in parts):  # nobody could look
        verdicts.add(Verdict.UNKNOWN)
    elif hidden:
        verdicts.add(Verdict.BROKEN)
    order = (Verdict.UNKNOWN, Verdict.BROKEN, Verdict.SUSPECT)
    return next((v for v in order if v in verdicts), Verdict.OK)


def _find_in_seals(s: Session, c: Checkpoint, parts: Sequence[Part]) -> Iterator[Finding]:
    """What is wrong with the seals that the files are in, and files that they name and that are gone."""
    seals = s.indexes.seals
    if seals is None:
        return
    for path in (c.path, *(part.path for part in parts)):
        yield from (replace(f, path=path) for f in seals.about.get(path, ()))
    homes = {part.home or part.path.rpartition("/")[0] for part in c.parts}
    for path, found in seals.findings.items():
        if path.rpartition("/")[0] in homes:
            yield from (replace(f, path=path) for f in found)
