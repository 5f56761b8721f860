"""A verification -> a table of its files, its findings, and what was not looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.model.answers import FileReport, Sample, Verification
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.model.report import Report
from ckpt_tools.output.contents import byte_map
from ckpt_tools.output.page import FEW, PLAIN, STYLE, Page, View, known, relative
from ckpt_tools.output.words import percent, plural, size, span, speed


def render(result: Verification, view: View = PLAIN) -> str:
    """The verdict, then the files that are not ok, and why; ``view.verbose`` lists everything."""
    page = Page(view)
    reports = [entry.report for entry in result.files]
    page.text(_verdict(result), STYLE[str(result.verdict)])
    for line in _summary(result, view.now):
        page.text(line, "dim")
    listed = _worst_first(reports, view)
    if listed:
        page.text("")
        _table(page, listed, result.root)
    for report in reports:
        byte_map(page, report, result.root)
    notes = _findings(page, result, reports)
    unlisted = {"ok file": len(reports) - len(listed), "note": notes}
    counts = [plural(count, noun) for noun, count in unlisted.items() if count]
    if counts:
        page.text("")
        page.text(f"{' and '.join(counts)} not listed: -v lists everything", "dim")
    return page.done()


def _worst_first(reports: Sequence[Report], view: View) -> list[Report]:
    """Those that are not ok, and with ``view.verbose`` all: the broken ones first."""
    order = (Verdict.BROKEN, Verdict.UNKNOWN, Verdict.SUSPECT, Verdict.OK)
    listed = [r for r in reports if view.verbose or r.verdict is not Verdict.OK]
    return sorted(listed, key=lambda r: order.index(r.verdict))


def interrupted(files: Sequence[FileReport], of: int, root: str, view: View = PLAIN) -> str:
    """What was seen until somebody pressed Ctrl-C: it is no verdict on the rest."""
    page = Page(view)
    reports = [entry.report for entry in files]
    bad = [r for r in reports if r.verdict is not Verdict.OK]
    seen = f"{len(reports):,} of {plural(of, 'file')} were looked at"
    text = f"interrupted: {seen}, {len(bad):,} of them not ok; nothing is known of the others"
    page.text(text, STYLE["unknown"])
    listed = _worst_first(reports, view)
    if listed:
        page.text("")
        _table(page, listed, root)
    found = [replace(f, path=f.path or r.path) for r in bad for f in r.findings]
    named = {r.path for r in listed}
    page.findings([f for f in found if f.severity is not Severity.NOTE], root, named)
    return page.done()


def _verdict(result: Verification) -> str:
    """How much of all is so."""
    s = result.summary
    if not s.files:
        return f"{result.verdict}: no checkpoint file was found"
    bad = {"suspect": s.suspect, "broken": s.broken, "unknown": s.unknown}.get(str(result.verdict), s.files)
    of = f"{bad:,} of " if bad not in (0, s.files) else ""
    return f"{result.verdict}: {of}{plural(s.files, 'file')}, {size(s.bytes)}"


def _table(page: Page, reports: Sequence[Report], root: str) -> None:
    page.table(
        ("verdict", "level", "coverage", "size", "format", "file"),
        [
            (
                str(r.verdict),
                str(r.level),
                percent(r.coverage),
                size(r.size),
                known(r.format),
                relative(r.path, root),
            )
            for r in reports
        ],
        right=("coverage", "size"),
        below=("file",),
    )


def _findings(page: Page, result: Verification, reports: Sequence[Report]) -> int:
    """A table of findings, and how many notes it leaves out.

    A note changes no verdict; it must not hide the damage, nor fill the screen for a thousand files without a
    checksum.
    """
    found = [replace(f, path=f.path or r.path) for r in reports for f in r.findings]
    worse = [f for f in found if f.severity is not Severity.NOTE]
    notes = len(found) - len(worse)
    with_notes = page.view.verbose or (not worse and notes <= FEW)
    named = () if page.view.verbose else {r.path for r in reports if r.verdict is not Verdict.OK}
    page.findings([*result.findings, *(found if with_notes else worse)], result.root, named)
    return 0 if with_notes else notes


def _summary(result: Verification, now: float) -> Iterator[str]:
    s = result.summary
    verdicts = {"ok": s.ok, "suspect": s.suspect, "broken": s.broken, "unknown": s.unknown}
    counts = [f"{count:,} {word}" for word, count in verdicts.items() if count]
    if s.files:
        yield ", ".join([*counts, f"{speed(s.bytes_read, s.seconds)} at level {result.level}"])
    if result.sample:
        yield _contents(result.sample, now)
    if s.below_level:
        yield f"{plural(s.below_level, 'file')} could not be looked at as deeply as {result.level}"
    if s.unrecognised:
        yield f"{plural(s.unrecognised, 'file')} not recognised and not looked at"


def _contents(s: Sample, now: float) -> str:
    """How much of the contents was read, and what that means for the rest."""
    limits = [f"sample {s.asked}"] if s.asked else []
    if s.max_duration is not None:
        limits.append(f"{'ended after' if s.stopped else 'within'} {span(s.max_duration)}")
    if s.never:
        past = f"{plural(s.never, 'file')} of {s.files:,} never checked so far"
    elif s.oldest_ns is not None:
        past = f"the least recent check of all was {span(now - s.oldest_ns / 1e9)} ago"
    else:
        past = "nothing to read"
    return (
        f"contents: {size(s.bytes_read)} of {size(s.bytes)} ({', '.join(limits)}),"
        f" {plural(s.files_read, 'file')} of {s.files:,} to the end; {past}"
    )
