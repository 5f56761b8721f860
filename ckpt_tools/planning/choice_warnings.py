"""Warnings about a choice whose files are sound, and questions that only the caller can answer."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from msgspec.structs import replace

from ckpt_tools.discovery.completeness import name_kind
from ckpt_tools.discovery.exclude import hint_choice
from ckpt_tools.discovery.unrecognised import is_other
from ckpt_tools.formats.common.held import find_state
from ckpt_tools.formats.pickles import stubs
from ckpt_tools.layouts import Changes
from ckpt_tools.layouts.common.lost_files import Holds, get_holds, is_weights_alone, weights_of_a_trainer
from ckpt_tools.layouts.files import are_of_one_convention
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.equal_files import are_other_models, digest_pages
from ckpt_tools.planning.rules.choice import below_level, export_newer, tracker_stale, unplaced_newer
from ckpt_tools.planning.rules.rule import Hit, error_of, finding_of, make_finding
from ckpt_tools.planning.rules.save import missing_part, mixed_counters, step_mismatch, unknown_global
from ckpt_tools.planning.trackers import find_numbers, get_time_written, is_called_alike, make_pattern
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.retry import exists, is_link, status
from ckpt_tools.storage.stalls import run_aside
from ckpt_tools.storage.urls import is_url, real_path

_LINKED = 64
"""How many files at most are asked whether they are links: if a save was made of links, all are."""


def find_below_level(parts: Sequence[Part], s: Session, selection: Selection) -> list[Part]:
    """Return files that were read less deeply than --level asks. Empty marker files do not count."""
    return [p for p in parts if p.size and s.known(p).level < selection.level]


def describe_state(parts: Sequence[Part], s: Session) -> str:
    """Return which states the loaded files hold (weights, optimizer); "" if their formats do not tell."""
    own = (p for p in parts if s.layouts.piece_of(p).loaded)
    return find_state([("model" if (get_holds(p) or Holds()).weights else p.role, s.known(p)) for p in own])


def find_warnings_of_files(parts: Sequence[Part], s: Session) -> Iterator[Finding]:
    """Yield the warnings in the reports on files, with their paths."""
    for p in parts:
        found = (f for f in s.known(p).findings if f.severity is Severity.WARNING)
        yield from (f.at(p.path) for f in found)


def find_unread(parts: Sequence[Part], s: Session, selection: Selection) -> Iterator[Finding]:
    """Yield warnings about files that were not read as --level asks, for want of budget or format."""
    level, not_read, root = selection.level, s.reader.unread, s.root
    if unread := [p for p in parts if p.path in not_read]:
        size = sum(p.size for p in unread)
        files = f"{len(unread)} of the {len(parts)} files to load, {size:,} bytes,"
        yield below_level.describe_budget(files, level, root, selection.budget)
    if others := [p for p in find_below_level(parts, s, selection) if p.path not in not_read]:
        yield below_level.describe_shallow(len(others), level, root)


# ---- links


def find_odd_links(s: Session, c: Checkpoint, step: int | None) -> Iterator[Finding]:
    """Yield links that lead nowhere and may have been newer, and links to directories of other saves."""
    for path in s.found.dangling:
        name = os.path.basename(path)
        is_no_save = name == s.layouts.of(c).tracker.file or is_other(name)
        if not is_no_save and (get_time_written(path) >= c.mtime_ns or is_called_alike(path, c)):
            yield missing_part.describe_lost_link(path)
    directories = dict(chain(*((links.inside | links.outside).items() for links in s.found.links)))
    own_numbers = [n for n in (step, c.step, c.epoch) if n is not None]
    for path, to in sorted(directories.items()):
        # an earlier save lies where a later one was, or belongs
        if _are_two_saves(path, to) and max(find_numbers(path)) >= max(own_numbers, default=0):
            yield step_mismatch.describe_led_elsewhere(path, os.path.basename(to))
    files = [p.path for p in c.parts[:_LINKED] if not is_url(p.path) and is_link(p.path)]
    yield from _find_links_to_other_saves(files, own_numbers)


def _find_links_to_other_saves(files: Iterable[str], own_numbers: Collection[int]) -> Iterator[Finding]:
    """Yield findings on files of the choice that are links into another save, by name or directory."""
    for path in files:
        to = real_path(path)
        mine, theirs = path.split("/"), to.split("/")
        while mine and theirs and mine[-1] == theirs[-1]:
            mine, theirs = mine[:-1], theirs[:-1]
        are_two = mine and theirs and _are_two_saves(mine[-1], theirs[-1])
        if are_two and not {*find_numbers(mine[-1])}.isdisjoint(own_numbers):  # else of ranks or parts
            yield step_mismatch.describe_led_elsewhere(path, "/".join(to.split("/")[len(theirs) - 1 :]))


def are_one_file(c: Checkpoint, other: Checkpoint, s: Session) -> bool:
    """Return True if both are one file under two names: a link, or a copy as far as pages were read."""
    if len(c.parts) != 1 or len(other.parts) != 1 or is_url(s.root):
        return False
    one, two = c.parts[0], other.parts[0]
    with suppress(OSError):
        if os.path.samestat(status(one.path), status(two.path)):
            return True
    digests = digest_pages([one], [two], s, {})
    return digests.get(one.path, b"") == digests.get(two.path)


def find_linked_runs(runs: Mapping[tuple[str, str], Sequence[Checkpoint]]) -> set[tuple[str, str]]:
    """Return runs whose every file is a link to a file of another run (``wandb/run-1/files/model.pt``)."""
    paths = {run: [p.path for c in saves for p in c.parts] for run, saves in runs.items()}
    links = {run for run in runs if all(map(is_link, paths[run]))}
    targets = {real_path(path) for run in runs.keys() - links for path in paths[run] if links}
    return {run for run in links if targets.issuperset(map(real_path, paths[run]))}


def _are_two_saves(name: str, other: str) -> bool:
    """Return True if two names differ in their numbers alone."""
    return make_pattern(name) == make_pattern(other) and find_numbers(name) != find_numbers(other)


# ---- state beside the weights


def find_odd_companions(s: Session, c: Checkpoint, saves: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Yield warnings about companion files, of another save or of none, which a loop would load."""
    others = [o for o in saves if o.key != c.key and (o.layout, o.run) == (c.layout, c.run)]
    yield from _find_foreign_companions(s, c, others)
    if others and all(map(is_weights_alone, others)):  # a lone save's layout says it
        yield from map(make_finding, weights_of_a_trainer(c, ()))


