"""Decide whether this is a first launch: look for anything that speaks against a start from nothing.

Reads what earlier starts resumed from in the log of decisions. Every command that chooses reads the log;
commands that decide for a job write it (job/decider.py).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from shlex import quote

from ckpt_tools import formats
from ckpt_tools.discovery.completeness import say_unfinished
from ckpt_tools.discovery.exclude import list_origins
from ckpt_tools.discovery.seals import read_tracker
from ckpt_tools.discovery.unrecognised import is_other, list_unknown, tells_of_a_state
from ckpt_tools.errors import CannotLook, CkptError, NoneUsable, UsageError
from ckpt_tools.layouts import Layouts, Stage
from ckpt_tools.layouts.common import templates
from ckpt_tools.layouts.files import read_convention
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.rules.choice import unplaced_newer
from ckpt_tools.planning.rules.tree import (
    could_not_look,
    filters_hide_all,
    first_launch_leftovers,
    nothing_there,
    several_runs,
)
from ckpt_tools.planning.rules.tree.first_launch_leftovers import BYSTANDERS, EarlierStart, Sign, say_hidden
from ckpt_tools.planning.seals import find_only_seals
from ckpt_tools.planning.trackers import TORN, is_marked, list_temporary
from ckpt_tools.planning.unplaced import find_unplaced_files, make_layout_hint
from ckpt_tools.reading.session import TRACKER_LIMIT, Session
from ckpt_tools.settings import checked_json, plugins, resolve
from ckpt_tools.settings.resolve import nearest
from ckpt_tools.storage import trust
from ckpt_tools.storage.retry import exists, is_directory, is_link, status
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import is_url, real_path, to_absolute

_DESCRIBES = (".json", ".yaml", ".yml", ".toml")
"""Endings of texts that are saved beside a model."""
_NUMBER = re.compile(r"\d+")
Scope = Callable[[str], bool]
"""A test whether a path matters to the question."""
Kinds = Iterator[Iterable[Sign]]
"""Signs of one kind after the other, in the order in which they are asked about."""


def find_objections(
    s: Session, selection: Selection, saves: Sequence[Checkpoint], unfinished: Sequence[Checkpoint]
) -> tuple[CkptError | None, list[Finding]]:
    """Return the error that keeps a job from starting fresh if no save that was asked for was ever finished
    (None where it may start so), and findings with the reasons.

    ``saves`` are all checkpoints and saves below the root, ``unfinished`` the unfinished ones that were
    asked for. The first kind of signs ends the search: an unreadable file must not hide an earlier one.
    """
    for f in plugins.findings():  # it may be the only one that knows files here
        return could_not_look.stop(f"whether there is a checkpoint is not known: {f.message}", f.hint), []
    spelling = nearest(selection.layout or "", [layout.name for layout in s.layouts])
    if error := filters_hide_all.ask_for_layout(s.root, selection, saves, spelling):
        return error, []
    is_inside = _make_test_inside(s.root, selection)
    of_saves = (
        _find_several(s, unfinished),
        _find_several_marked(s, unfinished),
        _find_not_renamed(s, unfinished),
    )
    of_others = (_find_headless(s, unfinished), _find_whole_temporary(s))
    if signs := _find_first(chain(of_saves, _find_outside(s, saves, is_inside), of_others)):
        return first_launch_leftovers.ask(s.root, signs), first_launch_leftovers.describe(signs)
    findings = first_launch_leftovers.describe(_find_temporary(s))
    is_new = is_inside is not bool and not unfinished  # a run of which nothing is there
    if is_new and (saves or _find_first(_find_outside(s, saves, bool))):
        if not (selection.allow_none and selection.allow_missing):
            return several_runs.ask_for_run(s.root, selection, saves), findings
        findings.append(several_runs.describe_new_run(s.root, selection))
    if selection.allow_none:
        return None, findings
    count, hidden = len(unfinished) + len(s.found.unfinished), len(s.found.excluded.paths)
    return nothing_there.stop(s.root, count, hidden), findings


def _find_first(kinds: Kinds) -> list[Sign]:
    """Return the signs of the first kind that has any; [] if there are none."""
    return next(filter(None, map(list, kinds)), [])


# ---- unfinished saves


def _find_several(s: Session, unfinished: Sequence[Checkpoint]) -> Iterator[Sign]:
    """Yield saves of one run that lack the file written last, although they are named like finished ones."""
    # a job that dies in its first save leaves one: of several the earlier were finished, and lost the file
    runs = defaultdict[tuple[str, str], list[Checkpoint]](list)
    for c in unfinished:
        if not any(p.unfinished for p in c.parts):
            runs[c.layout, _NUMBER.sub("", c.run)].append(c)  # a step may have a directory of its own
    several = [c for saves in runs.values() if len(saves) > 1 for c in saves]
    for c in several:
        layout = s.layouts.of(c)
        why = f"none of {len(several)} saves is whole, each {say_unfinished(c, layout)}"
        why += ": a first launch leaves one at most, so some may have been whole"
        yield Sign(c.path, why, say_hidden(layout, layout.complete.commit) or "bring the lost files back")


def _find_several_marked(s: Session, unfinished: Sequence[Checkpoint]) -> Iterator[Sign]:
    """Yield saves of several steps or epochs that were never renamed: a job got beyond its first save."""
    steps: dict[tuple[object, ...], str] = {}
    for path in (*(sign.path for sign in _find_temporary(s)), *(c.path for c in unfinished if is_marked(c))):
        done = templates.unmark(os.path.basename(path))
        for numbers in (read_convention(f"/{done}{below}")[1] for below in ("", "/model.pt")):
            if any(when := (numbers.get("step"), numbers.get("epoch"))):
                steps.setdefault(when, path)
    why = f"the names of {len(steps)} saves that never finished tell several steps"
    for path in steps.values() if len(steps) > 1 else ():
        yield Sign(
            path, f"{why}: a first launch leaves one at most", "rename it if it is whole", "unfinished-save"
        )


def _find_not_renamed(s: Session, unfinished: Sequence[Checkpoint]) -> Iterator[Sign]:
    """Yield the first whole save that only another framework's mark calls unfinished."""
    for c in unfinished:
        commit, pieces = s.layouts.of(c).complete.commit, [s.layouts.piece_of(p) for p in c.parts]
        done = not commit or any(p.role == commit for p in c.parts)
        if done and is_marked(c) and all(piece.stage is Stage.ANY for piece in pieces):
            findings = (f for p in c.parts for f in s.report(p, Level.STRUCTURE).findings)
            if not any(f.code in TORN for f in findings):
                why = "nothing but its name says that it was not finished"
                yield Sign(c.path, why, "rename it if it is whole")
                return


