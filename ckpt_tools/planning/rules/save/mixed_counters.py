"""``save/mixed-counters``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from ckpt_tools.discovery.completeness import Expected, find_left_over, name_kind, name_place
from ckpt_tools.errors import CkptError
from ckpt_tools.layouts import Changes, Layout, as_int
from ckpt_tools.layouts.common.counters import SHARED
from ckpt_tools.layouts.common.lost_files import get_holds
from ckpt_tools.layouts.common.saved_by import read_sizes
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind, Part, were_written_together
from ckpt_tools.model.report import Report
from ckpt_tools.planning.facts import SavesFacts
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of

_SIZES = ("world", "tp", "pp")
"""Sizes that all files of a job tell alike."""


def check(facts: SavesFacts) -> Iterator[Hit]:
    """Yield files of one save that several jobs, or several attempts of one job, wrote."""
    run = facts.expected
    for c in facts.saves:
        layout = facts.layouts.of(c)
        yield from _find_unlike_counters(c.parts, facts.reports)
        saved_again = run.saved[c.epoch, c.step, c.step_in_epoch] > 1
        if doubt := bool(saved_again and c.generation and layout.counting.restarts):
            # a rank that died before its first save counts one restart less
            doubt = len({max(f.restarts for f in files) for files in run.rank_files(c.kind).values()}) > 1
        yield from _find_restarts(c, run.checkpoints, layout, doubt)
        if not c.unfinished and not layout.complete.by_name:
            yield from _find_two_forms(c, layout)
        if c.kind is Kind.PERIODIC and not c.unfinished:
            yield from _find_two_times(c, run.checkpoints, layout)


def _find_unlike_counters(parts: Sequence[Part], reports: Mapping[str, Report]) -> Iterator[Hit]:
    """Yield files whose shared counter, or job size, differs from most; all files if no value has most."""
    by_counter: dict[tuple[str, str], dict[int, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for p in parts:
        if report := reports.get(p.path):
            for piece, counter, n in _find_counters(p, report):
                by_counter[piece, counter][n].append(p)
    for (_, counter), values in by_counter.items():
        if len(values) < 2:
            continue
        (usual, most), (second, next_most) = Counter({n: len(ps) for n, ps in values.items()}).most_common(2)
        for n, odd in values.items():
            other = second if n == usual else usual
            text = f"its {counter} is {n}, that of other files of its checkpoint {other}"
            text += ": two attempts wrote them"
            for p in odd if n != usual or most == next_most else ():
                yield Hit(p.path, text, severity=Severity.ERROR, code="mixed-attempts", of_file=True)


def _find_counters(p: Part, report: Report) -> Iterator[tuple[str, str, int]]:
    """Yield (piece, counter, value) of a file; "" as the piece if all files of the save share the value."""
    sizes = read_sizes([report]) if p.home and p.coords and report.format else {}
    yield from (("", f"{axis} size", sizes.get(axis, 1)) for axis in (_SIZES if "world" in sizes else ()))
    doubtful = any(f.code in ("step-mismatch", "epoch-mismatch") for f in report.findings)
    if report.verdict is not Verdict.BROKEN and not doubtful:
        for key, value in report.metadata.items():
            if key.rpartition(".")[2] in SHARED and (n := as_int(value)) is not None:
                yield p.piece, key, n


def _find_restarts(c: Checkpoint, others: Sequence[Checkpoint], layout: Layout, doubt: bool) -> Iterator[Hit]:
    """Yield that files count different restarts, or may (``doubt``); a note if written together."""
    alike = len({p.generation for p in c.parts}) < 2
    are_copies = all(layout.piece(p.piece).readers.single for p in c.parts)
    if are_copies or (alike and not doubt):
        return
    times = sorted(p.mtime_ns for p in c.parts)
    spread = times[-1] - times[0]
    distances = (abs(o.mtime_ns - c.mtime_ns) for o in others if o.key != c.key and not o.unfinished)
    written_together = spread < min(distances, default=0) or (alike and not spread)
    if not (alike and written_together):
        severity = Severity.NOTE if written_together else Severity.WARNING
        yield Hit(c.path, f"{name_kind(c)} mixes files of different restarts", severity=severity)


def _find_two_times(c: Checkpoint, others: Sequence[Checkpoint], layout: Layout) -> Iterator[Hit]:
    """Yield that files were saved further apart than the files of the save before, and (but for a model and
    its optimizer) than this save and that one: two attempts at one step leave files of both.
    """
    files = _list_renewed_files(c, layout)
    if were_written_together(*files):
        return
    first, last = files[0], files[-1]
    saves = (o for o in others if (o.layout, o.run, o.kind) == (c.layout, c.run, c.kind))
    older = [o for o in saves if o.mtime_ns < c.mtime_ns]
    before = _list_renewed_files(max(older, key=attrgetter("mtime_ns")), layout) if older else []
    halves = {held[:2] for p in files if (held := get_holds(p))}  # (holds weights, holds an optimizer)
    is_pair = halves >= {(True, False), (False, True)}
    since = first.mtime_ns - before[-1].mtime_ns if before and not is_pair else int(is_pair)
    took = before[-1].mtime_ns - before[0].mtime_ns if before else 0
    spread = last.mtime_ns - first.mtime_ns
    if 0 < since < spread > 3 * took:  # a save may take longer than the one before it
        text = (
            f"{name_kind(c)} was written at two times: {last.name} {spread // 10**9:,} s after {first.name}"
        )
        yield Hit(c.path, text, "", Severity.WARNING, Effect.WARN, "mixed-attempts")


def _list_renewed_files(c: Checkpoint, layout: Layout) -> list[Part]:
    """Return the states that every save writes anew (else all states), the last written at the end."""
    states = [p for p in c.parts if p.size >= 0 and p.role not in ("config", "index")]
    not_renewed = Changes.CONSTANT, Changes.ROLLING
    renewed = [p for p in states if layout.piece(p.piece).changes not in not_renewed]
    return sorted(renewed or states, key=attrgetter("mtime_ns"))


def _find_two_forms(checkpoint: Checkpoint, layout: Layout) -> Iterator[Hit]:
    """Yield that a save has pieces of which a save writes only one: another run's files are among them."""
    present = {p.piece for p in checkpoint.parts}
    for group in layout.complete.one_of:
        if len(forms := [name for name in group if name in present]) > 1:
            names = [min(p.name for p in checkpoint.parts if p.piece == form) for form in forms]
            text = f"{name_kind(checkpoint)} has {' and '.join(names)}, of which a save writes only one"
            yield Hit(name_place(checkpoint), text, severity=Severity.ERROR, code="mixed-attempts")


