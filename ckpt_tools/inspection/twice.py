"""An object of a store that looks broken is read a second time: its bytes may be damaged on their way here,
and no older checkpoint is chosen for that.
"""

from __future__ import annotations

from msgspec.structs import replace

from ckpt_tools.checksum import Progress
from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.report import Report
from ckpt_tools.storage import Stopped
from ckpt_tools.storage.urls import is_url

_HINT = "run this again; if it stays so, look at what lies between: a proxy, a cache, this machine's memory"

NOT_KEPT = "store-checksum-mismatch"
"""Whoever reads an object gets other bytes than its store has. Beside it stands ``unreadable``: nothing is
known of those that it has.
"""


def in_doubt(report: Report) -> bool:
    """Whether a report may be about damage that the store does not have."""
    wrong = report.verdict is Verdict.BROKEN or any(f.code == NOT_KEPT for f in report.findings)
    return wrong and is_url(report.path)


def judged(first: Report, again: Report | None, *, stopped: bool = False) -> Report:
    """What two readings of an object come to: damage is what was found both times. ``again`` is None where
    nothing is to be said of it; ``stopped``: it was ended before it had looked for everything.
    """
    if again is not None:
        before, now = set(first.findings), set(again.findings)
        if again.verdict is Verdict.UNKNOWN or now == before or (stopped and now <= before):
            return again
    from ckpt_tools.storage.stores.store import DIFFERENTLY  # what lies on disks is read once

    doubt = finding("unreadable", DIFFERENTLY, hint=_HINT)
    return replace(again or first, verdict=Verdict.UNKNOWN, findings=(doubt,))


_NO_TIME = (
    "it looks broken, and there was no time to compare what came with the checksum that the store keeps"
)


def held_against_store(report: Report, progress: Progress | None) -> Report:
    """A report of damage that was found both times, where the bytes are those that the store has, as far as
    it tells. A cache that has them wrong gives the same wrong bytes each time, and the object is good: then
    nothing is known of it. All of it is read for this.
    """
    if report.verdict is not Verdict.BROKEN or not is_url(report.path):
        return report
    from ckpt_tools.inspection.kept_checksum import what_came  # what lies on disks has no other witness
    from ckpt_tools.storage.stores.store import Replaced

    try:
        found = what_came(report.path, progress)
    except Stopped:
        found = finding("unreadable", _NO_TIME)
    except Replaced as e:
        found = finding("in-use", e.strerror or str(e))
    except OSError as e:
        found = finding("unreadable", e.strerror or str(e))
    if found is None:
        return report
    findings = not_kept(found) if found.code == NOT_KEPT else (found,)
    return replace(report, verdict=Verdict.UNKNOWN, findings=findings)


def not_kept(other: Finding) -> tuple[Finding, Finding]:
    """What is found of an object whose bytes come otherwise than its store says that it has them."""
    from ckpt_tools.storage.stores import store

    return other, finding("unreadable", store.NOT_KEPT, hint=other.hint)
