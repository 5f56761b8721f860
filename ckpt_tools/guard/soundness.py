"""What listings and structure show against sealing something."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt_tools.discovery import completeness
from ckpt_tools.findings import finding
from ckpt_tools.formats.seals.seal import CODE
from ckpt_tools.guard.targets import Target
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.planning.engine import find_gaps
from ckpt_tools.planning.lost_files import without_model
from ckpt_tools.planning.unfinished import TORN, hint_of
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.retry import there


class Soundness:
    """Judges targets by reports that have been made; each checkpoint and run is looked at once. With
    ``again`` what earlier seals say does not count.
    """

    def __init__(self, session: Session, again: bool) -> None:
        self.session, self.again = session, again
        self._expected: dict[tuple[str, str], completeness.Expected] = {}
        self._gaps: dict[CheckpointKey, list[Finding]] = {}

    def against(self, target: Target) -> list[Finding]:
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
            return [finding("unfinished-save", "the save never finished", path=c.path, hint=hint_of(s, c))]
        run = c.layout, c.run
        if run not in self._expected:
            finished = [o for o in siblings if not o.unfinished]
            self._expected[run] = completeness.expected(finished, s.layouts)
        found = find_gaps(c, self._expected[run]) or [*without_model(s, c)]
        gaps = [f for f in found if f.severity is not Severity.NOTE]
        torn = any(map(self._is_torn, c.parts))
        if (gaps or torn) and s.unfinished(c, siblings):
            why = gaps[0].message if gaps else "its newest files end early: it may still be written"
            return [finding("unfinished-save", why, path=c.path, hint=hint_of(s, c))]
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
        if self.again and report.verdict is Verdict.BROKEN and errors == {CODE}:
            return []
        return [replace(f, path=path) for f in found]

    def _contradicted(self, target: Target) -> list[Finding]:
        """Files that an earlier seal names and that are gone; an earlier seal that cannot be used: what it
        said is not known.
        """
        seals = self.session.indexes.seals
        if seals is None or self.again:
            return []
        seals.read_all()
        found = [replace(f, path=target.seal) for f in seals.findings.get(target.seal, ())]
        found += (f for path in (target.path, *target.files) for f in seals.about.get(path, ()))
        return [f for f in dict.fromkeys(found) if f.severity is Severity.ERROR or f.code == "seal-broken"]


def _is_gone(path: str) -> bool:
    """Whether nothing is there any more: who prunes meanwhile hides nothing."""
    try:
        return not there(path)
    except OSError:
        return False
