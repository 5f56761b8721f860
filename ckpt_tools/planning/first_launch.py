"""Is this a first launch? Looks at what the rules of planning/rules/tree ask, where nothing was finished."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial

from msgspec.structs import replace

from ckpt_tools import formats
from ckpt_tools.discovery.quarantined import origins
from ckpt_tools.discovery.sidecars import read_tracker
from ckpt_tools.discovery.unrecognised import is_other, remains, tells_of_a_state
from ckpt_tools.errors import CkptError
from ckpt_tools.layouts import Layouts
from ckpt_tools.layouts.common import under_way
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Unseen
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.facts import LaunchFacts, LeftTracker
from ckpt_tools.planning.rules.choice import unplaced_newer
from ckpt_tools.planning.rules.rule import Hit, Rule, error_of, finding_of
from ckpt_tools.planning.rules.tree import (
    could_not_look,
    filters_hide_all,
    first_launch_leftovers,
    nothing_there,
    several_runs,
)
from ckpt_tools.planning.seals import only_seals
from ckpt_tools.planning.unfinished import hint_of, not_renamed, written_whole
from ckpt_tools.planning.unplaced import how_to_describe, unplaced_files
from ckpt_tools.reading.session import TRACKER_LIMIT, Session
from ckpt_tools.settings import plugins
from ckpt_tools.settings.resolve import nearest
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import is_directory, is_link, status
from ckpt_tools.storage.urls import is_url

_OF_LAUNCHES = (could_not_look, filters_hide_all, first_launch_leftovers)
Checks = tuple[tuple[Rule, Callable[[LaunchFacts], Iterator[Hit]]], ...]
OBJECTIONS: Checks = (
    *((module.RULE, module.check) for module in _OF_LAUNCHES),
    (unplaced_newer.RULE, unplaced_newer.find_at_launch),
)
"""What speaks against a start from nothing: the first rule that hits ends it."""
CONCLUSIONS: Checks = (
    (several_runs.RULE, several_runs.find_no_run),
    (nothing_there.RULE, nothing_there.check),
)
"""What is said if nothing does."""
_DESCRIBES = (".json", ".yaml", ".yml", ".toml")
"""Endings of texts that are saved beside a model."""
Scope = Callable[[str], bool]
"""Whether a path matters to the question."""
Outcome = tuple[CkptError | None, list[Finding]]
"""The error that keeps a job from starting fresh (None where it may), and findings with the reasons."""


def first_launch(
    session: Session, selection: Selection, everything: Sequence[Checkpoint], unfinished: Sequence[Checkpoint]
) -> Outcome:
    """Return whether a job may start fresh where nothing that was asked for was ever finished.

    ``everything`` are the checkpoints and saves of the root, ``unfinished`` the saves among them that were
    asked for.
    """
    one_run = selection.run is not None or selection.prefix is not None
    facts = LaunchFacts(session.root, selection, session.layouts, everything)
    for seen in _look(session, facts, unfinished, _scope(session.root, selection) if one_run else bool):
        if objection := _find_objection(seen):
            return objection
    if one_run and not unfinished:
        elsewhere = bool(everything) or any(map(_find_objection, _look_around(session, facts, bool)))
        facts = replace(facts, elsewhere=elsewhere)
    count, hidden = len(unfinished) + len(session.found.unfinished), len(session.found.excluded.paths)
    temporary = tuple(_find_temporary(session))
    facts = replace(facts, temporary=temporary, unfinished=count, excluded=hidden)
    return _conclude(facts, [(rule, hit) for rule, check in CONCLUSIONS for hit in check(facts)])


def _find_objection(facts: LaunchFacts) -> Outcome | None:
    for rule, check in OBJECTIONS:
        if hits := [(rule, hit) for hit in check(facts)]:
            return _conclude(facts, hits)
    return None


def _conclude(facts: LaunchFacts, hits: Sequence[tuple[Rule, Hit]]) -> Outcome:
    error = next((error_of(rule, hit) for rule, hit in hits if hit.error), None)
    said = (finding_of(rule, hit) for rule, hit in hits if not hit.error)
    return error, [*facts.plugins, *facts.aside, *said]


def _look(
    s: Session, facts: LaunchFacts, unfinished: Sequence[Checkpoint], inside: Scope
) -> Iterator[LaunchFacts]:
    """Yield what is seen, more each time: what cannot be read must not hide an objection before it."""
    broken, names, asked = tuple(plugins.findings()), [layout.name for layout in s.layouts], facts.asked
    meant = None if asked.layout in (None, *names) else nearest(str(asked.layout), names)
    yield (facts := replace(facts, plugins=broken, meant=meant))
    young = frozenset(c.path for c in unfinished if hint_of(s, c))
    yield (facts := replace(facts, begun=unfinished, young=young))
    if whole := not_renamed(s, unfinished):
        yield replace(facts, whole=whole.path)
    yield from _look_around(s, facts, inside)
    yield (facts := replace(facts, looked=True))
    yield replace(facts, whole=written_whole(s))


def _look_around(s: Session, facts: LaunchFacts, inside: Scope) -> Iterator[LaunchFacts]:
    """Yield the same of what lies outside of saves."""
    outside, found = _outside(s, facts.saves, inside), s.found
    yield (facts := replace(facts, trackers=tuple(_read_trackers(s, inside))))
    links = (p for p in found.dangling if outside(p) and not is_other(os.path.basename(p)))
    yield (facts := replace(facts, dangling=tuple(links)))
    yield (facts := replace(facts, sealed=tuple(filter(inside, only_seals(s)))))
    copies = tuple(f for f in s.aside if _was_inside(f, inside))
    unknown = next((Unseen(f.path, f.message) for f in copies if f.code == "unreadable"), None)
    yield (facts := replace(facts, aside=copies, unseen=unknown))
    unplaced = tuple(unplaced_files(s, 0, outside))
    describe = how_to_describe(s) if unplaced else ""
    unseen = s.unplaced[0] if s.unplaced else None
    yield (facts := replace(facts, unplaced=unplaced, describe=describe, unseen=unseen))
    try:
        if layout := remains(found, s.root, s.layouts, outside):
            yield replace(facts, remains=layout)
        else:
            yield replace(facts, homes=tuple(sorted(set(_find_homes(s, outside)))))
    except OSError as e:
        yield replace(facts, unseen=Unseen(e.filename or s.root, str(e.strerror)))


def _find_temporary(s: Session) -> dict[str, None]:
    """Return the files and directories of saves that were not given their names, and so are none."""
    begun = {path: None for path in s.found.unfinished if tells_of_a_state(os.path.basename(path))}
    for path, *_ in s.found.bare:
        while (path := os.path.dirname(path)) != s.root and len(path) > len(s.root):
            if under_way.is_begun(os.path.basename(path)):
                begun[path] = None
    return begun


def _was_inside(aside: Finding, inside: Scope) -> bool:
    """Return True if it matters to the question: by where it lay, if it was put into quarantine."""
    if aside.code == "set-aside":
        return inside(aside.path)
    with suppress(OSError):
        return aside.code == "unreadable" or any(map(inside, origins(aside.path)))
    return True


def _read_trackers(s: Session, inside: Scope) -> Iterator[LeftTracker]:
    """Yield the trackers of any layout, and what they say."""
    readers, surely = list(_find_readers(s.layouts)), {layout.tracker.file for layout in s.layouts}
    known = {name for name, *_ in readers}
    for (name, directory), path in s.found.trackers.items():
        if name not in known or not inside(os.path.join(directory, name)):
            continue
        with suppress(OSError):  # whoever reads it learns why
            if is_directory(path):
                continue
        own = s.found.placed.get(path)
        tracker = LeftTracker(path, name in surely, writer=own if own and own.tracker.file != name else None)
        if target := _find_lost_target(path):
            yield replace(tracker, target=target)
        elif isinstance(data := read_tracker(path, TRACKER_LIMIT), Finding):
            yield replace(tracker, damage=data)
        else:
            told = (read(data, *more) for of, read, more in readers if of == name)
            yield replace(tracker, names=next((said for said in told if said is not None), None))


def _find_readers(layouts: Layouts) -> Iterator[tuple[str, Callable[..., int | str | None], Sequence[str]]]:
    for layout in layouts:
        if layout.tracker.file and layout.tracker.read:
            yield layout.tracker.file, layout.tracker.read, ()
        yield from ((os.path.basename(at), read, ("",)) for at, read in layout.tracker.others)


def _find_lost_target(link: str) -> str:
    """Return what a link leads to if that is not there; "" if it is, and of no link."""
    try:
        if is_link(link):
            status(link)
    except OSError:
        return os.readlink(link)
    return ""


def _find_homes(s: Session, outside: Scope) -> Iterator[str]:
    """Yield the directories that a layout's template calls those of a step or an epoch, of which nothing is
    left but files that no layout places: texts that describe a model, and files of no known kind; in one that
    is called by a number alone only the latter. Templates that take any word are none: ``version_0``. Yield
    empty ones if there are several: a job that dies in its first save leaves one. Raises OSError.
    """
    found, root, templates = s.found, s.root, s.layouts.templates()

    @cache
    def home_of(at: str) -> str:
        inside = (p for p in templates.places(at) if p.home.startswith(f"{root}/") and not p.prefix)
        return next((p.home for p in inside if {p.step, p.epoch, p.generation} != {None}), "")

    for path in filter(outside, (*(f.path for f in found.bare), *_list_strange(s))):
        name = os.path.basename(path)
        other = is_other(name) and not formats.names.known(name)
        if other and not name.endswith(_DESCRIBES):
            continue
        at = path
        while len(at := os.path.dirname(at)) > len(root):
            if (home := home_of(at)) and not (other and os.path.basename(at).isdigit()):
                yield home
    empty = {home_of(path) for path in found.empty if outside(f"{path}/")} - {""}
    yield from empty if len(empty) > 1 else ()


def _list_strange(s: Session) -> Iterator[str]:
    keep = partial(s.found.excluded.keep, s.root)
    yield from (e.path for at in s.found.strange for e in entries_of(at, keep) if not is_directory(e))


def in_no_layout(session: Session) -> str:
    """Return what to add to a hint if no checkpoint is usable, and other files of checkpoints are there."""
    rows = [f.path for f in unplaced_files(session, 0, bool) if f.state]
    names = first_launch_leftovers.name_paths(session.root, rows)
    return f"; beside them lie {names}: if they are saves, {how_to_describe(session)}" if rows else ""


def _outside(s: Session, everything: Sequence[Checkpoint], inside: Scope) -> Scope:
    """Return which paths matter, without the parts of unfinished saves and what lies in their directories."""
    homes = {p.home for c in everything if c.unfinished for p in c.parts if p.home}
    parts = {p.path for p in s.parts}

    def outside(path: str) -> bool:
        if not inside(path) or path in parts:
            return False
        above = os.path.relpath(os.path.dirname(path), s.root).split("/")
        begun = any(map(under_way.is_begun, above))
        return path == s.root or not (begun or any(path.startswith(f"{home}/") for home in homes))

    return outside


def _scope(root: str, selection: Selection) -> Scope:
    """Return which paths would belong to a run of that name: below a directory called so, or a file whose
    name starts with its prefix.
    """
    run, prefix = (selection.run or "").rstrip("/"), selection.prefix or ""
    run = os.path.relpath(run, root) if os.path.isabs(run) or is_url(run) else run
    directory, _, start = run.rpartition("/")

    def inside(path: str) -> bool:
        above, _, name = f"/{os.path.relpath(path, root)}".rpartition("/")
        if run in ("", ".") or f"/{run}/" in f"{above}/":
            return name.startswith(prefix)
        # the runs of one directory differ by the prefix of their files
        return f"{above}/".endswith(f"/{directory}/" if directory else "/") and name.startswith(start)

    return inside
