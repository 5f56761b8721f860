"""Warnings about a choice of which no file is damaged: clocks, orders that disagree, saves that never
finished, files that were looked at less deeply than asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from itertools import chain, dropwhile, islice

from ckpt_tools.discovery import completeness
from ckpt_tools.discovery.group import essential
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import WAIT, finding
from ckpt_tools.layouts import Layout, Layouts
from ckpt_tools.layouts.common.bare_names import BareName, read_bare_name
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint, comparable
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Choice
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import newest
from ckpt_tools.planning.choose import rank, saved
from ckpt_tools.planning.newest import Saved, Times, Witnesses
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.urls import is_url

_SKEW_NS = 5_000_000_000
_PAUSE_NS = 500_000_000
"""A job that starts again takes longer than that, a copy from one small file to the next does not."""
_TIMES_OF_UPLOADS = "a store has the times of the uploads; say --order step if the highest step is meant"
_CLOCKS = 3
_SAVES = 5
"""Unfinished saves that have a line of their own, the newest ones; a job that dies in every save leaves
hundreds.
"""


def heads(
    candidates: Sequence[Checkpoint], run: completeness.Expected, prefer: Kind | None = None
) -> tuple[Checkpoint, Checkpoint]:
    """The first complete checkpoint by modification time, and the first by step."""
    known = [c for c in candidates if c.order != newest.UNKNOWN] or candidates
    by_mtime, by_step = (_first(known, order, run, prefer) for order in ("mtime", "step"))
    return by_mtime, by_step


def times_of(candidates: Sequence[Checkpoint], now: int, layouts: Layouts) -> Times:
    """What the modification times of checkpoints look like. A release is no save of the run."""
    saves = [c for c in candidates if c.kind is not Kind.RELEASE]
    at = saved(saves)
    saves = [c for c in saves if c.kind is not Kind.BEST or at(c) == c.mtime_ns]  # no copies made later
    one_time_each = [Saved(c.order, c.path, c.mtime_ns, c.mtime_ns, c.mtime_ns) for c in saves]
    times = newest.times(one_time_each, now)
    if times is Times.IN_STEP or times.mute:  # nearly always that is enough
        return times
    return newest.times([_saved(c, layouts.of(c)) for c in saves], now)


def _saved(c: Checkpoint, layout: Layout) -> Saved:
    parts = [p for p in essential(c.parts, layout) if p.size >= 0]
    written = [p.mtime_ns for p in parts] or [c.mtime_ns]
    return Saved(
        c.order,
        min(p.path for p in c.parts),
        c.mtime_ns,
        min(written),
        max(written),
        c.kind is Kind.DYING_GASP,
        _PAUSE_NS + 10 * max((p.size for p in parts), default=0),  # one file is written, at 100 MB/s
    )


def witnesses(
    session: Session, times: Times, by_mtime: Checkpoint, by_step: Checkpoint, log: str | None = None
) -> Witnesses:
    """What speaks for the newest by time, and what for the one of the highest step; ``log`` is what earlier
    starts say.
    """
    return Witnesses(
        times="mtime" if times.speaks else None,
        proven=times.believed,
        generations=_later(by_mtime.restarts, by_step.restarts),
        tracker=_tracker(session, by_mtime, by_step),
        log=log,
    )


def _later(by_mtime: int, by_step: int) -> str | None:
    """Which of two numbers is the higher, None where they are equal."""
    if by_mtime == by_step:
        return None
    return "mtime" if by_mtime > by_step else "step"


def _tracker(session: Session, by_mtime: Checkpoint, by_step: Checkpoint) -> str | None:
    """What its framework calls the newest: the tracker names it, or it holds what every save renews.

    A job that dies renews neither: that they name the save before says nothing about its own.
    """
    if _named(session, by_mtime):
        return None if by_step.kind is Kind.DYING_GASP else "mtime"
    return "step" if _named(session, by_step) else None


def _named(session: Session, c: Checkpoint) -> bool:
    layout = session.layouts.of(c)
    tracker = session.tracker(c.layout, c.parts[0].base) if c.parts else None
    latest = tracker[1] if tracker else None
    named = not isinstance(latest, Finding) and layout.is_tracked(c, latest)
    return named or any(p.piece == layout.renewed for p in c.parts)


def disagreement(session: Session, by_mtime: Checkpoint, by_step: Checkpoint) -> Finding:
    """That time and step name different checkpoints."""
    text = f"newest by time is {completeness.label(by_mtime)}, by step {completeness.label(by_step)}"
    tracker = session.tracker(by_step.layout, by_step.parts[0].base)
    if tracker is not None and not isinstance(tracker[1], Finding):
        text += f"; the tracker says {tracker[1]}"
    return finding("mtime-disagrees-with-step", text, path=by_mtime.path)


def unlike_times(times: Times, candidates: Sequence[Checkpoint], layouts: Layouts) -> Iterator[Finding]:
    """That the times of all checkpoints tell nothing, or something else than the dates in their names."""
    layout = layouts.of(candidates[0])
    if layout.dated is not None:
        from ckpt_tools.discovery import dates  # of few layouts

        yield from dates.disagreement(candidates, layout)
    if times.mute:
        base = candidates[0].parts[0].base
        yield finding(
            "mtime-not-kept",
            f"{times.value}: the step decides which is the newest",
            path=base,
            hint=_TIMES_OF_UPLOADS if is_url(base) else "",
        )


def clocks(session: Session, candidates: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Checkpoints of a time that has not come yet."""
    ahead = [c for c in candidates if c.mtime_ns > session.now_ns + _SKEW_NS]
    yield from (
        finding("mtime-in-future", f"{completeness.label(c)} was modified after now", path=c.path)
        for c in ahead[:_CLOCKS]
    )
    if more := ahead[_CLOCKS:]:
        text = f"{len(more):,} more were modified after now: {ranges.names(c.label for c in more)}"
        yield finding("mtime-in-future", text, path=session.root)