def _find_foreign_companions(s: Session, c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Yield a warning for each rolling file of another save, or of none, whose role the choice lacks."""
    mine = {p.role for p in c.parts}
    for o in others:
        rolling = [p for p in o.parts if s.layouts.piece_of(p).changes is Changes.ROLLING]
        for p in rolling if len(rolling) < len(o.parts) else ():  # rolling files alone are a save
            if p.role not in mine:
                yield export_newer.describe_companion(p, f"it is of {name_kind(o)}")
    for p in s.companions:
        is_of_run = (p.layout, p.run) == (c.layout, c.run) and s.layouts.piece_of(p).loaded
        if is_of_run and p.role not in mine:
            damaged = s.report_file(p.path, Level.STRUCTURE).verdict is Verdict.BROKEN
            why = "it is damaged" if damaged else "nothing says which save it is of"
            yield export_newer.describe_companion(p, why)


# ---- the best save of the run, as the choice names it: its framework loads it when training ends


def find_named_as_best(s: Session, c: Checkpoint) -> dict[str, str]:
    """Return paths of best saves that the checkpoint's files name, each with the file that names it."""
    entry, found = s.layouts.of(c).beside.best, dict[str, str]()
    for part in [p for p in c.parts if s.layouts.piece_of(p).loaded] if entry else ():
        metadata = s.report(part, Level.STRUCTURE).metadata
        paths = (value for key, value in metadata.items() if key.partition(":")[0] == entry)
        found |= {path.rstrip("/"): part.path for path in paths if isinstance(path, str) and path}
    return found


def find_lost_best(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Yield a note for each best save that the checkpoint names and that does not exist."""
    above = os.path.dirname(c.path)
    for best, by in find_named_as_best(s, c).items():
        beside, is_absolute = os.path.join(above, os.path.basename(best)), os.path.isabs(best)
        try:
            is_beside = beside == c.path or exists(beside)
            # the path means a save beside the checkpoint, or the checkpoint itself
            has_moved = is_absolute and beside != c.path and not is_url(beside)
            is_meant = is_beside and (not has_moved or os.path.dirname(best) in (above, real_path(above)))
            if is_meant or (is_absolute and run_aside(exists, best)):
                continue
        except OSError:
            continue  # no loaded file depends on it
        hit = tracker_stale.describe_lost_best(s.layouts.of(c).beside.best, best, by, beside=is_beside)
        yield finding_of(tracker_stale.RULE, hit)


_RANK = re.compile(r"(?<![A-Za-z])rank[^A-Za-z0-9]*([0-9]+)", re.IGNORECASE)
_DIGITS = re.compile("[0-9]+")


def require_trust(parts: Sequence[Part], session: Session) -> None:
    """Raise UsageError if a pickle names code that no list has: its framework would run it unasked."""
    for part in parts:
        report = session.known(part)
        if any(f.code == "unknown-global" for f in report.findings):
            hit = Hit(part.path, *stubs.ask_about(part.path, report.unlisted))
            raise error_of(unknown_global.RULE, hit)


def require_one_name(c: Checkpoint, session: Session) -> None:
    """Raise UsageError if trackers of equal rank name different checkpoints: a job would load both."""
    layout, base = session.layouts.of(c), c.parts[0].base
    if not layout.tracker.file and len(layout.tracker.others) > 1:
        read = session.trackers(layout.name, base)
        targets = {path: target for path, target in read if isinstance(target, int | str)}
        if len({*targets.values()}) > 1:
            raise tracker_stale.ask_which_is_meant(c, layout.tracker.name(c), targets)


def require_no_rank_share(c: Checkpoint, loaded: Sequence[Part], session: Session) -> None:
    """Raise UsageError if a loaded file without a layout is one rank's share: all ranks would load it."""
    if not session.layouts.of(c).is_last_resort:
        return
    ranks = defaultdict[str, set[str]](set)
    for p in session.parts:
        if (p.layout, p.run) == (c.layout, c.run) and (rank := _RANK.search(p.name)):
            ranks[_DIGITS.sub("", p.name)].add(rank[1])
    for p in loaded:
        if len(ranks.get(_DIGITS.sub("", p.name), ())) > 1:
            raise unplaced_newer.ask_for_rank_layout(c, p.path, session.root)


def require_one_model(
    c: Checkpoint, loaded: Sequence[Part], bad: Collection[str], session: Session, level: Level
) -> Iterator[Finding]:
    """Yield errors of other files of the step, as warnings: what is loaded is sound. Raises UsageError if a
    sound one holds another model than the loaded file. Weights alone beside a whole state do not count: they
    may be smoothed, and have other tensor names. Two whole states of one step that a free word in the name
    tells apart may be of two jobs if they have the same tensors.
    """
    good = [p for p in c.parts if p.path not in bad and session.layouts.piece_of(p).readers.single]
    for mine, p in _find_pairs(loaded, good, session):
        apart = mine.role != p.role
        if apart and not are_of_one_convention(mine, p):
            continue
        if not are_other_models(mine, p, session, same_tensors=apart):
            continue
        damage = [f for f in session.report(p, level).findings if f.is_error]
        yield from (replace(f.at(p.path), severity=Severity.WARNING) for f in damage)
        if not damage:
            one, two = (replace(c, path=x.path, parts=(x,)) for x in (mine, p))
            hint = hint_choice(session.root, one, two)
            raise mixed_counters.ask_which_is_meant(c, mine.path, p.path, hint)


def _find_pairs(
    loaded: Sequence[Part], good: Sequence[Part], session: Session
) -> Iterator[tuple[Part, Part]]:
    """Yield pairs of a loaded and another good file of one rank: two whole states, or two of one role."""
    alike, done = defaultdict[tuple[object, ...], list[Part]](list), set[str]()

    def identify(p: Part) -> tuple[object, ...]:
        is_state = session.known(p).held.optimizer
        return is_state, "" if is_state else p.role, p.rank, p.coords

    for p in good:
        alike[identify(p)].append(p)
    for mine in loaded:
        same = alike.get(identify(mine), [])
        done.add(mine.path)
        yield from ((mine, p) for p in same if p.path not in done and mine in same)