def _find_headless(s: Session, unfinished: Sequence[Checkpoint]) -> Iterator[Sign]:
    """Yield the first save that has later files, but none that its framework writes first."""
    for c in unfinished:
        first = s.layouts.of(c).complete.first
        roles = {p.role for p in c.parts if not s.layouts.piece_of(p).readers.survivable}
        if first and roles and roles.isdisjoint(first):  # random states are written without an order
            why = f"it has no {first[0]} file, which is written before the others: that was lost"
            yield Sign(c.path, why, "bring the lost files back", "missing-part")
            return


def _find_whole_temporary(s: Session) -> Iterator[Sign]:
    """Yield the first temporary file that no layout has and that holds a whole state."""
    for path in list_temporary(s):
        report = s.report_file(path, Level.STRUCTURE)
        sound = report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)
        if sound and report.format is not None and formats.names.holds_state(report.format):
            todo = templates.AGAIN if path.endswith(templates.DOWNLOADS) else "rename it to resume from it"
            why = "it is whole, and has the name of one that was not finished"
            yield Sign(path, why, todo, "unfinished-save")
            return


def _find_temporary(s: Session) -> Iterator[Sign]:
    """Yield temporary files and directories of saves, which were never renamed: they are no saves."""
    paths = {path: None for path in s.found.unfinished if tells_of_a_state(os.path.basename(path))}
    for path, *_ in s.found.bare:
        while len(path := os.path.dirname(path)) > len(s.root):
            if templates.is_begun(os.path.basename(path)):
                paths[path] = None
    yield from (Sign(p, "what a save that never finished was writing", code="unfinished-save") for p in paths)


