"""Trackers: the files beside checkpoints that name the latest one. Saves that may still be written.

A save that a tracker names was finished. If its files are gone, that is damage: it is neither an unfinished
save nor a first launch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from ckpt_tools.discovery.completeness import name_place
from ckpt_tools.discovery.unrecognised import tells_of_a_state
from ckpt_tools.findings import WAIT
from ckpt_tools.layouts import Layout
from ckpt_tools.layouts.common import templates
from ckpt_tools.layouts.files import read_convention
from ckpt_tools.model.answers import Tracker
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Rejected
from ckpt_tools.planning.rules.choice import tracker_stale
from ckpt_tools.planning.rules.rule import Hit, finding_of
from ckpt_tools.planning.rules.save import missing_part, unfinished
from ckpt_tools.reading.session import Session, Told
from ckpt_tools.storage.retry import is_link, lstat
from ckpt_tools.storage.urls import is_url, real_path


def find_tracker_findings(
    s: Session, saves: Sequence[Checkpoint], incomplete: Callable[[], set[CheckpointKey]]
) -> Iterator[Finding]:
    """Yield findings on trackers beside finished saves; ``incomplete`` (keys) is called if there is one."""
    layout, base = s.layouts.of(saves[0]), saves[0].parts[0].base
    found = list(s.trackers(layout.name, base))
    if not found and layout.tracker.file and layout.tracker.always:
        is_listed = f"{base}/".startswith(f"{s.root}/")  # directories above ROOT are not
        has_numbers = len(saves) > 1 or {saves[0].step, saves[0].epoch, saves[0].generation} != {None}
        if is_listed and has_numbers and not any(find_tracker_of(s, c) for c in saves):
            hit = Hit(base, f"there is no {layout.tracker.file}", code="missing-tracker")
            yield finding_of(tracker_stale.RULE, hit)
    for path, target in found:
        if isinstance(target, Finding):
            yield target
        else:
            written, gaps = get_time_written(path), incomplete()
            hits = tracker_stale.check(path, target, written, layout=layout, saves=saves, incomplete=gaps)
            yield from (finding_of(tracker_stale.RULE, hit) for hit in hits)


def get_time_written(path: str) -> int:
    """Return when a tracker or a link was written, in nanoseconds; 0 if it cannot be asked any more."""
    try:
        return lstat(path).st_mtime_ns
    except OSError:
        return 0


def find_trackers(s: Session, checkpoints: Sequence[Checkpoint]) -> Iterator[Tracker]:
    """Yield each tracker beside these checkpoints, what it says, and which of them it names."""
    seen = set[str]()
    for name, base in dict.fromkeys((c.layout, p.base) for c in checkpoints for p in c.parts[:1]):
        for path, target in s.trackers(name, base):
            if path in seen:
                continue
            seen.add(path)
            says = None if isinstance(target, Finding) else target
            beside = [c for c in checkpoints if c.layout == name and c.parts and c.parts[0].base == base]
            yield Tracker(path, says, None if says is None else _find_target(says, beside, s.layouts[name]))


def find_tracker_of(s: Session, c: Checkpoint) -> str | None:
    """Return the path of a tracker, of any layout, that names a checkpoint; None without one."""
    if any(p.unfinished for p in c.parts):
        return None
    for layout in s.layouts:
        for path, target in s.trackers(layout.name, c.parts[0].base):
            if not isinstance(target, Finding) and _is_named(layout, c, target):
                return path
    return None


def _is_named(layout: Layout, c: Checkpoint, target: int | str | None) -> bool:
    """Return True if the layout's tracker names a checkpoint, which may be of another layout."""
    try:
        return layout.tracker.names(c, target)
    except (KeyError, IndexError):  # it has none of the pieces that the name is made from
        return False


