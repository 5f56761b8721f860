"""What only the caller can answer about a candidate that would be used otherwise: each raises CkptError."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.discovery.exclude import either
from ckpt_tools.formats.pickles import unlisted
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.planning.equal_files import are_other_models
from ckpt_tools.planning.rules.choice import tracker_stale, unplaced_newer
from ckpt_tools.planning.rules.save import mixed_counters, unknown_global
from ckpt_tools.reading.session import Session

_RANK = re.compile(r"(?<![A-Za-z])rank[^A-Za-z0-9]*([0-9]+)", re.IGNORECASE)
_DIGITS = re.compile("[0-9]+")


def require_trust(parts: Sequence[Part], session: Session) -> None:
    """Whose code a file names that its framework would unpickle unasked, where no list has the name."""
    for part in parts:
        report = session.known(part)
        if any(f.code == "unknown-global" for f in report.findings):
            raise unknown_global.ask(part.path, *unlisted.question(part.path, report.unlisted))


def require_one_name(c: Checkpoint, session: Session) -> None:
    """Raise if trackers of equal rank name different checkpoints: a job would load both."""
    layout, base = session.layouts.of(c), c.parts[0].base
    if not layout.tracker.file and len(layout.tracker.others) > 1:
        said = session.trackers(layout.name, base)
        told = {path: says for path, says in said if isinstance(says, int | str)}
        if len({*told.values()}) > 1:
            raise tracker_stale.ask_which_is_meant(c, layout.tracker.name(c), told)


def require_no_share(c: Checkpoint, loaded: Sequence[Part], session: Session) -> None:
    """Raise if a loaded file is one rank's share: without a layout all ranks would load it."""
    if not session.layouts.of(c).is_last_resort:
        return
    ranks = defaultdict[str, set[str]](set)
    for p in session.parts:
        if (p.layout, p.run) == (c.layout, c.run) and (said := _RANK.search(p.name)):
            ranks[_DIGITS.sub("", p.name)].add(said[1])
    for p in loaded:
        if len(ranks.get(_DIGITS.sub("", p.name), ())) > 1:
            raise unplaced_newer.ask_whose_share(c, p.path, session.root)


def require_one_model(
    c: Checkpoint, loaded: Sequence[Part], bad: Collection[str], session: Session, level: Level
) -> Iterator[Finding]:
    """Which of several files of one step is meant, where one is loaded and another is no copy of it. Weights
    alone beside a whole state are no other one: they may be smoothed, and are named otherwise inside. One
    that is damaged is told of: what is loaded is not.
    """

    def is_state(p: Part) -> bool:
        return session.known(p).held.optimizer

    good = [p for p in c.parts if p.path not in bad and session.layouts.piece_of(p).readers.single]
    for mine, p in _pair(loaded, good):
        if is_state(mine) != is_state(p) or not are_other_models(mine, p, session):
            continue
        damage = [f for f in session.report(p, level).findings if f.is_error]
        yield from (replace(f.at(p.path), severity=Severity.WARNING) for f in damage)
        if not damage:
            one, two = (replace(c, path=x.path, parts=(x,)) for x in (mine, p))
            raise mixed_counters.ask_which_is_meant(c, mine.path, p.path, either(session.root, one, two))


def _pair(loaded: Sequence[Part], good: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
    """Yield each loaded file with every other good one of its role, rank and place."""
    alike = defaultdict[tuple[object, ...], list[Part]](list)
    for p in good:
        alike[p.role, p.rank, p.coords].append(p)
    for mine in loaded:
        same = alike.get((mine.role, mine.rank, mine.coords), [])
        yield from ((mine, p) for p in same if p is not mine and mine in same)
