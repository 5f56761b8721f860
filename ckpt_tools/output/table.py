"""Results -> tables for people: by rich on a terminal, in plain columns (which cost no import) into a file or
a pipe.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ckpt_tools.findings import CODES
from ckpt_tools.model.answers import Sample, Scan, Verification
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.plan import FileLoad, LoadPlan
from ckpt_tools.model.report import Guard, Report
from ckpt_tools.output.json import COUNTS
from ckpt_tools.output.words import percent, plural, printable, size, span

if TYPE_CHECKING:
    from rich.console import Console

    from ckpt_tools.formats import Anatomy

FEW = 50
"""Rows up to which a list is shown whole; beyond, only what needs attention, unless --verbose."""

STYLE = {
    "ok": "green",
    "suspect": "yellow",
    "broken": "bold red",
    "unknown": "magenta",
    "note": "cyan",
    "warning": "yellow",
    "error": "bold red",
    "allowed": "green",
    "needs-trust": "yellow",
    "dangerous": "bold red",
}
"""Words that say something about health; all other cells are plain."""


class _Page:
    """Collects text of a known width, with or without colour. Without either nothing is cut, wrapped or
    coloured, and rich is not needed.
    """

    def __init__(self, color: bool, width: int | None) -> None:
        self.file = io.StringIO()
        self.console: Console | None = None
        if color or width is not None:
            from rich.console import Console

            # Markup, emoji and highlighting off: names come from untrusted files.
            self.console = Console(
                file=self.file,
                width=width or 100_000,
                force_terminal=color,
                no_color=not color,
                color_system="standard" if color else None,
                markup=False,
                emoji=False,
                highlight=False,
                legacy_windows=False,
                soft_wrap=width is None,
                force_interactive=False,
                _environ={},
            )

    def text(self, text: str, style: str = "") -> None:
        if self.console is None:
            self.file.write(printable(text) + "\n")
            return
        from rich.text import Text

        self.console.print(Text(printable(text), style=style))

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
        if self.console is None:
            cells = [tuple(headers), *(tuple(printable(cell) for cell in row) for row in rows)]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            for padded in cells:
                line = (
                    cell.rjust(w) if h in right else cell.ljust(w)
                    for cell, w, h in zip(padded, widths, headers, strict=True)
                )
                self.file.write("  ".join(line).rstrip() + "\n")
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
        for header in headers:
            table.add_column(header, justify="right" if header in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell), style=STYLE.get(cell, "")) for cell in row))
        self.console.print(table)

    def findings(self, findings: Sequence[Finding], root: str) -> None:
        """A table of findings, below it what follows from them, and what to do about each code once."""
        if not findings:
            return
        findings = sorted(findings, key=lambda f: -f.severity)  # errors first, else in the order found
        self.text("")
        self.table(
            ("severity", "code", "where", "what"),
            [(str(f.severity), f.code, _where(f, root), f.message) for f in findings if not f.follows],
        )
        for f in findings:
            if f.follows:
                self.text(f"so {f.message}", STYLE[str(f.severity)])
        codes_by_hint: dict[str, dict[str, None]] = {}
        for f in findings:
            if f.hint and not f.follows:
                codes_by_hint.setdefault(f.hint, {})[f.code] = None
        self.text("")
        for hint, codes in codes_by_hint.items():
            self.text(f"hint ({', '.join(codes)}): {hint}", "dim")

    def done(self) -> str:
        return "".join(f"{line.rstrip()}\n" for line in self.file.getvalue().splitlines())


def render(
    result: Verification | LoadPlan | Scan,
    *,
    color: bool = False,
    width: int | None = None,
    verbose: bool = False,
    now: float = 0.0,
) -> str:
    """The table of a result. ``width`` None means no terminal: nothing is wrapped. ``now`` is the time that
    ages are measured from.
    """
    page = _Page(color, width)
    if isinstance(result, Verification):
        _verification(page, result, verbose, now)
    elif isinstance(result, LoadPlan):
        _plan(page, result, verbose)
    else:
        _scan(page, result, verbose, now)
    return page.done()


def catalogue(
    entries: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    *,
    color: bool = False,
    width: int | None = None,
) -> str:
    """What ckpt knows, one entry per row; the members of a list stand below each other."""
    page = _Page(color, width)
    page.table([c.replace("_", " ") for c in columns], [row for e in entries for row in _rows(e, columns)])
    return page.done()


def pages(
    entries: Sequence[Mapping[str, object]],
    fields: Sequence[str],
    *,
    color: bool = False,
    width: int | None = None,
) -> str:
    """What ckpt knows where one row per entry would be too long: the name of each, then its fields below each
    other.
    """
    page = _Page(color, width)
    for entry in entries:
        page.text(str(entry["name"]), "bold")
        for field in fields:
            value = entry[field]
            texts = (
                [", ".join(map(str, value))]
                if field == "suffixes" and isinstance(value, list)
                else value
                if isinstance(value, list)
                else [value]
            )
            for i, text in enumerate(t for t in texts if t):
                page.text(f"  {field if not i else '':<10} {text}")
        page.text("")
    return page.done()


def _rows(entry: Mapping[str, object], columns: Sequence[str]) -> list[list[str]]:
    cells = [
        [str(v) for v in value] if isinstance(value := entry[c], list) else [_show(value)] for c in columns
    ]
    height = max((len(cell) for cell in cells), default=0)
    return [[cell[i] if i < len(cell) else "" for cell in cells] for i in range(height)]


def _show(value: object) -> str:
    return "–" if value is None else str(value)


def _relative(path: str, root: str) -> str:
    """``path`` below ``root`` as a person reads it; as it is when it lies elsewhere."""
    base = root if root.endswith(os.sep) else root + os.sep
    return path[len(base) :] if path.startswith(base) and len(path) > len(base) else path


def _where(f: Finding, root: str) -> str:
    place = _relative(f.path, root)
    return place if f.offset is None else f"{place} at byte {f.offset:,}".lstrip()


def _epoch(c: Checkpoint) -> str:
    return _show(c.epoch) if c.step_in_epoch is None else f"{_show(c.epoch)}_{c.step_in_epoch}"


def _name(c: Checkpoint) -> str:
    """One checkpoint in a few words."""
    return f"{c.label} ({c.kind}, {c.layout})"


# -- ls ------------------------------------------------------------------------------------------------------


def _scan(page: _Page, scan: Scan, verbose: bool, now: float) -> None:
    if scan.checkpoints:
        # knows every layout, which no other table needs
        from ckpt_tools.discovery.completeness import ranks_present
        from ckpt_tools.layouts import BUILT_IN

        layouts = scan.layouts or BUILT_IN

        restarts = (
            len({c.generation for c in scan.checkpoints if c.generation is not None and not c.counted}) > 1
        )
        saves = any(c.counted for c in scan.checkpoints)
        headers = ["step", "epoch", "kind", "layout", "run", "ranks", "files", "size", "age"]
        page.table(
            [
                *headers,
                *(["save"] if saves else []),
                *(["restart"] if restarts else []),
                *(["path"] if verbose else []),
            ],
            [
                [
                    _show(c.step),
                    _epoch(c),
                    f"{c.kind}, unfinished" if c.unfinished else str(c.kind),
                    c.layout,
                    c.run or ".",
                    f"{_show(ranks_present(c, layouts.of(c)))}/{_show(scan.expected.get(c.run))}",
                    f"{len(c.parts):,}",
                    size(sum(max(p.size, 0) for p in c.parts)),
                    span(now - c.mtime_ns / 1e9),
                    *([_show(c.generation if c.counted else None)] if saves else []),
                    *([_show(None if c.counted else c.generation)] if restarts else []),
                    *([c.path] if verbose else []),
                ]
                for c in scan.checkpoints
            ],
            right=("step", "epoch", "ranks", "files", "size", "age"),
        )
    page.findings(scan.findings, scan.root)
    others = [plural(scan.bare, "file") + " of a known format outside any layout"] if scan.bare else []
    others += [plural(scan.unrecognised, "other file")] if scan.unrecognised else []
    others += [_excluded(scan.excluded)] if scan.excluded else []
    page.text("")
    page.text(", ".join([plural(len(scan.checkpoints), "checkpoint"), *others]), "dim")


def _excluded(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'} hidden by --exclude"


# -- verify --------------------------------------------------------------------------------------------------


def _verification(page: _Page, result: Verification, verbose: bool, now: float) -> None:
    s = result.summary
    shown = [
        f for f in result.files if verbose or len(result.files) <= FEW or f.report.verdict is not Verdict.OK
    ]
    if shown:
        page.table(
            ("verdict", "level", "coverage", "size", "format", "file"),
            [
                (
                    str(r.verdict),
                    str(r.level),
                    percent(r.coverage),
                    size(r.size),
                    _show(r.format),
                    _relative(r.path, result.root),
                )
                for r in (f.report for f in shown)
            ],
            right=("coverage", "size"),
        )
    found = [replace(f, path=f.path or e.report.path) for e in result.files for f in e.report.findings]
    # A note changes no verdict; it must not hide the damage, nor fill the screen for a thousand files without
    # a checksum.
    notes = [f for f in found if f.severity.name == "NOTE"]
    worse = [f for f in found if f.severity.name != "NOTE"]
    for entry in result.files:
        _map(page, entry.report, result.root)
    told = verbose or (not worse and len(notes) <= FEW)
    page.findings([*result.findings, *(found if told else worse)], result.root)
    page.text("")
    page.text(f"{result.verdict}: {plural(s.files, 'file')}, {size(s.bytes)}", STYLE[str(result.verdict)])
    counts = [
        f"{n:,} {word}"
        for n, word in ((s.ok, "ok"), (s.suspect, "suspect"), (s.broken, "broken"), (s.unknown, "unknown"))
        if n
    ]
    rate = f" ({size(s.bytes_read / s.seconds)}/s)" if s.seconds > 0.05 else ""
    counts.append(f"{size(s.bytes_read)} read in {s.seconds:.1f} s{rate} at level {result.level}")
    page.text(", ".join(counts), "dim")
    if result.sample:
        page.text(_contents(result.sample, now), "dim")
    rest = (
        [f"{plural(s.below_level, 'file')} could not be looked at as deeply as {result.level}"]
        if s.below_level
        else []
    )
    rest += [f"{plural(s.unrecognised, 'file')} not recognised and not looked at"] if s.unrecognised else []
    hidden = len(result.files) - len(shown)
    rest += [f"{plural(hidden, 'ok file')} not listed (--verbose lists them)"] if hidden else []
    rest += [f"{plural(len(notes), 'note')} not listed (--verbose lists them)"] if notes and not told else []
    for text in rest:
        page.text(text, "dim")


def _contents(s: Sample, now: float) -> str:
    """How much of the contents was read, and what that means for the rest."""
    asked = [f"sample {s.asked}"] if s.asked else []
    if s.max_duration is not None:
        asked.append(f"{'ended after' if s.stopped else 'within'} {span(s.max_duration)}")
    if s.never:
        past = f"{plural(s.never, 'block')} of {s.blocks:,} never checked so far"
    elif s.oldest_ns is not None:
        past = f"the least recent check of all was {span(now - s.oldest_ns / 1e9)} ago"
    else:
        past = "nothing to read"
    return (
        f"contents: {size(s.bytes_read)} of {size(s.bytes)} ({', '.join(asked)}),"
        f" {plural(s.files_read, 'file')} of {s.files:,} to the end; {past}"
    )


def _map(page: _Page, report: Report, root: str) -> None:
    """What each byte of a file is and what protects it; asked for with --explain-bytes."""
    if not report.regions:
        return
    page.text("")
    page.text(_relative(report.path, root), "bold")
    rows = [(f"{r.offset:,}", f"{r.length:,}", str(r.guard), r.what) for r in report.regions]
    page.table(("offset", "bytes", "guard", "what"), rows, right=("offset", "bytes"))
    totals = [(guard, sum(r.length for r in report.regions if r.guard is guard)) for guard in Guard]
    page.text(
        ", ".join(f"{guard}: {n:,} bytes ({percent(n / report.size)})" for guard, n in totals if n), "dim"
    )


# -- plan ----------------------------------------------------------------------------------------------------


def _plan(page: _Page, plan: LoadPlan, verbose: bool) -> None:
    c = plan.checkpoint
    if c is None:
        page.text(
            (
                "no checkpoint: training would start from scratch"
                if not plan.rejected
                else "no usable checkpoint"
            ),
            "bold",
        )
    else:
        page.text(f"resume from {_name(c)}", "bold green")
        facts = [
            ("path", plan.resume.path or c.path),
            ("epoch", _epoch(c) if c.epoch is not None else ""),
            ("run", c.run),
        ]
        facts += [
            ("arguments", " ".join(plan.resume.args)),
            ("environment", " ".join(f"{k}={v}" for k, v in plan.resume.env.items())),
        ]
        sizes = [
            f"{plan.world_size} ranks" if plan.world_size is not None else "",
            f"saved by {plan.saved_world_size}" if plan.saved_world_size is not None else "",
        ]
        facts += [("world", ", ".join(filter(None, sizes)))]
        facts += [
            (
                "topology",
                ", ".join(
                    f"{name}={known.value} ({known.provenance})" for name, known in plan.topology.items()
                ),
            )
        ]
        now = (
            f"{size(plan.bytes_read)} of it now, the rest by earlier runs, "
            if plan.bytes_read < plan.bytes_verified
            else ""
        )
        facts += [
            ("checked", f"{size(plan.bytes_verified)} read, {now}{plural(plan.attempts, 'checkpoint')} tried")
        ]
        for name, value in facts:
            if value:
                page.text(f"  {name}: {value}")
    if plan.excluded:
        page.text(f"  {_excluded(plan.excluded)}")
    if plan.rollback:
        back = plan.rollback
        page.text(
            f"  rollback: from step {back.origin} to {back.target} (save interval {back.save_interval}):"
            f" {back.why}",
            "yellow",
        )
    _loads(page, plan, verbose)
    _candidates(page, plan)


def _loads(page: _Page, plan: LoadPlan, verbose: bool) -> None:
    if not (plan.ranks or plan.shared):
        return
    loads: list[tuple[str, FileLoad]] = [("all", f) for f in plan.shared] + [
        (str(r.rank), f) for r in plan.ranks for f in r.files
    ]
    shown = loads if verbose or len(loads) <= FEW else [(rank, f) for rank, f in loads if f.substituted]
    if shown:
        page.text("")
        page.table(
            ("rank", "role", "level", "coverage", "size", "file", "why"),
            [
                (
                    rank,
                    f.role,
                    str(f.level),
                    percent(f.coverage),
                    size(f.size),
                    _relative(f.path, plan.root),
                    _why(f),
                )
                for rank, f in shown
            ],
            right=("rank", "coverage", "size"),
        )
    if len(shown) < len(loads):
        page.text(f"{len(loads) - len(shown):,} ranks' own files not listed (--verbose lists them)", "dim")


def _why(f: FileLoad) -> str:
    owner = f"file of rank {f.source_rank}" if f.substituted and f.source_rank is not None else ""
    return ": ".join(filter(None, (owner, f.reason)))


def _candidates(page: _Page, plan: LoadPlan) -> None:
    for rejected in plan.rejected:
        page.text("")
        page.text(
            f"not {_name(rejected.checkpoint)}: {_relative(rejected.checkpoint.path, plan.root)}", "yellow"
        )
        page.findings(rejected.findings, plan.root)
    if plan.ahead:
        page.text("")
        page.text(
            "newer than the choice, the resumed job will meet them again:"
            f" {', '.join(map(_name, plan.ahead))}",
            "yellow",
        )
    page.findings(plan.warnings, plan.root)


# -- show, explain -------------------------------------------------------------------------------------------


def shown(
    report: Report,
    anatomy: Anatomy,
    trust: Mapping[str, str],
    *,
    color: bool = False,
    width: int | None = None,
    verbose: bool = False,
) -> str:
    """What ``ckpt show`` prints; ``trust`` says for every pickle global what loading it would mean."""
    page = _Page(color, width)
    page.text(report.path, "bold")
    page.text(
        f"{report.verdict}: {report.format or 'unknown format'}, {size(report.size)}, level {report.level},"
        f" coverage {percent(report.coverage)}",
        STYLE[str(report.verdict)],
    )
    if report.metadata:
        page.text("")
        page.table(("metadata", "value"), [(key, str(value)) for key, value in report.metadata.items()])
    if anatomy.tensors:
        listed = anatomy.tensors if verbose else anatomy.tensors[:FEW]
        page.text("")
        page.table(
            ("tensor", "type", "shape", "size", "offset"),
            [
                (t.name, t.dtype, "×".join(map(str, t.shape)) or "scalar", size(t.nbytes), _show(t.offset))
                for t in listed
            ],
            right=("size", "offset"),
        )
        more = len(anatomy.tensors) - len(listed)
        total = f"{plural(len(anatomy.tensors), 'tensor')}, {size(sum(t.nbytes for t in anatomy.tensors))}"
        page.text(f"{total}{f'; {more:,} not listed (--verbose lists them)' if more else ''}", "dim")
    if report.stats:
        listed_ = report.stats if verbose else report.stats[:FEW]
        page.text("")
        page.table(
            ("numbers of", *COUNTS, "min", "max"),
            [
                (s.name, *(f"{getattr(s, n):,}" for n in COUNTS), _number(s.min), _number(s.max))
                for s in listed_
            ],
            right=(*COUNTS, "min", "max"),
        )
    if anatomy.globals:
        page.text("")
        page.table(
            ("pickle global", "loading it is"),
            [(name, trust.get(name, "unknown")) for name in anatomy.globals],
        )
    page.findings(report.findings, report.path)
    _map(page, report, os.path.dirname(report.path))
    return page.done()


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def explained(code: str, *, color: bool = False, width: int | None = None) -> str:
    """What ``ckpt explain`` prints about a code of the catalogue."""
    c = CODES[code]
    page = _Page(color, width)
    page.text(f"{c.id}: {c.title}", "bold")
    page.text(f"  severity: {c.severity} ({MEANING[str(c.severity)]})", STYLE[str(c.severity)])
    page.text(f"  what to do: {c.hint}")
    page.text(f"  since: {c.since}")
    return page.done()


MEANING = {
    "error": "the file or checkpoint is broken and is never chosen; 'ckpt verify' exits 1",
    "warning": "it is suspect and may be chosen; 'ckpt verify' exits 0, with --strict 1",
    "note": "it stays ok",
}
"""What a severity does."""
