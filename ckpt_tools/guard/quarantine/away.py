"""Checkpoints put into quarantine: renamed, with the tracker pointed at what is resumed from instead."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from glob import escape

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.guard import journal
from ckpt_tools.guard.journal import Move, Step, Store
from ckpt_tools.guard.quarantine.chosen import Group, groups, named
from ckpt_tools.guard.trackers import Pointed, naming, pointed
from ckpt_tools.model.change import Change, Changes
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Session


def quarantine(
    root: str,
    paths: Sequence[str] = (),
    *,
    damaged: bool = False,
    apply: bool = False,
    state_dir: str | None = None,
    selection: Selection | None = None,
) -> Changes:
    """Put checkpoints below ``root`` into its quarantine: those at or below ``paths``, or with ``damaged``
    all that have damage, but for the one that ``plan`` resumes from all the same. Without ``apply`` it only
    says what it would do.

    A tracker that names one of them is pointed at what ``plan`` chooses then, where it chooses something.
    ``selection`` says how to read and what to plan. Raises UsageError, NoCheckpoint where a path is none, and
    CannotLook.
    """
    selection = selection or Selection(cache=True)
    root = os.path.abspath(root)
    if not apply:
        return _Question(root, selection, damaged).answer(paths)
    with journal.opened(root, state_dir, selection.trust) as store:
        return _Question(root, selection, damaged, store).answer(paths)


class _Question(Struct, frozen=True):
    """One command; ``store`` is held where it is to be done."""

    root: str
    selection: Selection
    damaged: bool
    store: Store | None = None

    def answer(self, paths: Sequence[str]) -> Changes:
        s = open_session(self.root, self.selection.read_options())
        s.add_members()
        found = groups(s)
        findings = list[Finding]()
        wanted = self._damaged(found) if self.damaged else named(found, paths, self.root)
        chosen = self._planned(()) if self.damaged and wanted else None
        why = {g: self._why_it_stays(s, g, chosen) for g in wanted}
        away = [g for g in wanted if not why[g]]
        rows = [self._stays(g, why[g]) for g in wanted if why[g]]
        trackers = self._trackers(s, away, findings)
        number = self._done(away, trackers) if self.store and away else None
        rows += self._rows(away, trackers)
        rows = [*self.store.changes(), *rows] if self.store else rows
        applied = self.store is not None
        return Changes("quarantine", self.root, applied, tuple(rows), tuple(findings), number)

    # ---- which

    def _damaged(self, found: Sequence[Group]) -> list[Group]:
        """Those that have damage."""
        sel = self.selection
        seen = verify(
            self.root,
            jobs=sel.jobs,
            settle=sel.settle,
            key_file=sel.key_file,
            cache=sel.cache,
            max_age=sel.max_age,
            io=sel.io,
            limit_rate=sel.limit_rate,
            trust=sel.trust,
            layouts=sel.layouts,
        )
        bad = {row.report.path for row in seen.files if row.report.verdict is Verdict.BROKEN}
        bad |= {f.path for f in seen.findings if f.severity is Severity.ERROR and f.path}
        return [g for g in found if any(map(g.holds, bad)) or g.path in bad]

    def _why_it_stays(self, s: Session, group: Group, chosen: LoadPlan | None) -> str:
        if _age(s, group) < self.selection.settle:
            return "written a moment ago, so it may be in use: wait, or say --settle 0s"
        if _same(group, chosen):
            return "a job resumes from it all the same, because other files stand in for the damaged ones"
        return ""

    def _planned(self, away: Collection[Group]) -> LoadPlan | None:
        """What a job would resume from without these; None where nothing."""
        gone = tuple(escape(self._below(path)) for g in away for path in g.paths)
        try:
            return plan(self.root, replace(self.selection, exclude=(*self.selection.exclude, *gone)))
        except CkptError:
            return None

    # ---- trackers

    def _trackers(self, s: Session, away: Sequence[Group], findings: list[Finding]) -> list[Pointed]:
        gone = [g.checkpoint for g in away if g.checkpoint]
        dangling = naming(s, gone)
        if not dangling:
            return []
        then = self._planned(away)
        made = pointed(s, gone, then.checkpoint) if then and then.checkpoint else []
        for path in sorted({*dangling} - {p.path for p in made}):
            text = "it names what goes into quarantine, and 'ckpt plan' chooses nothing that it could name"
            findings.append(finding("dangling-tracker", text, path=path, severity=Severity.WARNING))
        return made

    # ---- what is done

    def _below(self, path: str) -> str:
        """A path as seen from the root. Raises UsageError for what does not lie below it."""
        below = os.path.relpath(path, self.root)
        if below.split("/")[0] in (".", ".."):
            text = f"{path} does not lie below {self.root}, in which its quarantine would be"
            raise UsageError(text, f"say --root {os.path.dirname(path)}")
        return below

    def _done(self, away: Sequence[Group], trackers: Sequence[Pointed]) -> int:
        assert self.store is not None  # noqa: S101 - for the type checker: the caller has looked
        place = self.store.place("quarantine")
        below = [self._below(path) for g in away for path in g.paths]
        steps: list[Step] = [
            *(t.swap(self.store, self.root, self.store.place("replaced")) for t in trackers),
            *(Move(path, f"{place}/{path}") for path in below),
        ]
        why = ", ".join(g.label or os.path.basename(g.path) for g in away)
        return self.store.run("quarantine", why, steps).number

    def _rows(self, away: Sequence[Group], trackers: Sequence[Pointed]) -> list[Change]:
        moved = "moved" if self.store else "would-move"
        pointed_to = "pointed" if self.store else "would-point"
        rows = [
            Change(g.path, moved, "", None, g.label, len(g.files), g.size if not self.store else 0)
            for g in away
        ]
        return rows + [
            Change(t.path, pointed_to, f"it named {t.now}, and names {t.then} then") for t in trackers
        ]

    def _stays(self, group: Group, why: str) -> Change:
        return Change(group.path, "stays", why, None, group.label, len(group.files), group.size)


def _same(group: Group, chosen: LoadPlan | None) -> bool:
    c = chosen.checkpoint if chosen else None
    return c is not None and group.checkpoint is not None and group.checkpoint.key == c.key


def _age(s: Session, group: Group) -> float:
    """Seconds since the last of its files was written."""
    times = [os.lstat(path).st_mtime_ns for path in group.files if os.path.lexists(path)]
    return (s.now_ns - max(times, default=0)) / 1e9
