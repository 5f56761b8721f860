"""Decide whether this is a first launch: look for anything that speaks against a start from nothing.

Reads what earlier starts resumed from in the log of decisions. Every command that chooses reads the log;
commands that decide for a job write it (job/decider.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain

from msgspec import Struct

from ckpt_tools import formats
from ckpt_tools.discovery.exclude import origins
from ckpt_tools.discovery.seals import read_tracker
from ckpt_tools.discovery.unrecognised import is_other, remains, tells_of_a_state
from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.layouts import Layouts
from ckpt_tools.layouts.common.templates import is_begun
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Unseen
from ckpt_tools.model.plan import EarlierStart, LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.rules.choice import unplaced_newer
from ckpt_tools.planning.rules.rule import Hit, Rule, error_of, finding_of
from ckpt_tools.planning.rules.tree import (
    could_not_look,
    filters_hide_all,
    first_launch_leftovers,
    nothing_there,
    several_runs,
)
from ckpt_tools.planning.seals import find_only_seals
from ckpt_tools.planning.trackers import find_hint, find_not_renamed, find_whole_temporary
from ckpt_tools.planning.unplaced import find_unplaced_files, say_how_to_describe
from ckpt_tools.reading.session import TRACKER_LIMIT, Session
from ckpt_tools.settings import checked_json, plugins, resolve
from ckpt_tools.settings.resolve import nearest
from ckpt_tools.storage import trust
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import is_directory, is_link, status, there
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import absolute, is_url, real_path

_DESCRIBES = (".json", ".yaml", ".yml", ".toml")
"""Endings of texts that are saved beside a model."""
_Reader = tuple[str, Callable[..., int | str | None], Sequence[str]]
"""The name of a tracker, the function that reads its bytes, and further arguments of that function."""
Scope = Callable[[str], bool]
"""A test whether a path matters to the question."""
Asked = Iterator[tuple[Rule, Iterable[Hit]]]
"""Rules with their hits, in the order in which the rules are asked."""
_LEFT, _UNSEEN = first_launch_leftovers.RULE, could_not_look.RULE


def find_objections(
    s: Session, selection: Selection, everything: Sequence[Checkpoint], unfinished: Sequence[Checkpoint]
) -> tuple[CkptError | None, list[Finding]]:
    """Return the error that keeps a job from starting fresh if no save that was asked for was ever finished
    (None where it may start so), and findings with the reasons.

    ``everything`` are all checkpoints and saves below the root, ``unfinished`` the unfinished ones that were
    asked for. The first rule that holds ends the search: an unreadable file must not hide an earlier hit.
    """
    one_run = selection.run is not None or selection.prefix is not None
    inside, reasons = _make_scope(s.root, selection) if one_run else bool, list(plugins.findings())
    objections = chain(
        _ask_about_saves(s, selection, everything, unfinished, tuple(reasons)),
        _ask_outside(s, everything, inside, reasons),
        _ask_about_temporary(s, unfinished),
    )
    hits = _find_first(objections)
    if not hits:
        if one_run and not unfinished and (everything or _find_first(_ask_outside(s, everything, bool, []))):
            no_run = several_runs.find_no_run(s.root, selection, everything)
            hits += ((several_runs.RULE, hit) for hit in no_run)
        count, hidden = len(unfinished) + len(s.found.unfinished), len(s.found.excluded.paths)
        nothing = nothing_there.find_nothing(s.root, selection, list(_find_temporary(s)), count, hidden)
        hits += ((nothing_there.RULE, hit) for hit in nothing)
    error = next((error_of(rule, hit) for rule, hit in hits if hit.error), None)
    return error, [*reasons, *(finding_of(rule, hit) for rule, hit in hits if not hit.error)]


def _find_first(asked: Asked) -> list[tuple[Rule, Hit]]:
    """Return the hits of the first rule that has any, each with the rule; [] if none has."""
    return next((rows for rule, found in asked if (rows := [(rule, hit) for hit in found])), [])


def _ask_about_saves(
    s: Session,
    asked: Selection,
    everything: Sequence[Checkpoint],
    unfinished: Sequence[Checkpoint],
    broken: Sequence[Finding],
) -> Asked:
    yield _UNSEEN, could_not_look.find_broken_plugin(s.root, broken)
    names = [layout.name for layout in s.layouts]
    meant = None if asked.layout in (None, *names) else nearest(str(asked.layout), names)
    yield filters_hide_all.RULE, filters_hide_all.find_others(s.root, asked, everything, meant)
    young = {c.path for c in unfinished if find_hint(s, c)}
    yield _LEFT, first_launch_leftovers.find_interrupted(s.root, s.layouts, unfinished, young)
    whole = find_not_renamed(s, unfinished)
    yield _LEFT, first_launch_leftovers.find_whole(whole.path if whole else None, save=True)


def _ask_outside(s: Session, saves: Sequence[Checkpoint], inside: Scope, reasons: list[Finding]) -> Asked:
    """Yield rules with their hits on files outside of saves. Adds hand-made copies to ``reasons``."""
    outside, found, root = _make_outside(s, saves, inside), s.found, s.root
    yield _LEFT, first_launch_leftovers.find_trackers(root, list(_read_trackers(s, inside)))
    links = [p for p in found.dangling if outside(p) and not is_other(os.path.basename(p))]
    yield _LEFT, first_launch_leftovers.find_links(root, links)
    yield _LEFT, first_launch_leftovers.find_seals(root, list(filter(inside, find_only_seals(s))))
    aside = [f for f in s.aside if _is_aside_inside(f, inside)]
    reasons += aside
    unreadable = [Unseen(f.path, f.message) for f in aside if f.code == "unreadable"]
    yield _UNSEEN, could_not_look.find_unseen(unreadable)
    yield _LEFT, first_launch_leftovers.find_aside(root, aside)
    unplaced = tuple(find_unplaced_files(s, 0, outside))
    yield _UNSEEN, could_not_look.find_unseen(s.unplaced)
    describe = say_how_to_describe(s) if unplaced else ""
    yield unplaced_newer.RULE, unplaced_newer.find_at_launch(root, unplaced, describe)
    try:
        layout = remains(found, root, s.layouts, outside)
        homes = () if layout else sorted(set(_find_homes(s, outside)))
    except OSError as e:
        yield _UNSEEN, could_not_look.find_unseen([Unseen(e.filename or root, str(e.strerror))])
    else:
        yield _LEFT, first_launch_leftovers.find_remains(root, layout, homes)


def _ask_about_temporary(s: Session, unfinished: Sequence[Checkpoint]) -> Asked:
    yield _LEFT, first_launch_leftovers.find_headless(unfinished, s.layouts)
    yield _LEFT, first_launch_leftovers.find_whole(find_whole_temporary(s), save=False)


def _find_temporary(s: Session) -> dict[str, None]:
    """Return temporary files and directories of saves, which were never renamed: they are no saves."""
    begun = {path: None for path in s.found.unfinished if tells_of_a_state(os.path.basename(path))}
    for path, *_ in s.found.bare:
        while (path := os.path.dirname(path)) != s.root and len(path) > len(s.root):
            if is_begun(os.path.basename(path)):
                begun[path] = None
    return begun


def _is_aside_inside(aside: Finding, inside: Scope) -> bool:
    """Return True if a copy that was put aside matters: a quarantined one by where it lay before."""
    if aside.code == "set-aside":
        return inside(aside.path)
    with suppress(OSError):
        return aside.code == "unreadable" or any(map(inside, origins(aside.path)))
    return True


def _read_trackers(s: Session, inside: Scope) -> Iterator[Hit]:
    readers, own_names = list(_find_readers(s.layouts)), {layout.tracker.file for layout in s.layouts}
    known = {name for name, *_ in readers}
    for (name, directory), path in s.found.trackers.items():
        if name not in known or not inside(os.path.join(directory, name)):
            continue
        with suppress(OSError):  # reading it tells why
            if is_directory(path):
                continue
        own, target = s.found.placed.get(path), ""
        try:
            if is_link(path):
                status(path)
        except OSError:  # it leads nowhere
            target = os.readlink(path)
        says = None if target else _read_tracker(path, [row for row in readers if row[0] == name])
        writer = own if own and own.tracker.file != name else None
        sure = name in own_names
        if hit := first_launch_leftovers.describe_tracker(path, target, says, writer, sure=sure):
            yield hit


def _read_tracker(path: str, readers: Iterable[_Reader]) -> int | str | Finding | None:
    data = read_tracker(path, TRACKER_LIMIT)
    if isinstance(data, Finding):
        return data
    targets = (read(data, *more) for _, read, more in readers)
    return next((target for target in targets if target is not None), None)


def _find_readers(layouts: Layouts) -> Iterator[_Reader]:
    for layout in layouts:
        if layout.tracker.file and layout.tracker.read:
            yield layout.tracker.file, layout.tracker.read, ()
        yield from ((os.path.basename(at), read, ("",)) for at, read in layout.tracker.others)


def _find_homes(s: Session, outside: Scope) -> Iterator[str]:
    """Yield directories that a layout's template calls a step's or an epoch's, with nothing left but texts
    that describe a model, or files of unknown kinds (only such files if the name is a number). Templates that
    take any word do not count: ``version_0``. Yield empty directories if there are several: a job that dies
    in its first save leaves one. Raises OSError.
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