# ---- files outside of saves


def _find_outside(s: Session, saves: Sequence[Checkpoint], is_inside: Scope) -> Kinds:
    """Yield, kind by kind, signs that are no saves: trackers, links, seals, copies, unknown files."""
    is_outside, found, gone = _make_test_outside(s, saves, is_inside), s.found, NoneUsable
    yield sorted(_find_trackers(s, is_inside), key=lambda sign: sign.error is not gone)
    links = (path for path in found.dangling if is_outside(path) and not is_other(os.path.basename(path)))
    todo = f"bring that back, or mount it; {BYSTANDERS}"
    yield (Sign(path, "its target is not there", todo, "dangling-link", gone) for path in links)
    sealed, why = filter(is_inside, find_only_seals(s)), "it was sealed, and is not there"
    yield (Sign(path, why, "bring it back", "seal-missing", gone) for path in sealed)
    copies = [f for f in s.aside if f.code == "unreadable" or _is_copy_inside(f, is_inside)]
    yield (_make_unseen(f.path, f.message) for f in copies if f.code == "unreadable")
    yield (Sign(f.path, f.message, f.hint, error=gone) for f in copies)
    unplaced = tuple(find_unplaced_files(s, 0, is_outside))
    yield (_make_unseen(row.path, row.why) for row in s.unplaced)
    yield unplaced_newer.find_at_launch(s.root, unplaced, make_layout_hint(s) if unplaced else "")
    yield _find_remains(s, is_outside)


def _make_unseen(path: str, why: str) -> Sign:
    """Return the sign that a path could not be looked at: it ends with exit 5."""
    text = f"{why}, and nobody knows what lies there"
    return Sign(path, text, error=CannotLook, rule=could_not_look.RULE)


def _make_test_outside(s: Session, saves: Sequence[Checkpoint], is_inside: Scope) -> Scope:
    """Return a test for paths of the run that are no parts, and in no directory of an unfinished save."""
    homes = tuple({f"{p.home}/" for c in saves if c.unfinished for p in c.parts if p.home})
    parts = {p.path for p in s.parts}

    def is_outside(path: str) -> bool:
        above = path.removeprefix(s.root).split("/")[:-1]
        begun = path.startswith(homes) or any(map(templates.is_begun, above))
        return is_inside(path) and path not in parts and not begun

    return is_outside


def _is_copy_inside(copy: Finding, is_inside: Scope) -> bool:
    """Return True if a copy that was put aside matters: a quarantined one by where it lay before."""
    if copy.code == "set-aside":
        return is_inside(copy.path)
    with suppress(OSError):
        return any(map(is_inside, list_origins(copy.path)))
    return True


def _find_trackers(s: Session, is_inside: Scope) -> Iterator[Sign]:
    """Yield trackers, each written after a save; garbage counts only where no other file is called so."""
    readers, own_names = _list_readers(s.layouts), {layout.tracker.file for layout in s.layouts}
    for (name, directory), path in s.found.trackers.items():
        if name not in readers or not is_inside(os.path.join(directory, name)):
            continue
        with suppress(OSError):  # reading it tells why
            if is_directory(path):
                continue
        sign, writer = _read_tracker(path, readers[name]), s.found.placed.get(path)
        if sign.code == "bad-tracker" and writer and writer.tracker.file != name:
            why = f"{writer.title} writes it, and what belongs to it is not there"
            yield Sign(path, why, say_hidden(writer), "missing-part")
        elif sign.code != "bad-tracker" or name in own_names:
            yield sign


