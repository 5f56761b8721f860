"""An object of a store that looks broken is read a second time: its bytes may be damaged on their way here,
and no older checkpoint is chosen for that.
"""

from __future__ import annotations

from dataclasses import replace

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Report
from ckpt_tools.storage.urls import is_url

_HINT = "run this again; if it stays so, look at what lies between: a proxy, a cache, this machine's memory"


def in_doubt(report: Report) -> bool:
    """Whether a report may be about damage that the store does not have."""
    return report.verdict is Verdict.BROKEN and is_url(report.path)


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
