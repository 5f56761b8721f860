"""One checkpoint of a run, verified as ``ckpt verify`` does, with the checkpoints before and after it for
comparison.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

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
from ckpt_tools.storage import counted

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
    bytes_read: int = 0
    seconds: float = 0.0
    level: Level = Level.CONTENT
    hidden: frozenset[str] = frozenset()


def verified(s: Session, c: Checkpoint, window: Sequence[Checkpoint]) -> Checked:
    """The checkpoint, read to the end; the ``window`` are those next to it in its run, and itself."""
    started = time.perf_counter()
    parts = s.members(c).parts
    with counted() as read:
        prefetch(s, parts, Level.CONTENT)
        for part in parts:
            s.report(part, Level.CONTENT)
        across = _across(s, c, window, parts)
    own = [s.reports.pop(part.path) for part in parts if part.path in s.reports]
    seconds = round(time.perf_counter() - started, 6)
    return replace(_checked(s, parts, own, across), bytes_read=read.bytes, seconds=seconds)


def verify_all(s: Session, checkpoints: Sequence[Checkpoint]) -> dict[CheckpointKey, Checked]:
    """Return what verifying shows of each of the checkpoints: all are read to the end, and compared once."""
    prefetch(s, s.parts, Level.CONTENT)
    for part in s.parts:
        s.report(part, Level.CONTENT)
    found = [*not_seen(s), *check_together(s, s.found.tree, Level.CONTENT)]
    of_path = defaultdict[str, list[Finding]](list)
    for f in found:
        of_path[f.path].append(f)
        for above in _directories(f.path):
            of_path[f"{above}/"].append(f)
    labels = [label(c) for c in checkpoints]
    out = {}
    for c in checkpoints:
        parts = s.members(c).parts
        homes = {part.home for part in c.parts}
        places = {c.path, *(part.path for part in parts), *homes, *(f"{home}/" for home in homes)}
        near = dict.fromkeys(f for place in places - {"", "/"} for f in of_path[place])
        across = [*(f for f in near if _is_about(f, c, parts, labels)), *_of_seals(s, c, parts)]
        own = [s.known(part) for part in parts if part.path in s.reports]
        out[c.key] = _checked(s, parts, own, across)
    return out


def _directories(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _checked(s: Session, parts: Sequence[Part], own: Sequence[Report], across: Sequence[Finding]) -> Checked:
    found = [replace(f, path=f.path or report.path) for report in own for f in report.findings]
    serious = [f for f in dict.fromkeys([*found, *across]) if f.severity is not Severity.NOTE]
    hidden = {part.path for part in parts if s.indexes.hidden(part.path)}  # by damage, and so damaged
    return Checked(
        verdict=_verdict(own, serious, hidden, unseen=any(p.path in s.indexes.unseen for p in parts)),
        written=any(f.code in _WRITTEN for f in serious),
        findings=tuple(serious),
        files=len(parts),
        size=sum(max(0, part.size) for part in parts),
        level=min((report.level for report in own), default=Level.PRESENCE),
        hidden=frozenset(hidden),
    )


def _verdict(
    own: Sequence[Report], serious: Sequence[Finding], hidden: Collection[str], *, unseen: bool
) -> Verdict:
    """What follows from the reports and the findings; of files that are ``hidden`` nothing is known. Where an
    index is ``unseen`` nobody could look, which is no damage.
    """
    causes = [f for f in serious if f.path not in hidden]
    verdicts = {report.verdict for report in own if report.path not in hidden} | {worst(causes)}
    verdicts |= {Verdict.UNKNOWN} if unseen or blind(causes) else {Verdict.BROKEN} if hidden else set()
    order = (Verdict.UNKNOWN, Verdict.BROKEN, Verdict.SUSPECT)
    return next((v for v in order if v in verdicts), Verdict.OK)


def _across(s: Session, c: Checkpoint, window: Sequence[Checkpoint], parts: Sequence[Part]) -> list[Finding]:
    """What only several files show, as far as it is about this checkpoint."""
    near = [part for o in window for part in o.parts]
    for part in near:
        s.report(part, Level.STRUCTURE)
    kept = dict(s.reports)  # a cross-check adds to reports, which the next one starts from
    found = [*not_seen(s), *check_together(s, s.found.tree, Level.CONTENT, window), *_of_seals(s, c, parts)]
    _forget_others(s, near, kept)
    others = [o for o in window if o.key != c.key]
    theirs = {part.path for o in others for part in o.parts}
    named = [label(o) for o in others]
    return [f for f in found if f.path not in theirs and _is_about(f, c, parts, named)]


def _forget_others(s: Session, near: Sequence[Part], kept: Mapping[str, Report]) -> None:
    """Keep the reports on these files alone: nobody needs all of a run at once."""
    seen = {part.path: s.known(part) for part in near if part.path in s.reports}
    s.reports.clear()
    s.reports.update({p.path: kept[p.path] for p in near if p.path in kept} | seen)
    s.places.clear()


def _is_about(f: Finding, c: Checkpoint, parts: Sequence[Part], others: Sequence[str]) -> bool:
    """Whether a finding is about this checkpoint: when in doubt it is."""
    homes = {part.home for part in c.parts if part.home}
    if f.path in homes or f.path in {part.path for part in parts}:
        return True
    if any(f.path.startswith(f"{home}/") for home in homes):
        return True
    if f.path != c.path or homes:
        return False
    return label(c) in f.message or not any(other in f.message for other in others)


def _of_seals(s: Session, c: Checkpoint, parts: Sequence[Part]) -> list[Finding]:
    """What is wrong with the seals that the files are in, and files that they name and that are gone."""
    seals = s.indexes.seals
    if seals is None:
        return []
    about = (c.path, *(part.path for part in parts))
    homes = {part.home or part.path.rpartition("/")[0] for part in c.parts}
    broken = ((path, f) for path, found in seals.findings.items() for f in found)
    return [
        *(replace(f, path=path) for path in about for f in seals.about.get(path, ())),
        *(replace(f, path=path) for path, f in broken if path.rpartition("/")[0] in homes),
    ]
