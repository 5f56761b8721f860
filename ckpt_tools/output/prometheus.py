"""An answer -> Prometheus' text format, for the node exporter's textfile collector or a push gateway.

'ckpt watch' serves metrics of its own, under other names: both may be scraped by one server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from ckpt_tools.errors import NoCheckpoint
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Verdict, blind, worst
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.json import absolute
from ckpt_tools.output.observed import observed
from ckpt_tools.output.page import View
from ckpt_tools.output.words import printable

MOST = 100
"""Files with a series of their own: each costs the server memory for as long as it keeps data."""


class Gauge(Struct, frozen=True):
    """One metric with all of its samples, each with its labels."""

    name: str
    help: str
    samples: tuple[tuple[Mapping[str, str], float | None], ...]


def render(document: Verification | LoadPlan | Failure, view: View) -> str:
    """Gauges that describe the last run; a value that is unknown has no sample."""
    if isinstance(document, Verification):
        gauges = _verified(document, view)
    elif isinstance(document, LoadPlan):
        gauges = _planned(document, view)
    else:
        gauges = _failed(document, view)
    return "".join(_text(gauge) for gauge in gauges)


def _text(gauge: Gauge) -> str:
    lines = [
        f"{gauge.name}{_labels(labels)} {value}\n" for labels, value in gauge.samples if value is not None
    ]
    if not lines:
        return ""
    return f"# HELP {gauge.name} {gauge.help}\n# TYPE {gauge.name} gauge\n{''.join(lines)}"


def _labels(labels: Mapping[str, str]) -> str:
    return (
        "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items()) + "}" if labels else ""
    )


def _quoted(value: str) -> str:
    return printable(value).replace("\\", "\\\\").replace('"', '\\"')


def _one(name: str, about: str, root: str, value: float | None) -> Gauge:
    return Gauge(name, about, (({"root": root}, value),))


def _by(name: str, about: str, root: str, values: Iterable[tuple[Mapping[str, str], int]]) -> Gauge:
    return Gauge(name, about, tuple(({"root": root, **labels}, value) for labels, value in values))


def _answered(command: str, root: str, view: View, code: int) -> Iterator[Gauge]:
    about = f"0 where 'ckpt {command}' had an answer, else its exit code."
    yield _one(f"ckpt_{command}_failure_code", about, root, code)
    now = round(view.now, 3) or None
    yield _one(f"ckpt_{command}_timestamp_seconds", f"When 'ckpt {command}' was asked.", root, now)


def _verified(v: Verification, view: View) -> Iterator[Gauge]:
    root, s = absolute(v.root), v.summary
    nothing = not v.files and worst(v.findings) is not Verdict.BROKEN and not blind(v.findings)
    yield from _answered("verify", root, view, NoCheckpoint.exit_code if nothing else 0)
    states = [({"verdict": str(word)}, int(word is v.verdict)) for word in Verdict]
    yield _by("ckpt_verify_verdict", "1 for the verdict over everything.", root, states)
    counts = [({"verdict": w}, n) for w, n in _counts(v)]
    yield _by("ckpt_verify_files", "Files that were verified, by verdict.", root, counts)
    yield _one("ckpt_verify_size_bytes", "Their size together.", root, s.bytes)
    yield _one("ckpt_verify_read_bytes", "Bytes that were read.", root, s.bytes_read)
    yield _one("ckpt_verify_duration_seconds", "How long it took.", root, round(s.seconds, 6))
    about = "Files that could not be looked at as deeply as asked."
    yield _one("ckpt_verify_below_level_files", about, root, s.below_level)
    yield _one("ckpt_verify_unrecognised_files", "Files of no known format.", root, s.unrecognised)
    yield _findings("ckpt_verify_findings", v, root, view)
    damaged = [e.report for e in v.files if e.report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN)][:MOST]
    paths = [({"path": absolute(r.path), "verdict": str(r.verdict)}, 1) for r in damaged]
    yield _by("ckpt_verify_damaged_file", f"Files that are damaged, the first {MOST}.", root, paths)


def _counts(v: Verification) -> Iterator[tuple[str, int]]:
    s = v.summary
    yield from (("ok", s.ok), ("suspect", s.suspect), ("broken", s.broken), ("unknown", s.unknown))


def _findings(name: str, document: Verification | LoadPlan | Failure, root: str, view: View) -> Gauge:
    found = Counter((f.code, str(f.severity)) for f in observed(document, view).findings)
    samples = [({"code": code, "severity": word}, n) for (code, word), n in sorted(found.items())]
    return _by(name, "Findings by code: warnings and errors.", root, samples)


def _planned(plan: LoadPlan, view: View) -> Iterator[Gauge]:
    root, c = absolute(plan.root), plan.checkpoint
    yield from _answered("plan", root, view, 0)
    yield _one("ckpt_resume_found", "Whether there is a checkpoint to resume from.", root, int(c is not None))
    yield _one("ckpt_resume_step", "Step that the job resumes from.", root, plan.resume_step)
    saved = c.mtime_ns / 1e9 if c else None
    yield _one("ckpt_resume_saved_timestamp_seconds", "When that checkpoint was saved.", root, saved)
    yield _one("ckpt_resume_ranks", "Ranks that will load it.", root, plan.world_size)
    loads = [*plan.shared, *(f for r in plan.by_rank for f in r.files)]
    swapped = sum(f.substituted for f in loads)
    yield _one("ckpt_resume_substituted_files", "Files of another rank that are loaded.", root, swapped)
    yield _one("ckpt_resume_rejected_checkpoints", "Better ones that lost.", root, len(plan.rejected))
    yield _one("ckpt_resume_read_bytes", "Bytes that were read.", root, plan.bytes_read)
    yield _findings("ckpt_resume_findings", plan, root, view)


def _failed(failure: Failure, view: View) -> Iterator[Gauge]:
    root = absolute(failure.plan.root) if failure.plan else ""
    yield from _answered(failure.command, root, view, failure.exit_code)
    if failure.plan:
        yield _one("ckpt_resume_found", "Whether there is a checkpoint to resume from.", root, 0)
        rejected = len(failure.plan.rejected)
        yield _one("ckpt_resume_rejected_checkpoints", "Better ones that lost.", root, rejected)
        yield _findings("ckpt_resume_findings", failure, root, view)