def find_lost(s: Session, chosen: Sequence[Checkpoint], partial: Sequence[Checkpoint]) -> Iterator[Rejected]:
    """Yield saves that trackers name and that do not exist, or are ``partial``: their last file is lost."""
    for name, base in dict.fromkeys((c.layout, c.parts[0].base) for c in chosen):
        layout, beside = s.layouts[name], [c for c in chosen if c.parts[0].base == base]
        torn = [c for c in partial if c.parts[0].base == base and not any(p.unfinished for p in c.parts)]
        seen: set[int | str] = {"release"}
        for path, target in (*s.trackers(name, base), *_find_later_targets(s, layout, beside)):
            if not isinstance(target, int | str) or target in seen:
                continue
            seen.add(target)
            if not _is_present(s, target, beside, torn):
                lost, damage, at = _make_lost(beside[0], target, layout), f"but {missing_part.GONE}", base
                if c := _find_target(target, torn, layout):
                    lost, damage, at = replace(c, unfinished=False), _describe_missing(layout), c.path
                yield Rejected(lost, (missing_part.describe_declared(path, target, damage, at),))


def _is_present(s: Session, target: int | str, run: Sequence[Checkpoint], torn: Sequence[Checkpoint]) -> bool:
    """Return True if a tracker's target is a checkpoint of the run, or another path that is not ``torn``."""
    if _find_target(target, run, s.layouts.of(run[0])) is not None:
        return True
    path, homes = f"{run[0].parts[0].base}/{target}", {c.path for c in torn}
    whole = (p for p in s.parts if p.home not in homes)
    return isinstance(target, str) and any(path in (p.home, p.path) for p in whole)


def _find_later_targets(s: Session, own: Layout, run: Sequence[Checkpoint]) -> Iterator[Told]:
    """Yield (path, target) of other layouts' trackers that name a later step, which no file beside has."""
    base, steps = run[0].parts[0].base, [c.step for c in run if c.step is not None]
    if len(steps) < len(run):
        return
    steps_of_files = {p.step for p in s.parts if p.base == base}
    for path, target in dict.fromkeys(_read_other_trackers(s, own, base)):
        step = _find_number(str(target), own) if isinstance(target, int | str) else None
        if step is not None and step > max(steps) and step not in steps_of_files:
            yield path, target


def _read_other_trackers(s: Session, own: Layout, base: str) -> Iterator[Told]:
    """Yield (path, target) of trackers in ``base`` of layouts with another tracker file than ``own``."""
    for other in s.layouts:
        if other is not own and (not own.tracker.file or other.tracker.file != own.tracker.file):
            yield from s.trackers(other.name, base)


def _find_target(target: int | str, checkpoints: Sequence[Checkpoint], layout: Layout) -> Checkpoint | None:
    """Return the first checkpoint that a tracker names by its ``target`` (a step or a name), else None."""
    return next((c for c in checkpoints if _is_named(layout, c, target)), None)


def find_declared(s: Session, c: Checkpoint) -> Finding | None:
    """Return a finding that an unfinished save lost files, if a tracker names it; else None."""
    tracker = find_tracker_of(s, c) if c.unfinished else None
    damage = _describe_missing(s.layouts.of(c))
    return missing_part.describe_declared(tracker, c.label, damage, c.path) if tracker else None


def _describe_missing(layout: Layout) -> str:
    """Return which file a finished checkpoint lacks: the second half of a sentence about it."""
    commit = layout.complete.commit
    return f"but its {commit} file is gone" if commit else "but files of it are gone"


def _find_number(name: str, layout: Layout) -> int | None:
    """Return the last number in a name; None without one, or if it belongs to a date."""
    digits, dated = re.search(r"(\d{1,18})\D*$", name), layout.counting.dated
    date = (dated.fullmatch(name) if dated else None) or re.search(r"(\d{4}-\d\d-\d\d.*)", name)
    if digits is None or (date and digits.start() < date.end(1)):
        return None
    return int(digits[1])


def _make_lost(sibling: Checkpoint, target: int | str, layout: Layout) -> Checkpoint:
    """Return a checkpoint without files, named ``target``; a last number that is no date's is its step."""
    number, base = _find_number(str(target), layout), sibling.parts[0].base
    step, generation = (None, number) if sibling.counted else (number, None)
    path, epoch_base = f"{base}/{target}" if isinstance(target, str) else base, sibling.epoch_base
    of_run = sibling.layout, sibling.run, Kind.PERIODIC
    return Checkpoint(*of_run, (), path, 0, step, epoch_base=epoch_base, generation=generation)