def passed_over(
    choice: Choice, chosen: Checkpoint, ranked: Sequence[Checkpoint], named: set[str]
) -> Iterator[Finding]:
    """Exports that were written after the choice, unless they lost or are ``named`` already."""
    lost = {r.checkpoint.key for r in choice.rejected}
    for c in ranked:
        known = c.key in lost or not named.isdisjoint((c.path, *(p.path for p in c.parts)))
        if c.kind is Kind.RELEASE is not chosen.kind and c.mtime_ns >= chosen.mtime_ns and not known:
            text = f"it was written no earlier than {chosen.label}, but is an export"
            yield finding("passed-over", text, path=c.path)


def left_out(choice: Choice, save_interval: int | None) -> Iterator[Finding]:
    """The newest of the regular saves that --save-interval leaves out behind an unusable dying gasp."""
    if choice.left_out:
        c, more = choice.left_out[0], len(choice.left_out) - 1
        text = f"--save-interval {save_interval} leaves out {c.label}" + (f" and {more} more" if more else "")
        text += ", not known to be of the last multiple of it before the dying gasp, or of an earlier step"
        yield finding("passed-over", text, path=c.path, severity=Severity.WARNING)


def unplaced(
    chosen: Checkpoint,
    ranked: Sequence[Checkpoint],
    s: Session,
    *,
    ordered: bool,
    same: Callable[[Checkpoint, Checkpoint], bool],
) -> Iterator[Finding]:
    """Those that rank behind the choice and may be later, although nobody was asked; but none that is the
    ``same`` and was written at one time.
    """
    behind = dropwhile(lambda c: c.key != chosen.key, ranked)
    for c in islice(behind, 1, None):
        if c.kind in (Kind.BEST, Kind.RELEASE):
            continue
        text = _maybe_later(c, chosen, s, ordered)
        if not text and _is_of_one_time(c, chosen) and not same(c, chosen):
            text = "it was written at the same time, and no known step orders it: it may be later than"
        if text:
            yield finding("passed-over", f"{text} {chosen.label}", path=c.path, severity=Severity.WARNING)