def _read_tracker(path: str, readers: Iterable[Callable[[bytes], int | str | None]]) -> Sign:
    """Return the sign that a tracker is: what it names is not there, or it is no tracker ("bad-tracker")."""
    todo, code = "bring that checkpoint back", "dangling-tracker"
    try:
        if is_link(path):
            status(path)
    except OSError:
        why = f"it leads to {os.readlink(path)}, which is not there"
        return Sign(path, why, todo, code, NoneUsable)
    data = read_tracker(path, TRACKER_LIMIT)
    if isinstance(data, Finding):
        return Sign(path, data.message, code=data.code)
    target = next((found for read in readers if (found := read(data)) is not None), None)
    if target is None:
        return Sign(path, "it is empty, or not what its framework writes", code="bad-tracker")
    return Sign(path, f"it names {target}, which is not there or was never finished", todo, code, NoneUsable)


def _list_readers(layouts: Layouts) -> dict[str, list[Callable[[bytes], int | str | None]]]:
    """Return the functions that read a tracker's bytes, by the name of its file."""
    readers = defaultdict[str, list[Callable[[bytes], int | str | None]]](list)
    for tracker in (layout.tracker for layout in layouts):
        if tracker.file and tracker.read:
            readers[tracker.file].append(tracker.read)
        for path, read in tracker.others:
            readers[os.path.basename(path)].append(lambda data, read=read: read(data, ""))  # type: ignore[misc]
    return dict(readers)


def _find_remains(s: Session, is_outside: Scope) -> Iterator[Sign]:
    """Yield the first path that one framework alone writes to, else directories named like saves."""
    try:
        for path in filter(is_outside, list_unknown(s.found, s.root)):
            if layout := s.layouts.trace(os.path.relpath(path, s.root)):
                todo = f"{say_hidden(layout) or 'bring the rest back'}; {BYSTANDERS}"
                yield Sign(path, f"{layout.title} writes it, and the rest of a checkpoint is not there", todo)
                return
        files = filter(is_outside, list_unknown(s.found, s.root, files=True))
        homes = sorted(set(_find_homes(s, files, is_outside)))
    except OSError as e:
        yield _make_unseen(e.filename or s.root, str(e.strerror))
        return
    why = "named like a save's directory, with nothing of a save in it"
    yield from (Sign(p, why, f"bring back what was in it; {BYSTANDERS}", "unrecognised-file") for p in homes)


def _find_homes(s: Session, files: Iterable[str], is_outside: Scope) -> Iterator[str]:
    """Yield directories that a layout's template calls a step's or an epoch's, and that hold none but such
    ``files``: texts that describe a model, or files of unknown kinds (only these if the name is a number).
    Templates that take any word do not count: ``version_0``. Yield empty directories if there are several: a
    job that dies in its first save leaves one.
    """
    declared = s.layouts.templates()

    @cache
    def find_home(directory: str) -> str:
        saves = (p for p in declared.places(directory) if p.home.startswith(f"{s.root}/") and not p.prefix)
        return next((p.home for p in saves if {p.step, p.epoch, p.generation} != {None}), "")

    for path in files:
        name, above = os.path.basename(path), path
        is_text = is_other(name) and not formats.names.known(name)
        may_count = not is_text or name.endswith(_DESCRIBES)
        while may_count and len(above := os.path.dirname(above)) > len(s.root):
            if (home := find_home(above)) and not (is_text and os.path.basename(above).isdigit()):
                yield home
    empty = {find_home(path) for path in s.found.empty if is_outside(f"{path}/")} - {""}
    yield from empty if len(empty) > 1 else ()


def describe_unplaced(session: Session) -> str:
    """Return what to add to a hint if no checkpoint is usable, but files without a layout may be states."""
    rows = [f.path for f in find_unplaced_files(session, 0, bool) if f.state]
    names = first_launch_leftovers.name_paths(session.root, rows)
    return f"; beside them lie {names}: if they are saves, {make_layout_hint(session)}" if rows else ""