def describe_unplaced(session: Session) -> str:
    """Return what to add to a hint if no checkpoint is usable, but files without a layout may be states."""
    rows = [f.path for f in find_unplaced_files(session, 0, bool) if f.state]
    names = first_launch_leftovers.name_paths(session.root, rows)
    return f"; beside them lie {names}: if they are saves, {say_how_to_describe(session)}" if rows else ""


def _make_outside(s: Session, everything: Sequence[Checkpoint], inside: Scope) -> Scope:
    """Return a test for paths that matter: no parts, and nothing in directories of unfinished saves."""
    homes = {p.home for c in everything if c.unfinished for p in c.parts if p.home}
    parts = {p.path for p in s.parts}

    def outside(path: str) -> bool:
        if not inside(path) or path in parts:
            return False
        above = os.path.relpath(os.path.dirname(path), s.root).split("/")
        begun = any(map(is_begun, above))
        return path == s.root or not (begun or any(path.startswith(f"{home}/") for home in homes))

    return outside


def _make_scope(root: str, selection: Selection) -> Scope:
    """Return a test for paths of the run that was asked for: below its directory, or with its prefix."""
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


LAST = "last.json"
"""The last start of a root that had a checkpoint."""
FLAG = "--plan-dir"
MOST = 256 << 20
"""Bytes of one file below --plan-dir at most: the decision for 100,000 ranks has 50 MB."""


