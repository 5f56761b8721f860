"""What a report is made from: the answers of the commands, and where a job that starts now would resume."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from ckpt_tools.errors import CkptError
from ckpt_tools.model.answers import Scan, Verification
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Region
from ckpt_tools.output.page import WORST


class Start(Struct, frozen=True):
    """What a job would resume from; else ``error`` says why, and ``plan`` what was considered."""

    root: str
    run: str | None
    plan: LoadPlan | None
    error: CkptError | None = None


class Gathered(Struct, frozen=True):
    """The answers that one report shows, any of which may be missing. ``made_at`` is in seconds since 1970,
    ``maps`` are those of the bytes of damaged files, by path; ``runs_omitted`` counts those that no plan was
    made for.
    """

    roots: tuple[str, ...]
    made_at: float
    verification: Verification | None = None
    scans: tuple[Scan, ...] = ()
    starts: tuple[Start, ...] = ()
    maps: Mapping[str, tuple[Region, ...]] = field(default_factory=dict)
    exit_code: int | None = None
    runs_omitted: int = 0


def worst_of(verdicts: set[Verdict]) -> Verdict:
    """The one that needs attention most; unknown where there is none at all."""
    return next((v for v in WORST if v in verdicts), Verdict.UNKNOWN)


def causes(findings: tuple[Finding, ...]) -> list[Finding]:
    return sorted((f for f in findings if not f.follows), key=lambda f: -f.severity)