def _is_of_one_time(c: Checkpoint, chosen: Checkpoint) -> bool:
    return c.mtime_ns == chosen.mtime_ns and not comparable(c.order, chosen.order)


def _maybe_later(c: Checkpoint, chosen: Checkpoint, s: Session, ordered: bool) -> str:
    """Why: of the same step, its name counts a later save; or no step is told, and damage hides it, the name
    has a higher number, or it was written no earlier and the caller has ``ordered`` all. Of damaged ones an
    earlier time shows nothing: the choice may have been touched.
    """
    if comparable(c.order, chosen.order):
        counted = c.order == chosen.order and (c.generation or 0) > (chosen.generation or 0)
        return "it was written no later, but its name counts a save more than" if counted else ""
    if c.mtime_ns < chosen.mtime_ns and all(p.size < 0 for p in c.parts):  # links of no later time
        return ""
    if damage := _damage(c, s):
        return f"it is damaged ({damage}), and nothing tells its step: it may be later than"
    if ordered and c.mtime_ns >= chosen.mtime_ns:
        return "it was written no earlier, and no known step orders it: it may be later than"
    return (
        "it was written earlier, and is called as if it were later than"
        if _is_called_later(c, chosen)
        else ""
    )


def _is_called_later(c: Checkpoint, chosen: Checkpoint) -> bool:
    """Whether the number in a name that tells no step is higher than the step of the choice, or than the
    number in a like name of a choice that tells none: times may be those of a copy.
    """
    said, of_choice = (read_bare_name(o.path.rpartition("/")[2]) for o in (c, chosen))
    number, least = _number(said), chosen.step
    if least is None and said.pattern == of_choice.pattern:
        least = _number(of_choice)
    return number is not None and least is not None and number > least


def _number(said: BareName) -> int | None:
    """What a name counts."""
    return said.number if said.step is None else said.step


def _damage(c: Checkpoint, s: Session) -> str | None:
    """The first that is known to be wrong with its files."""
    read = (s.known(p).findings if p.path in s.reports else p.findings for p in c.parts)
    bad = next((f.code for f in chain(*read) if f.severity is Severity.ERROR), None)
    return bad or next(("empty-file" for p in c.parts if p.size == 0), None)


def newest_in_doubt(
    times: Times, witnesses: Witnesses, by_mtime: Checkpoint, by_step: Checkpoint
) -> UsageError:
    """Which of two checkpoints is the newest, with what each witness says and what answers it."""
    labels = {"mtime": by_mtime.label, "step": by_step.label}
    every = [
        ("the modification times speak", witnesses.times),
        ("the restart counters speak", witnesses.generations),
        ("the tracker speaks", witnesses.tracker),
        ("the log of earlier starts speaks", witnesses.log),
    ]
    speaking = [f"{who} for {labels[order]}" for who, order in every if order is not None]
    why = " and ".join(speaking) if len(speaking) > 1 else times.value
    text = (
        f"which checkpoint is the newest is in doubt ({why}): "
        f"{by_mtime.path} by modification time ({_when(by_mtime)}), "
        f"{by_step.path} by step ({_when(by_step)})"
    )
    hint = (
        f"say --order mtime to resume from {by_mtime.label}, or --order step to resume from {by_step.label}"
    )
    return UsageError(text, hint, rule="order/times-contradict-steps")


