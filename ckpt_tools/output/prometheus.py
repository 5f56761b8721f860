"""An answer -> Prometheus' text format, for the node exporter's textfile collector or a push gateway.

'ckpt watch' serves metrics under other names, so that one server may scrape both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ckpt_tools.errors import NoCheckpoint
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.finding import Verdict, blind, worst
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.json import absolute
from ckpt_tools.output.observed import observe
from ckpt_tools.output.page import View
from ckpt_tools.output.words import printable

MOST = 100
"""The most damaged files that have a time series: each costs the server memory while it keeps data."""

Sample = tuple[Mapping[str, str], float | None]
Gauge = tuple[str, str, Iterable[Sample]]
"""A metric's name, its help text, and its samples (labels, value); a sample with value None is left out."""


def render(document: Verification | LoadPlan | Failure, view: View) -> str:
    """Return gauges that describe this run; an unknown value has no sample."""
    if isinstance(document, Verification):
        root, gauges = document.root, _measure_files(document, view)
    elif isinstance(document, LoadPlan):
        root, gauges = document.root, _measure_plan(document, view)
    else:
        root, gauges = document.plan.root if document.plan else "", _measure_failure(document, view)
    lines: list[str] = []
    for name, about, samples in gauges:
        rows = [
            f"{name}{_add_labels(absolute(root), labels)} {n}\n" for labels, n in samples if n is not None
        ]
        lines += [f"# HELP {name} {about}\n# TYPE {name} gauge\n", *rows] if rows else []
    return "".join(lines)


def _add_labels(root: str, labels: Mapping[str, str]) -> str:
    """Return the labels as a sample's name has them behind it: ``{root="/a",verdict="ok"}``."""
    quoted = {
        k: printable(v).replace("\\", "\\\\").replace('"', '\\"') for k, v in {"root": root, **labels}.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in quoted.items()) + "}"


def _gauge(name: str, about: str, value: float | None) -> Gauge:
    return name, about, [({}, value)]


def _measure_run(command: str, view: View, code: int) -> Iterator[Gauge]:
    about = f"0 where 'ckpt {command}' had an answer, else its exit code."
    yield _gauge(f"ckpt_{command}_failure_code", about, code)
    asked = f"When 'ckpt {command}' was asked."
    yield _gauge(f"ckpt_{command}_timestamp_seconds", asked, round(view.now, 3) or None)


def _measure_files(v: Verification, view: View) -> Iterator[Gauge]:
    s = v.summary
    is_empty = not v.files and worst(v.findings) is not Verdict.BROKEN and not blind(v.findings)
    yield from _measure_run("verify", view, NoCheckpoint.exit_code if is_empty else 0)
    states: list[Sample] = [({"verdict": str(word)}, int(word is v.verdict)) for word in Verdict]
    yield "ckpt_verify_verdict", "1 for the verdict over everything.", states
    counts: list[Sample] = [({"verdict": w}, n) for w, n in s.verdicts.items()]
    yield "ckpt_verify_files", "Files that were verified, by verdict.", counts
    yield _gauge("ckpt_verify_size_bytes", "Their size together.", s.bytes)
    yield _gauge("ckpt_verify_read_bytes", "Bytes that were read.", s.bytes_read)
    yield _gauge("ckpt_verify_duration_seconds", "How long it took.", round(s.seconds, 6))
    about = "Files that could not be looked at as deeply as asked."
    yield _gauge("ckpt_verify_below_level_files", about, s.below_level)
    yield _gauge("ckpt_verify_unrecognised_files", "Files of no known format.", s.unrecognised)
    yield _count_findings("ckpt_verify_findings", v, view)
    damaged = [e.report for e in v.files if e.report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN)][:MOST]
    paths: list[Sample] = [({"path": absolute(r.path), "verdict": str(r.verdict)}, 1) for r in damaged]
    yield "ckpt_verify_damaged_file", f"Files that are damaged, the first {MOST}.", paths


def _count_findings(name: str, document: Verification | LoadPlan | Failure, view: View) -> Gauge:
    found = Counter((f.code, str(f.severity)) for f in observe(document, view).findings)
    samples: list[Sample] = [({"code": code, "severity": w}, n) for (code, w), n in sorted(found.items())]
    return name, "Findings by code: warnings and errors.", samples


def _measure_plan(plan: LoadPlan, view: View) -> Iterator[Gauge]:
    c = plan.checkpoint
    yield from _measure_run("plan", view, 0)
    yield _gauge("ckpt_resume_found", "Whether there is a checkpoint to resume from.", int(c is not None))
    yield _gauge("ckpt_resume_step", "Step that the job resumes from.", plan.resume_step)
    saved = c.mtime_ns / 1e9 if c else None
    yield _gauge("ckpt_resume_saved_timestamp_seconds", "When that checkpoint was saved.", saved)
    yield _gauge("ckpt_resume_ranks", "Ranks that will load it.", plan.world_size)
    swapped = sum(f.substituted for _, f in plan.loads)
    yield _gauge("ckpt_resume_substituted_files", "Files of another rank that are loaded.", swapped)
    yield _gauge("ckpt_resume_rejected_checkpoints", "Better ones that lost.", len(plan.rejected))
    yield _gauge("ckpt_resume_read_bytes", "Bytes that were read.", plan.bytes_read)
    yield _count_findings("ckpt_resume_findings", plan, view)


def _measure_failure(failure: Failure, view: View) -> Iterator[Gauge]:
    yield from _measure_run(failure.command, view, failure.exit_code)
    if failure.plan:
        yield _gauge("ckpt_resume_found", "Whether there is a checkpoint to resume from.", 0)
        rejected = len(failure.plan.rejected)
        yield _gauge("ckpt_resume_rejected_checkpoints", "Better ones that lost.", rejected)
        yield _count_findings("ckpt_resume_findings", failure, view)