def _make_test_inside(root: str, selection: Selection) -> Scope:
    """Return a test for paths of the run that was asked for, by directory or prefix (``bool``: all paths)."""
    if selection.run is None and selection.prefix is None:
        return bool
    run, prefix = (selection.run or "").rstrip("/"), selection.prefix or ""
    run = os.path.relpath(run, root) if os.path.isabs(run) or is_url(run) else run
    directory, _, start = run.rpartition("/")

    def is_inside(path: str) -> bool:
        above, _, name = f"/{os.path.relpath(path, root)}".rpartition("/")
        if run in ("", ".") or f"/{run}/" in f"{above}/":
            return name.startswith(prefix)
        # the runs of one directory differ by the prefix of their files
        return f"{above}/".endswith(f"/{directory}/" if directory else "/") and name.startswith(start)

    return is_inside


LAST = "last.json"
"""The last start of a root that had a checkpoint."""
FLAG = "--plan-dir"
MOST = 256 << 20
"""Bytes of one file below --plan-dir at most: the decision for 100,000 ranks has 50 MB."""


def make_safe(name: str) -> str:
    """Return a name as a single path component of at most 80 characters."""
    return re.sub(r"[^A-Za-z0-9_.=-]", "_", name)[:80].lstrip(".") or "_"


def name_home(plan_dir: str, root: str) -> str:
    """Return the directory of the decisions about one root. Raises UsageError if it lies inside the root."""
    import xxhash

    root, plan_dir = to_absolute(root), to_absolute(plan_dir)
    inside = real_path(plan_dir) + os.sep
    if inside.startswith(real_path(root).rstrip(os.sep) + os.sep):
        text = f"the state directory {plan_dir} lies inside {root}, where ckpt never writes"
        raise UsageError(text, "name one outside it with --plan-dir or CKPT_STATE_DIR")
    digest = xxhash.xxh3_64_hexdigest(os.fsencode(root))
    return os.path.join(plan_dir, f"{make_safe(os.path.basename(root))}-{digest}")


def find_home(root: str, selection: Selection) -> str:
    """Return the directory of the decisions about a root, in --plan-dir or in this user's own directory."""
    return name_home(selection.plan_dir or resolve.decisions(), root)


def read_last_start(directory: str, trusted: Trust = OURS) -> EarlierStart | None:
    """Return the last start that had a checkpoint, from the directory of decisions about a root; else None.

    Raises CannotLook if the log cannot be read, Untrusted if others could have written or removed it.
    """
    path = os.path.join(directory, LAST)
    description = f"{path}, which tells whether an earlier start had a checkpoint,"
    try:
        data = read_below(path, description, trusted)
        return None if data is None else checked_json.decode(checked_json.parse(data), EarlierStart)
    except ValueError as e:
        todo = f"to start from nothing anyway add --allow fresh; to forget what it said: rm {quote(path)}"
        raise could_not_look.stop(f"{description} is damaged: {e}", todo) from e


def read_below(path: str, description: str, trusted: Trust = OURS) -> bytes | None:
    """Return the bytes of a file below --plan-dir, None without one. Raises CannotLook or Untrusted."""
    try:
        with trust.label(FLAG):
            try:
                return trust.read(path, MOST, trusted)
            except FileNotFoundError:
                trust.check_absent(path, trusted)
                return None
    except OSError as e:
        todo = "make it readable, or name another directory with --plan-dir"  # a lost mount looks like this
        raise could_not_look.stop(f"{description} cannot be read: {e.strerror}", todo) from e


def find_earlier_start(root: str, selection: Selection) -> EarlierStart | None:
    """Return the earlier start that forbids to take this one for the first, else None. Raises CannotLook."""
    before = None if selection.allow_fresh else read_last_start(find_home(root, selection), selection.trust)
    if before and (selection.run, selection.prefix, selection.layout) != (None, None, None):
        # one log for all runs of a root: a checkpoint that is still there is not lost, but of another run
        with suppress(OSError):  # if nobody can tell, it counts
            return None if exists(before.path) else before
    return before


def require_first_launch(root: str, selection: Selection, plan: LoadPlan | None) -> None:
    """Raise NoneUsable if an earlier start of this root had a checkpoint."""
    if before := find_earlier_start(root, selection):
        raise first_launch_leftovers.stop_without_earlier(before, root, plan)