def find_leftovers(c: Checkpoint, run: Expected) -> Iterator[Finding]:
    """Yield that a save's directory has files of a larger job, by the sizes that its files tell."""
    has_ranks = any(axis == "dp" for p in c.parts for axis, _ in p.coords)
    sizes = run.sizes_in_files(c) if has_ranks else {}
    if lost := find_left_over(c, run.layouts.of(c), sizes):
        of = ranges.words(ranges.ranges({dict(p.coords)["dp"] for p in lost}))
        job = f"its files say that there were {sizes['dp']} data parallel ranks"
        text = f"{job}: the {lost[0].role} files of ranks {of} are left over from a larger job"
        hint = "no rank loads them; what counts the files of a save stumbles over them: move them away"
        yield finding_of(RULE, Hit(name_place(c), text, hint, code="mixed-attempts"))


def ask_which_is_meant(c: Checkpoint, path: str, other: str, hint: str) -> CkptError:
    """Return the question which of two files of one save to load, as they hold different weights."""
    text = f"{path} and {other} are of {name_kind(c)}, and hold other weights than each other"
    return error_of(RULE, Hit(path, f"{text}: nothing says which is meant", hint))


RULE = Rule(
    id="save/mixed-counters",
    codes=("generation-mismatch", "mixed-attempts"),
    effect=Effect.ASK,
    answer="restore the files of one attempt, or --exclude this save",
    check=check,
    why="""\
Files of one save disagree on counters that all of them share, or on how often the job was
restarted. Two attempts to save the same step were mixed. Where both hold a whole model, which of them is
meant is not written anywhere, and it is a question. Files that were written further apart than the save
is from the one before it may be of two attempts, too: a warning.
For: deepspeedai/DeepSpeed#1793: a directory that a job of one rank saved over;
a run that was rolled back and saved the step again under another name.
""",
)
