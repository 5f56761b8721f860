"""A verification -> a table of its files, its findings, and what was not looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.model.answers import FileReport, Sample, Verification
from ckpt_tools.model.finding import Severity, Verdict
from ckpt_tools.output.contents import show_bytes
from ckpt_tools.output.page import DEPTHS, FEW, PLAIN, STYLE, WORST, Page, View, cut_root, say_checks, to_cell
from ckpt_tools.output.words import plural, size, span, speed


def render(result: Verification, view: View = PLAIN) -> str:
    page = Page(view)
    page.text(conclude(result), STYLE[str(result.verdict)])
    for line in _sum_up(result, view.now):
        page.text(line, "dim")
    if view.verbose:
        headers = ("verdict", "checked", "size", "format", "file")
        page.table(headers, list_files(result), right=("size",), below=("file",))
    for entry in result.files:
        show_bytes(page, entry.report, result.root)
    found = result.in_files
    worse = [f for f in found if f.severity is not Severity.NOTE]
    # many notes would hide damage, or fill the screen
    with_notes = view.verbose or (not worse and len(found) <= FEW)
    page.findings([*result.findings, *(found if with_notes else worse)], result.root)
    unlisted = {"ok file": 0 if view.verbose else result.summary.ok, "note": len(found) - len(worse)}
    if with_notes:
        del unlisted["note"]
    if counts := [plural(count, noun) for noun, count in unlisted.items() if count]:
        page.text(f"{' and '.join(counts)} not listed: -v lists everything", "dim", gap=True)
    return page.done()


def render_part(files: Sequence[FileReport], total: int, root: str, view: View) -> str:
    """Return the page of an interrupted verification: ``files`` were verified, of ``total`` in all."""
    page = Page(view)
    bad = [entry.report for entry in files if entry.report.verdict is not Verdict.OK]
    seen = f"{len(files):,} of {plural(total, 'file')} were looked at"
    text = f"interrupted: {seen}, {len(bad):,} of them not ok; nothing is known of the others"
    page.text(text, STYLE["unknown"])
    page.findings([f.at(r.path) for r in bad for f in r.findings if f.severity is not Severity.NOTE], root)
    return page.done()


def conclude(result: Verification) -> str:
    """Return in one line the verdict, how many files have it, the size, how many errors and warnings."""
    s, worst = result.summary, result.verdict
    if not s.files:
        return f"{worst}: no checkpoint file was found"
    verdict = Verdict.OK if worst is Verdict.SUSPECT and not s.suspect else worst
    bad = s.verdicts[str(worst)] if verdict is not Verdict.OK else s.files
    of_all = "" if bad else " as a whole"  # each file is sound, and not what they are together
    share = f"{bad:,} of " if bad not in (0, s.files) else ""
    severities = [f.severity for f in (*result.findings, *result.in_files)]
    counts = [(severities.count(severity), severity) for severity in (Severity.ERROR, Severity.WARNING)]
    more = [plural(count, str(severity)) for count, severity in counts if count]
    return ", ".join([f"{verdict}{of_all}: {share}{plural(s.files, 'file')}", size(s.bytes), *more])


def list_files(result: Verification) -> list[tuple[str, ...]]:
    """Return verdict, check, size, format and path of each file, those that need attention first."""
    rows = list[tuple[str, ...]]()
    reports = [entry.report for entry in result.files]
    for r in sorted(reports, key=lambda r: WORST.index(r.verdict)):
        cells = (str(r.verdict), say_checks(r.level, r.coverage), size(r.size), to_cell(r.format))
        rows.append((*cells, cut_root(r.path, result.root)))
    return rows


def _sum_up(result: Verification, now: float) -> Iterator[str]:
    s = result.summary
    if s.files:
        yield f"{speed(s.bytes_read, s.seconds)}, {DEPTHS[result.level]}"
    if result.sample:
        yield _describe_sample(result.sample, now)
    if s.below_level:
        yield f"{plural(s.below_level, 'file')} could not be looked at as deeply as {result.level}"
    if s.unrecognised:
        yield f"{plural(s.unrecognised, 'file')} not recognised and not looked at"


def _describe_sample(s: Sample, now: float) -> str:
    """Return what part of the contents was read, and when the others were last checked."""
    past = f"{plural(s.never, 'file')} never checked so far"
    if not s.never and s.oldest_ns is not None:
        past = f"the least recent check of all was {span(now - s.oldest_ns / 1e9)} ago"
    read = f"{size(s.bytes_read)} of {size(s.bytes)}, {plural(s.files_read, 'file')} of {s.files:,}"
    return f"contents: {read} to the end{' (time was up)' if s.stopped else ''}; {past}"
