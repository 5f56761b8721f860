"""Is this a first launch? Looks for what speaks against one where no finished checkpoint was found.

A tracker that names a step, files in a checkpoint format, and large files of no known kind do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from shlex import quote
from typing import NamedTuple

from ckpt_tools import formats
from ckpt_tools.discovery.completeness import listed, why_unfinished
from ckpt_tools.discovery.sidecars import read_tracker
from ckpt_tools.discovery.unrecognised import is_other, remains, tells_of_a_state
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, NotRecognised, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts.common import under_way
from ckpt_tools.layouts.common.places import Templates
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.facts import UnplacedFacts
from ckpt_tools.planning.filters import belongs
from ckpt_tools.planning.rules.choice.unplaced_newer import RULE, how_to_describe
from ckpt_tools.planning.scope import Scope, anywhere, scope
from ckpt_tools.planning.unfinished import hidden_files, hint_of, not_renamed, written_whole
from ckpt_tools.planning.unplaced import unplaced_files
from ckpt_tools.reading.session import TRACKER_LIMIT, Session
from ckpt_tools.settings import plugins
from ckpt_tools.settings.resolve import nearest
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import is_directory, is_link, status
from ckpt_tools.storage.urls import common

_LISTED = 16
"""Files that get a finding of their own; one more finding counts the others."""
_FRESH = "to start from nothing anyway say --allow-fresh"
_NOT_WHOLE = (
    "nothing can resume from them: bring back what they lack, or start from nothing with --allow-none"
)
_AFRESH = "for a first launch add --allow-none; else check the path"
_BYSTANDERS = "if the files have nothing to do with checkpoints say --exclude GLOB"
_DESCRIBES = (".json", ".yaml", ".yml", ".toml")
"""Endings of texts that are saved beside a model."""
_NUMBER = re.compile(r"\d+")
TrackerReader = Callable[[bytes], "int | str | None"]


class Outcome(NamedTuple):
    """The error that keeps a job from starting fresh (None where it may), and findings with the reasons."""

    error: CkptError | None
    findings: Sequence[Finding] = ()


def first_launch(
    session: Session, selection: Selection, everything: Sequence[Checkpoint], unfinished: Sequence[Checkpoint]
) -> Outcome:
    """Whether a job may start fresh where nothing that was asked for was ever finished.

    ``everything`` are the checkpoints and saves of the root, ``unfinished`` the saves among them that were
    asked for.
    """
    saves = [c for c in everything if c.unfinished]
    if objection := next(filter(None, _objections(session, selection, everything, unfinished)), None):
        return objection
    one_run = _of_one_run(selection)
    is_gone = one_run and not unfinished and (everything or _objection(session, saves, anywhere))
    run = _no_such_run(session, selection, everything) if is_gone else Outcome(None)
    findings = [*run.findings, *_begun(session)]
    if run.error is not None or selection.allow_none:
        return Outcome(run.error, findings)
    return Outcome(_no_checkpoint(session, unfinished), findings)


def _objections(
    session: Session, selection: Selection, everything: Sequence[Checkpoint], unfinished: Sequence[Checkpoint]
) -> Iterator[Outcome | None]:
    """What speaks against a start from nothing, each looked for once nothing before it does."""
    saves = [c for c in everything if c.unfinished]
    yield _of_a_broken_plugin()
    yield _of_another_layout(session, selection, everything)
    yield _several_interrupted(session, unfinished)
    yield _objection(session, saves, scope(session.root, selection) if _of_one_run(selection) else anywhere)
    yield _without_first(session, unfinished)
    yield _written_whole(session)


def _of_one_run(selection: Selection) -> bool:
    return selection.run is not None or selection.prefix is not None


def _begun(session: Session) -> Iterator[Finding]:
    """Files and directories of saves that were not given their names, and so are none."""
    begun = {path: None for path in session.found.unfinished if tells_of_a_state(os.path.basename(path))}
    for path, *_ in session.found.bare:
        while (path := os.path.dirname(path)) != session.root and len(path) > len(session.root):
            if under_way.is_begun(os.path.basename(path)):
                begun[path] = None
    yield from _each("unfinished-save", "what a save that never finished was writing", list(begun))


def _of_a_broken_plugin() -> Outcome | None:
    """What only a plug-in knows is there all the same when the plug-in is broken."""
    found = list(plugins.findings())
    if not found:
        return None
    text = f"whether there is a checkpoint is not known: {found[0].message}"
    return Outcome(CannotLook(text, found[0].hint), found)


def _of_another_layout(
    session: Session, selection: Selection, everything: Sequence[Checkpoint]
) -> Outcome | None:
    finished = [c for c in everything if not c.unfinished]
    if not any(belongs(c, replace(selection, layout=None)) for c in finished):
        return None
    text = f"{session.root} holds {listed(session.runs(finished))}, none of layout {selection.layout}"
    names = [layout.name for layout in session.layouts]
    meant = None if selection.layout in names else nearest(str(selection.layout), names)
    hint = f"did you mean {meant!r}?" if meant else "correct --layout, or leave it out"
    return Outcome(NoneUsable(text, hint))


def _no_checkpoint(session: Session, unfinished: Sequence[Checkpoint]) -> NoCheckpoint:
    begun = len(unfinished) + len(session.found.unfinished)
    only_begun = f"{session.root} holds only unfinished saves ({begun})"
    text = only_begun if begun else f"there is no checkpoint in {session.root}"
    hidden = len(session.found.excluded.paths)
    text += f" (hidden by --exclude: {hidden:,})" if hidden else ""
    todo = _NOT_WHOLE if begun else _AFRESH
    hint = f"{todo}; 'ckpt ls {quote(session.root)}' lists what is there"
    return NoCheckpoint(text, hint)


def _no_such_run(session: Session, selection: Selection, others: Sequence[Checkpoint]) -> Outcome:
    """A misspelt run looks like one that is new: only the caller can tell."""
    flags = {"--run": selection.run, "--prefix": selection.prefix, "--layout": selection.layout}
    requested = " ".join(f"{flag} {value}" for flag, value in flags.items() if value is not None)
    if selection.allow_none and selection.allow_missing:
        text = f"nothing belongs to {requested}: this is taken for a first launch (--allow-missing)"
        return Outcome(None, [finding("missing-run", text, path=session.root)])
    there = "it holds other files of checkpoints ('ckpt ls')"
    if others:
        there = f"it holds {listed(session.runs(others))}"
    hint = "correct it; for the first launch of a new run beside others say --allow-none --allow-missing"
    return Outcome(
        UsageError(
            f"nothing in {session.root} belongs to {requested}: {there}", hint, rule="tree/several-runs"
        )
    )


def _objection(session: Session, saves: Sequence[Checkpoint], inside: Scope) -> Outcome | None:
    """What speaks against a first launch; None where nothing does.

    ``saves`` are those that never finished: what lies in them is no reason.
    """
    outside = _outside(session, saves, inside)
    return (
        _tracked(session, inside)
        or _lost(session, outside)
        or _sealed(session, inside)
        or _put_aside(session, inside)
        or _in_no_layout(session, outside)
        or _remains(session, outside)
    )


def _several_interrupted(session: Session, unfinished: Sequence[Checkpoint]) -> Outcome | None:
    """Saves of one run that lack what is written last, although their names are those of finished ones.
    Runs that a number alone tells apart may be directories of one run's steps.

    A job that dies in its first save leaves one. Where there are several, training went on after the earlier:
    they were finished, and have lost it.
    """
    runs: dict[tuple[str, str], list[Checkpoint]] = {}
    for c in unfinished:
        if not any(p.unfinished for p in c.parts):
            runs.setdefault((c.layout, _NUMBER.sub("", c.run)), []).append(c)
    several = [c for saves in runs.values() if len(saves) > 1 for c in saves]
    if not several:
        whole = not_renamed(session, unfinished)
        if whole is None:
            return None
        text = f"{whole.path} has all files of a save, and the name of one that was not finished"
        return Outcome(NotRecognised(text, f"rename it if it is whole; {_FRESH}"))
    layout = session.layouts.of(several[0])
    why = why_unfinished(several[0], layout)
    text = (
        f"{session.root} holds {len(several)} saves of which none is whole "
        f"({_names(session, [c.path for c in several])}: each {why}). A job that dies in its first save "
        "leaves one: only you know whether the others were finished and have lost files"
    )
    lost = hidden_files(layout, layout.commit) or "bring the lost files back"
    found = [
        finding("unfinished-save", f"it {why}", path=c.path, hint=hint_of(session, c) or lost)
        for c in several[:_LISTED]
    ]
    return Outcome(NotRecognised(text, f"{lost}; {_FRESH}"), found)


def _without_first(session: Session, unfinished: Sequence[Checkpoint]) -> Outcome | None:
    """A save of which nothing is left that its framework writes before what is there."""
    for c in unfinished:
        first = session.layouts.of(c).first_saved
        roles = {p.role for p in c.parts if not session.layouts.piece_of(p).survivable}
        if first and roles and roles.isdisjoint(first):  # each rank saves random numbers at once
            why = f"it has no {first[0]} file, which is written before the others"
            text = f"{c.path}: {why}: no job that dies in its first save leaves that"
            error = NotRecognised(text, f"bring the lost files back; {_FRESH}")
            return Outcome(error, [finding("missing-part", why, path=c.path)])
    return None


def _written_whole(session: Session) -> Outcome | None:
    path = written_whole(session)
    if path is None:
        return None
    why = "it is whole, and has the name of one that was not finished"
    todo = under_way.AGAIN if path.endswith(under_way.DOWNLOADS) else "rename it to resume from it"
    error = NotRecognised(f"{path}: {why}", f"{todo}; {_FRESH}")
    return Outcome(error, [finding("unfinished-save", why, path=path)])


def _tracked(session: Session, inside: Scope) -> Outcome | None:
    """Trackers that say something although there is no checkpoint."""
    findings = list(_tracker_findings(session, inside))
    if not findings:
        return None
    dangling = [f for f in findings if f.code == "dangling-tracker"]
    text = "; ".join(f"{f.path}: {f.message}" for f in dangling or findings)
    if dangling:
        return Outcome(NoneUsable(text, f"bring that checkpoint back; {_FRESH}"), findings)
    error = NotRecognised(f"{text}: only you know whether there was a checkpoint", _FRESH)
    return Outcome(error, findings)


def _lost(session: Session, outside: Scope) -> Outcome | None:
    """Links that lead nowhere: what they led to may lie on a mount that is lost."""
    links = [p for p in session.found.dangling if outside(p) and not is_other(os.path.basename(p))]
    if not links:
        return None
    found = list(_each("dangling-link", "it leads to what is not there", links))
    text = f"{session.root} holds links to what is not there: {_names(session, links)}"
    return Outcome(NoneUsable(text, f"bring that back, or mount it; {_BYSTANDERS}; {_FRESH}"), found)


def _sealed(session: Session, inside: Scope) -> Outcome | None:
    """Seals although there is no checkpoint: what was sealed was whole."""
    if session.indexes.seals is None:
        return None
    from ckpt_tools.planning.seals import only_seals  # only where there are seals

    files = [path for path in only_seals(session) if inside(path)]
    if not files:
        return None
    text = f"{session.root} holds seals of what is not there: {_names(session, files)}"
    found = list(_each("seal-missing", "it was sealed, and is not there", files))
    return Outcome(NoneUsable(text, f"bring it back; {_FRESH}"), found)


def _put_aside(session: Session, inside: Scope) -> Outcome | None:
    copies = [f for f in session.aside if _was_inside(f, inside)]
    if not copies:
        return None
    if unknown := next((f for f in copies if f.code == "unreadable"), None):
        return Outcome(CannotLook(f"{unknown.path}: {unknown.message}"), copies)
    names = _names(session, [f.path for f in copies])
    put_away = all(f.code == "in-quarantine" for f in copies)
    what = "what was put into quarantine" if put_away else "copies that somebody made by hand"
    text = f"{session.root} holds only {what}: {names}"
    return Outcome(NoneUsable(text, f"{copies[0].hint}; {_FRESH}"), copies)


def _was_inside(aside: Finding, inside: Scope) -> bool:
    """Whether it matters to the question: by where it lay, if it was put into quarantine."""
    if aside.code == "set-aside":
        return inside(aside.path)
    from ckpt_tools.discovery.quarantined import origins  # only where something was put away

    try:
        return aside.code == "unreadable" or any(map(inside, origins(aside.path)))
    except OSError:
        return True


def _in_no_layout(session: Session, inside: Scope) -> Outcome | None:
    """Files that no layout places, and that may hold a training state."""
    unplaced = tuple(unplaced_files(session, 0, inside))
    if session.unplaced:
        first = session.unplaced[0]
        return Outcome(CannotLook(f"{first.path}: {first.why}; nobody knows what lies there"))
    assert RULE.check is not None  # noqa: S101 - for the type checker
    hits = list(RULE.check(UnplacedFacts(session.root, unplaced)))
    if not hits:
        return None
    paths = [hit.path for hit in hits]
    text = f"{session.root} holds files that may be training states, and no layout places them: "
    hint = f"if they are saves, {how_to_describe(session.root)}; {_BYSTANDERS}; {_FRESH}"
    found = list(_each(RULE.code, "its content may be a training state, and no layout places it", paths))
    if all(f.broken for f in unplaced if f.path in paths):
        return Outcome(NoneUsable(text + _names(session, paths), hint, rule=RULE.id), found)
    return Outcome(NotRecognised(text + _names(session, paths), hint, rule=RULE.id), found)


def _remains(session: Session, outside: Scope) -> Outcome | None:
    """Files where one framework alone writes, without the rest of a checkpoint; or in a directory that a
    layout calls a save's, without anything of one.
    """
    try:
        layout = remains(session.found, session.root, session.layouts, outside)
        homes = (
            [] if layout else sorted({*_homes_without_a_save(session, outside), *_empty(session, outside)})
        )
    except OSError as e:
        text = f"{e.filename or session.root}: {e.strerror}; nobody knows what lies there"
        return Outcome(CannotLook(text))
    if layout is not None:
        text = f"{session.root} holds files as {layout.title} writes them, without the rest of a checkpoint"
        rest = hidden_files(layout) or "bring the rest back"
    elif homes:
        text = f"{session.root} holds what is called as saves are, with nothing of one in it: "
        text, rest = text + _names(session, homes), "bring back what was in it"
    else:
        return None
    text += ": only you know whether it is left over from one"
    found = list(_each("unrecognised-file", "called as a save's directory, with nothing of one in it", homes))
    return Outcome(NotRecognised(text, f"{rest}; {_BYSTANDERS}; {_FRESH}"), found)


def _homes_without_a_save(session: Session, outside: Scope) -> Iterator[str]:
    """The directories that a layout's template calls those of a step or an epoch, of which nothing is left
    but files that no layout places: texts that describe a model, and files of no known kind; in one that is
    called by a number alone only the latter. Templates that take any word are none: ``version_0``. Raises
    OSError.
    """
    found, root = session.found, session.root
    home_of = cache(partial(_home_of_a_step, session.layouts.templates(), root))
    entries = (e for at in found.strange for e in entries_of(at, partial(found.excluded.keep, root)))
    files = (e.path for e in entries if not is_directory(e))
    for path in filter(outside, (*(f.path for f in found.bare), *files)):
        name = os.path.basename(path)
        other = is_other(name) and not formats.names.known(name)
        if other and not name.endswith(_DESCRIBES):
            continue
        at = path
        while len(at := os.path.dirname(at)) > len(root):
            if (home := home_of(at)) and not (other and os.path.basename(at).isdigit()):
                yield home


def _empty(session: Session, outside: Scope) -> set[str]:
    """Return the empty directories that are called so, where there are several: a job that dies in its first
    save leaves one.
    """
    paths = filter(lambda path: outside(f"{path}/"), session.found.empty)
    homes = {_home_of_a_step(session.layouts.templates(), session.root, path) for path in paths} - {""}
    return homes if len(homes) > 1 else set()


def _home_of_a_step(templates: Templates, root: str, at: str) -> str:
    """The directory of a save by its number that ``at`` is, or is in; "" if in none."""
    inside = (p for p in templates.places(at) if p.home.startswith(f"{root}/") and not p.prefix)
    return next((p.home for p in inside if {p.step, p.epoch, p.generation} != {None}), "")


def in_no_layout(session: Session) -> str:
    """What to add to a hint where no checkpoint is usable, and other files of checkpoints are there."""
    rows = [f.path for f in unplaced_files(session, 0, anywhere) if f.state]
    names = _names(session, rows)
    return f"; beside them lie {names}: if they are saves, {how_to_describe(session.root)}" if rows else ""


def _names(session: Session, paths: Sequence[str]) -> str:
    shown = ", ".join(os.path.relpath(p, session.root) if p != session.root else p for p in paths[:4])
    return f"{shown} and {len(paths) - 4:,} more" if len(paths) > 4 else shown


def _each(code: str, text: str, paths: Sequence[str]) -> Iterator[Finding]:
    yield from (finding(code, text, path=p) for p in paths[:_LISTED])
    if len(paths) > _LISTED:
        yield finding(code, f"{len(paths) - _LISTED:,} more such files", path=common(paths))


def _tracker_findings(session: Session, inside: Scope) -> Iterator[Finding]:
    """What the trackers say although there is no checkpoint: each was written because there was one."""
    readers: dict[str, list[TrackerReader]] = {}
    surely = {layout.tracker for layout in session.layouts}
    for layout in session.layouts:
        if layout.tracker and layout.read_tracker:
            readers.setdefault(layout.tracker, []).append(layout.read_tracker)
        for at, read in layout.other_trackers:
            readers.setdefault(os.path.basename(at), []).append(partial(_of_any, read))
    for (name, directory), path in session.found.trackers.items():
        if name in readers and inside(os.path.join(directory, name)) and not _is_directory(path):
            said = _tracker_finding(path, readers[name])
            own = session.found.placed.get(path)
            if said.code == "bad-tracker" and own and own.tracker != name:
                text = f"{own.title} writes it, and what belongs to it is not there"
                said = finding("missing-part", text, path=path, hint=hidden_files(own))
            if name in surely or said.code != "bad-tracker":
                yield said


def _of_any(read: Callable[[bytes, str], int | str | None], data: bytes) -> int | str | None:
    return read(data, "")


def _is_directory(path: str) -> bool:
    try:
        return is_directory(path)
    except OSError:  # whoever reads it learns why
        return False


def _leads_somewhere(link: str) -> bool:
    try:
        status(link)
    except OSError:
        return False
    return True


def _tracker_finding(path: str, readers: Sequence[TrackerReader]) -> Finding:
    if is_link(path) and not _leads_somewhere(path):
        text = f"it leads to {os.readlink(path)}, which is not there"
        return finding("dangling-tracker", text, path=path)
    data = read_tracker(path, TRACKER_LIMIT)
    if isinstance(data, Finding):
        return data
    for read in readers:
        if (names := read(data)) is not None:
            text = f"the tracker names {names}, which is not there or was never finished"
            return finding("dangling-tracker", text, path=path)
    return finding("bad-tracker", "the tracker is empty, or not what its framework writes", path=path)


def _outside(session: Session, saves: Sequence[Checkpoint], inside: Scope) -> Scope:
    """Paths that matter, without the parts of unfinished saves and what lies in their directories."""
    homes = {p.home for c in saves for p in c.parts if p.home}
    parts = {p.path for p in session.parts}

    def outside(path: str) -> bool:
        if not inside(path) or path in parts:
            return False
        above = os.path.relpath(os.path.dirname(path), session.root).split("/")
        begun = any(map(under_way.is_begun, above))
        return path == session.root or not (begun or any(path.startswith(f"{home}/") for home in homes))

    return outside