def _when(c: Checkpoint) -> str:
    moment = datetime.fromtimestamp(c.mtime_ns // 1_000_000_000, timezone.utc)
    return f"{c.label}, {moment:%Y-%m-%d %H:%M:%S} UTC"


def _first(
    candidates: Sequence[Checkpoint], order: str, run: completeness.Expected, prefer: Kind | None
) -> Checkpoint:
    """The best of the complete ones; where none is, of all."""
    if any(c.kind is not Kind.PERIODIC for c in candidates):
        # those at the same step change the order, so incomplete ones must go first
        complete = [c for c in candidates if _whole(c, run)]
        return rank(complete or candidates, order, prefer)[0]
    ranked = rank(candidates, order, prefer)
    return next((c for c in ranked if not completeness.missing(c, run)), ranked[0])


def _whole(c: Checkpoint, run: completeness.Expected) -> bool:
    """Whether nothing is missing. Of what a dying job saved, other ranks may hold what some lack."""
    missing = completeness.missing(c, run)
    return all(c.kind is Kind.DYING_GASP and f.code == "missing-rank" for f in missing)


def unfinished(
    saves: Sequence[Checkpoint],
    chosen: Checkpoint | None,
    order: str,
    root: str,
    state: Callable[[Checkpoint], str],
    *,
    layouts: Layouts,
    unplaced: Iterable[Checkpoint] = (),
) -> Iterator[Finding]:
    """Saves that would go before the chosen checkpoint had they been finished, or are of a later step, and
    those that are ``unplaced``: nothing tells that they are not.

    All of them where none is chosen. ``order`` is "mtime" or "step", ``state`` says of a save that may still
    be written how far it is.
    """
    doubtful = {c.key for c in unplaced}
    newer = [c for c in saves if chosen is None or c.key in doubtful or _goes_before(c, chosen, order)]
    left = rank(newer, order)
    for c in left[:_SAVES]:
        is_newer = "may be" if c.key in doubtful else "is"
        than = "" if chosen is None else f" {is_newer} newer than the choice, but"
        text = f"{completeness.label(c)}{than} {completeness.why_unfinished(c, layouts.of(c))}"
        text += f": {progress}" if (progress := state(c)) else ""
        hint = WAIT if progress else ""
        yield finding(
            "unfinished-save", text, path=c.parts[0].home or c.path, hint=hint, rule="choice/unfinished-newer"
        )
    if more := left[_SAVES:]:
        text = f"{len(more):,} more saves like these never finished: {ranges.names(c.label for c in more)}"
        yield finding("unfinished-save", text, path=root, rule="choice/unfinished-newer")


def _goes_before(c: Checkpoint, chosen: Checkpoint, order: str) -> bool:
    if c.kind is Kind.RELEASE is not chosen.kind:  # another framework's release/ may be called so
        return c.mtime_ns >= chosen.mtime_ns
    later = c.layout == chosen.layout and c.order > chosen.order
    return later or rank([chosen, c], order)[0] is c


def below_level(parts: Sequence[Part], session: Session, selection: Selection) -> list[Part]:
    """The files that were not looked at as deeply as asked. An empty mark has nothing in it."""
    return [p for p in parts if p.size and session.known(p).level < selection.level]


def of_files(parts: Sequence[Part], session: Session) -> Iterator[Finding]:
    """What their own reports warn of."""
    for p in parts:
        for f in session.known(p).findings:
            if f.severity is Severity.WARNING:
                yield replace(f, path=f.path or p.path)


def of_depth(parts: Sequence[Part], session: Session, selection: Selection) -> Iterator[Finding]:
    """What the level or the budget left out."""
    level, not_read = selection.level, session.reader.unread
    unread = [p for p in parts if p.path in not_read]
    if unread:
        size = sum(p.size for p in unread)
        files = f"{len(unread)} of the {len(parts)} files to load, {size:,} bytes,"
        over = f"the budget of {selection.budget:g} s was over"
        text = f"{over} before {files} were read as deeply as --level {level} asks"
        yield finding("budget-spent", text, path=session.root)
    others = [p for p in below_level(parts, session, selection) if p.path not in not_read]
    if others:
        text = f"{len(others)} files were looked at less deeply than --level {level}"
        yield finding("below-level", text, path=session.root)
