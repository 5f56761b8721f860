"""What only the caller can answer about a candidate that would be used otherwise: each raises UsageError."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from shlex import quote

from ckpt_tools.discovery import completeness
from ckpt_tools.discovery.exclude import either
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import CODES
from ckpt_tools.formats.pickles import unlisted
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Assignment
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_RANK = re.compile(r"(?<![A-Za-z])rank[^A-Za-z0-9]*([0-9]+)", re.IGNORECASE)
_DIGITS = re.compile("[0-9]+")


def require_groups(c: Checkpoint, assignment: Assignment) -> None:
    """Whose state ranks need that have neither a file nor a replica group."""
    if not assignment.groupless:
        return
    texts = (f.message for f in assignment.findings if f.code == "replica-groups-needed")
    raise UsageError(
        f"{'; '.join(texts)} ({c.path})", CODES["replica-groups-needed"].hint, rule="save/groups-needed"
    )


def require_trust(parts: Sequence[Part], session: Session) -> None:
    """Whose code a file names that its framework would unpickle unasked, where no list has the name."""
    for part in parts:
        report = session.known(part)
        if any(f.code == "unknown-global" for f in report.findings):
            raise UsageError(*unlisted.question(part.path, report.unlisted), rule="save/unknown-global")


def require_one_name(c: Checkpoint, session: Session) -> None:
    """Which of two checkpoints is meant, where trackers of equal rank name different ones: what follows each
    of them would load both.
    """
    layout, base = session.layouts.of(c), c.parts[0].base
    if layout.tracker is not None or len(layout.other_trackers) < 2:
        return
    told = {path: said for path, said in session.trackers(layout.name, base) if isinstance(said, int | str)}
    if len({*told.values()}) > 1:
        each = " and ".join(f"{path} names {said}" for path, said in told.items())
        name = layout.tracked(c)
        raise UsageError(
            f"{each}: whoever follows them loads files of both",
            f"write {name} into each of them to resume from {completeness.label(c)}:"
            f" printf %s {quote(str(name))} | tee {' '.join(map(quote, told))}",
        )


def require_no_share(c: Checkpoint, loaded: Sequence[Part], session: Session) -> None:
    """Whose share of a save a file is, where its name tells a rank and those beside it tell others: without a
    layout that gives each rank its own, one rank's would be loaded by all.
    """
    if not session.layouts.of(c).last_resort:
        return
    ranks = defaultdict[str, set[str]](set)
    for p in session.parts:
        if (p.layout, p.run) == (c.layout, c.run) and (said := _RANK.search(p.name)):
            ranks[_DIGITS.sub("", p.name)].add(said[1])
    share = next((p for p in loaded if len(ranks.get(_DIGITS.sub("", p.name), ())) > 1), None)
    if share is not None:
        raise UsageError(
            f"{share.path} of {completeness.label(c)} is called as the share of one rank, and no layout says"
            " which rank loads which file",
            f"'ckpt layouts --guess {quote(session.root)}' writes a layout that gives each rank its own",
            rule="choice/unplaced-newer",
        )


def require_one_model(
    c: Checkpoint, loaded: Sequence[Part], bad: Collection[str], session: Session, level: Level
) -> Iterator[Finding]:
    """Which of several files of one step is meant, where one is loaded and another is no copy of it. Weights
    alone beside a whole state are no other one: they may be smoothed, and are named otherwise inside. One
    that is damaged is told of: what is loaded is not.
    """
    pairs = _pair_with_loaded(c, loaded, bad, session)
    if not pairs:
        return
    from ckpt_tools.crosscheck.pages import of_other_models  # most checkpoints have one file of each role
    from ckpt_tools.reading.held_state import has_optimizer

    def is_state(p: Part) -> bool:
        return has_optimizer(*session.inspect(p.path, Level.STRUCTURE))

    for mine, p in pairs:
        if is_state(mine) != is_state(p) or not of_other_models(mine, p, session):
            continue
        damage = [f for f in session.report(p, level).findings if f.severity is Severity.ERROR]
        yield from (replace(f, path=f.path or p.path, severity=Severity.WARNING) for f in damage)
        if not damage:
            raise _which_model(c, mine, p, session.root)


def _pair_with_loaded(
    c: Checkpoint, loaded: Sequence[Part], bad: Collection[str], session: Session
) -> list[tuple[Part, Part]]:
    """Return each loaded file with every other one of its role and rank, if a save has one such alone."""
    single = defaultdict[tuple[object, ...], list[Part]](list)
    for p in c.parts:
        if p.path not in bad and session.layouts.piece_of(p).single:
            single[p.role, p.rank, p.coords].append(p)
    of_loaded = [(m, single.get((m.role, m.rank, m.coords), [])) for m in loaded]
    return [(m, p) for m, same in of_loaded if m in same for p in same if p is not m]


def _which_model(c: Checkpoint, mine: Part, other: Part, root: str) -> UsageError:
    text = (
        f"{mine.path} and {other.path} are of {completeness.label(c)}, and hold other weights than each other"
    )
    one, two = (replace(c, path=p.path, parts=(p,)) for p in (mine, other))
    return UsageError(
        f"{text}: nothing tells which is meant", either(root, one, two), rule="order/same-step-twice"
    )