# ---- the choice that a tracker names


def find_tracked(s: Session, ranked: Sequence[Checkpoint], run: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the candidates that the tracker names. Raises UsageError if there are none."""
    # a dying gasp beside the run may have no tracker
    first = next((c for c in ranked if s.layouts.of(c).tracker.file), ranked[0])
    layout, base = s.layouts.of(first), first.parts[0].base
    path, content = s.tracker(layout.name, base) or ("", None)
    target = content if isinstance(content, int | str) else None
    if tracked := [c for c in ranked if layout.tracker.names(c, target)]:
        return tracked
    hidden = any(c.layout == layout.name and layout.tracker.names(c, target) for c in run)
    raise tracker_stale.ask_for_order(layout, base, path, content, hidden=hidden)


def find_later_links(newest: Checkpoint, others: Iterable[Checkpoint]) -> Iterator[tuple[str, Checkpoint]]:
    """Yield links ``latest`` and ``last`` made after the newest save, each with the save it leads to."""
    for path in (f"{newest.parts[0].base}/{name}" for name in ("latest", "last")):
        if not is_url(path) and get_time_written(path) > newest.mtime_ns and is_link(path):
            to = real_path(path)
            yield from ((path, c) for c in others if c.key != newest.key and real_path(c.path) == to)


def find_later_trackers(
    s: Session, newest: Checkpoint, others: Iterable[Checkpoint]
) -> Iterator[tuple[str, Checkpoint]]:
    """Yield trackers that were written after the newest checkpoint, each with the other one that it names."""
    if not s.found.trackers:
        return
    paths = (path for path, _ in s.trackers(newest.layout, newest.parts[0].base))
    late = {path for path in paths if get_time_written(path) > newest.mtime_ns}
    if not late or find_tracker_of(s, newest):
        return
    for c in others:
        if c.key != newest.key and (path := find_tracker_of(s, c)) in late:
            yield path or "", c


TORN = frozenset({"truncated", "empty-file", "zero-filled", "missing-rank", "missing-part"})
"""Codes of files that a save under way leaves: too short, or not there yet.

A header that contradicts another one is not among them: no interrupted save leaves it.
"""
_MOST = 16
"""How many temporary files are read at most."""

_NUMBER = re.compile(r"[0-9]+")


def is_marked(c: Checkpoint) -> bool:
    """Return True if the name of its directory marks it as unfinished, in any framework's way."""
    return templates.is_marked(c.parts[0].home)


def find_torn_lately(s: Session, rejected: Iterable[Rejected]) -> Iterator[Finding]:
    """Yield rejected candidates that lack files or their ends, and were written to seconds ago."""
    for c, findings in ((r.checkpoint, r.findings) for r in rejected if r.checkpoint.parts):
        torn = {f.code in TORN for f in findings if f.is_error} == {True}
        declared = not s.layouts.of(c).tracker.early and find_tracker_of(s, c)
        if torn and not declared and (progress := describe_age(s, c)):
            yield unfinished.describe_torn(c, progress)


def find_hint(s: Session, c: Checkpoint) -> str:
    """Return the hint to wait for a save that may still be written; "" if it is older than --settle."""
    return WAIT if describe_age(s, c) else ""


def describe_age(s: Session, c: Checkpoint) -> str:
    """Return text like ``3 files, the last written 4 s ago``; "" if it is older than --settle."""
    written = [p.mtime_ns for p in c.parts if p.size >= 0]
    age = (s.now_ns - max(written)) / 1e9 if written else -1
    if not 0 <= age < s.options.settle:
        return ""
    files = "file" if len(written) == 1 else "files"
    return f"{len(written):,} {files}, the last written {age:.0f} s ago"


def list_temporary(s: Session) -> Iterator[str]:
    """Yield temporary files of states that no layout has; at most ``_MOST``, as they may be read."""
    paths = (path for path in s.found.unfinished if tells_of_a_state(os.path.basename(path)))
    return islice(paths, _MOST)


# ---- directories beside saves, named like them with a higher number, and with nothing of a save in them


def find_begun_later(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Yield warnings about emptied directories, and unfinished ones with files written since ``c``."""
    base, found = os.path.dirname(name_place(c)), s.found
    homes = [os.path.dirname(f.path) for f in found.bare]
    saved = map(os.path.dirname, (*(p.path for p in s.parts), *found.unfinished))
    with_saves = {*_find_entries_of((*saved, *(f.path for f in s.aside)), base)}
    entries = dict.fromkeys(_find_entries_of((*found.empty, *found.strange, *homes), base))
    directories = [path for path in entries if path not in with_saves]
    yield from _describe_emptied(s, c, directories)
    late = set(_find_entries_of((f.path for f in found.bare if f.mtime_ns >= c.mtime_ns), base))
    for path in directories:
        if templates.is_begun(os.path.basename(path)) and path in late:
            yield unfinished.describe_marked(path, c)


def _describe_emptied(s: Session, c: Checkpoint, directories: Sequence[str]) -> Iterator[Finding]:
    """Yield warnings about directories named like a later save than ``c``, or like the file of a save."""
    own, emptied = name_place(c), list(_find_emptied(s, c, directories))
    yield from (unfinished.describe_empty(path, os.path.basename(own)) for path in emptied)
    for path in directories:
        is_earlier = make_pattern(path) == make_pattern(own) and find_numbers(path) < find_numbers(own)
        is_known = is_earlier or path in emptied or path not in s.found.empty
        if not is_known and read_convention(path)[0] is not None:
            yield unfinished.describe_empty_directory(path)


def _find_emptied(s: Session, c: Checkpoint, directories: Iterable[str]) -> Iterator[str]:
    """Yield those of the directories that are named like ``c``, with a higher number than all saves."""
    own, numbers = name_place(c), {c.step, c.epoch, c.generation} - {None}
    if numbers and numbers.isdisjoint(find_numbers(own)):
        return
    base, pattern = os.path.dirname(own), make_pattern(own)
    beside = {at for p in s.parts if p.size >= 0 and os.path.dirname(at := p.home or p.path) == base}
    highest = max(find_numbers(at) for at in (own, *beside) if make_pattern(at) == pattern)
    for path in directories:
        is_later = make_pattern(path) == pattern and find_numbers(path) > highest
        if is_later and not s.found.leaves_out(path) and not is_tracked(s, c, path):
            yield path


def is_called_alike(path: str, c: Checkpoint) -> bool:
    """Return True if a path is named like a save beside it, with higher numbers."""
    own = name_place(c)
    is_beside = os.path.dirname(path) == os.path.dirname(own)
    return is_beside and make_pattern(path) == make_pattern(own) and find_numbers(path) > find_numbers(own)


def is_tracked(s: Session, c: Checkpoint, directory: str) -> bool:
    """Return True if a tracker beside ``c`` names the directory, its last number, or its name's end."""
    name, numbers = os.path.basename(directory), find_numbers(directory)
    targets = {target for _, target in s.trackers(c.layout, os.path.dirname(directory))}
    ends = (name.endswith(f"-{target}") for target in targets if isinstance(target, str))
    return not targets.isdisjoint((name, *numbers[-1:])) or any(ends)


def make_pattern(path: str) -> str:
    """Return the last name of a path with ``#`` for each number."""
    return _NUMBER.sub("#", os.path.basename(path))


def find_numbers(path: str) -> tuple[int, ...]:
    """Return the numbers in the last name of a path."""
    return tuple(int(n[:18]) for n in _NUMBER.findall(os.path.basename(path)))


def _find_entries_of(directories: Iterable[str], base: str) -> Iterator[str]:
    """Yield the entries of ``base`` that are one of the directories, or hold one; some more than once."""
    for directory in directories:
        if directory.startswith(f"{base}/"):
            yield f"{base}/{directory[len(base) + 1 :].partition('/')[0]}"