def safe(name: str) -> str:
    """Return a name as a single path component of at most 80 characters."""
    return re.sub(r"[^A-Za-z0-9_.=-]", "_", name)[:80].lstrip(".") or "_"


def place(plan_dir: str, root: str) -> str:
    """Return the directory of the decisions about one root. Raises UsageError if it lies inside the root."""
    import xxhash

    root, plan_dir = absolute(root), absolute(plan_dir)
    inside = real_path(plan_dir) + os.sep
    if inside.startswith(real_path(root).rstrip(os.sep) + os.sep):
        text = f"the state directory {plan_dir} lies inside {root}, where ckpt never writes"
        raise UsageError(text, "name one outside it with --plan-dir or CKPT_STATE_DIR")
    digest = xxhash.xxh3_64_hexdigest(os.fsencode(root))
    return os.path.join(plan_dir, f"{safe(os.path.basename(root))}-{digest}")


def place_of(root: str, selection: Selection) -> str:
    """Return the ``place`` of a root in --plan-dir, else in this user's own directory of decisions."""
    return place(selection.plan_dir or resolve.decisions(), root)


def read_last_start(directory: str, trusted: Trust = OURS) -> EarlierStart | None:
    """Return the last start that had a checkpoint, from the ``place`` of a root; None if there was none.

    Raises CannotLook if the log cannot be read, Untrusted if others could have written or removed it.
    """
    path = os.path.join(directory, LAST)
    what = f"{path}, which tells whether an earlier start had a checkpoint,"
    try:
        data = read_below(path, what, trusted)
        note = None if data is None else checked_json.checked(checked_json.parsed(data), _Note)
    except ValueError as e:
        raise could_not_look.stop_damaged_log(what, path, str(e)) from e
    return EarlierStart(note.step, note.path, note.decided_at) if note else None


def read_below(path: str, what: str, trusted: Trust = OURS) -> bytes | None:
    """Return the bytes of a file below --plan-dir, None without one. Raises CannotLook or Untrusted."""
    try:
        with trust.named(FLAG):
            try:
                return trust.read(path, MOST, trusted)
            except FileNotFoundError:
                trust.absent(path, trusted)
                return None
    except OSError as e:
        raise could_not_look.stop_unread_log(what, str(e.strerror)) from e


class _Note(Struct, frozen=True):
    """The content of ``last.json``, as ``Decisions.save`` writes it."""

    path: checked_json.Path
    step: int | None = None
    decided_at: checked_json.Number = 0.0


def find_earlier_start(root: str, selection: Selection) -> EarlierStart | None:
    """Return the earlier start that forbids to take this one for the first, else None. Raises CannotLook."""
    before = None if selection.allow_fresh else read_last_start(place_of(root, selection), selection.trust)
    if before and (selection.run, selection.prefix, selection.layout) != (None, None, None):
        # one log for all runs of a root: a checkpoint that is still there is not lost, but of another run
        with suppress(OSError):  # if nobody can tell, it counts
            return None if there(before.path) else before
    return before


def require_first_launch(root: str, selection: Selection, plan: LoadPlan | None) -> None:
    """Raise NoneUsable if an earlier start of this root had a checkpoint."""
    if before := find_earlier_start(root, selection):
        raise first_launch_leftovers.stop_without_earlier(before, root, plan)
