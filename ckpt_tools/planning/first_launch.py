"""Is this a first launch? What speaks against it where no finished checkpoint was found: a tracker, files in a checkpoint format, large files of no known kind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ckpt_tools import formats
from ckpt_tools.discovery.completeness import listed
from ckpt_tools.discovery.sidecars import read_tracker
from ckpt_tools.discovery.unrecognised import suspects
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, NotRecognised, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import active
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.candidates import belongs
from ckpt_tools.reading.session import TRACKER_LIMIT, Session

_LISTED = 16
"""Files that get a finding of their own; one more finding counts the others."""
_FRESH = "to start from nothing all the same say --allow-fresh"
_BYSTANDERS = "for files that have nothing to do with it say --exclude GLOB"
Scope = Callable[[str], bool]
"""Whether a path matters to the question."""
Objection = tuple[CkptError, list[Finding]]


def first_launch(
    session: Session, selection: Selection, everything: Sequence[Checkpoint], unfinished: Sequence[Checkpoint]
) -> tuple[CkptError | None, list[Finding]]:
    """The error that keeps a job from starting fresh where nothing that was asked for was ever finished, None where it may; and findings for the plan.

    ``everything`` are the checkpoints and saves of the root, ``unfinished`` the saves among them that were asked for.
    """
    finished = [c for c in everything if not c.unfinished]
    if any(belongs(c, replace(selection, layout=None)) for c in finished):
        text = f"{session.root} holds {listed(session.runs(finished))}, none of layout {selection.layout}"
        return NoneUsable(text, "correct --layout, or leave it out"), []
    narrowed = selection.run is not None or selection.prefix is not None
    inside = _scope(session.root, selection) if narrowed else _anywhere
    saves = [c for c in everything if c.unfinished]
    if speaks := objection(session, saves, inside):
        return speaks
    findings = list[Finding]()
    if narrowed and not unfinished and (everything or objection(session, saves, _anywhere)):
        error, findings = _no_such_run(session, selection, everything)
        if error is not None:
            return error, findings
    if selection.allow_none:
        return None, findings
    begun = len(unfinished) + len(session.found.unfinished)
    text = (
        f"{session.root} holds only unfinished saves ({begun})"
        if begun
        else f"there is no checkpoint in {session.root}"
    )
    text += f" (hidden by --exclude: {len(hidden):,})" if (hidden := session.found.hidden.paths) else ""
    return NoCheckpoint(text), findings


def _no_such_run(
    session: Session, selection: Selection, others: Sequence[Checkpoint]
) -> tuple[CkptError | None, list[Finding]]:
    """A misspelt run looks like one that is new: only the caller can tell."""
    flags = {"--run": selection.run, "--prefix": selection.prefix, "--layout": selection.layout}
    asked = " ".join(f"{flag} {value}" for flag, value in flags.items() if value is not None)
    if selection.allow_none and selection.allow_missing:
        text = f"nothing belongs to {asked}: this is taken for a first launch (--allow-missing)"
        return None, [finding("missing-run", text, path=session.root)]
    there = (
        f"it holds {listed(session.runs(others))}"
        if others
        else "it holds other files of checkpoints ('ckpt ls')"
    )
    hint = "correct it; for the first launch of a new run beside others say --allow-none --allow-missing"
    return UsageError(f"nothing in {session.root} belongs to {asked}: {there}", hint), []


def _scope(root: str, selection: Selection) -> Scope:
    run = (selection.run or "").rstrip("/")
    run = os.path.relpath(run, root) if os.path.isabs(run) else run
    return partial(_inside, root, "" if run == "." else run, selection.prefix or "")


def _anywhere(path: str) -> bool:
    return True


def _inside(root: str, run: str, prefix: str, path: str) -> bool:
    """Whether a path would belong to a run of that name: below a directory called so, or a file whose name starts with its prefix."""
    above, _, name = f"/{os.path.relpath(path, root)}".rpartition("/")
    if run and f"/{run}/" not in f"{above}/":
        directory, _, start = run.rpartition(
            "/"
        )  # the runs of one directory differ by the prefix of their files
        return f"{above}/".endswith(f"/{directory}/" if directory else "/") and name.startswith(start)
    return name.startswith(prefix)


def objection(session: Session, saves: Sequence[Checkpoint], inside: Scope) -> Objection | None:
    """The error that keeps a job from starting fresh, with findings that name every reason; None where nothing speaks against it.

    ``saves`` are those that never finished: what lies in them is no reason.
    """
    if named := list(_trackers(session, inside)):
        errors = [f for f in named if f.code == "dangling-tracker"]
        text = "; ".join(f"{f.path}: {f.message}" for f in errors or named)
        if errors:
            return NoneUsable(text, f"bring that checkpoint back; {_FRESH}"), named
        return NotRecognised(f"{text}: whether there was a checkpoint is yours to say", _FRESH), named
    if copies := [f for f in session.aside if inside(f.path)]:
        text = f"{session.root} holds only copies that somebody made by hand: {_names(session, [f.path for f in copies])}"
        return NoneUsable(text, f"{copies[0].hint}; {_FRESH}"), copies
    outside = _outside(session, saves, inside)
    if files := [
        path for path, _, _, _ in session.found.bare if outside(path) and _holds_state(session, path)
    ]:
        text = f"{session.root} holds files in a checkpoint format, but in no layout that ckpt knows: {_names(session, files)}"
        hint = f"describe their layout ('ckpt layouts --check'); {_BYSTANDERS}; {_FRESH}"
        return NoneUsable(text, hint), list(
            _each("no-layout", "a file in a checkpoint format that no layout could place", files)
        )
    return _large(session, outside)


def _large(session: Session, outside: Scope) -> Objection | None:
    """As ``objection``, for large files that nothing here has a name for."""
    try:
        rows = [s for s in suspects(session.found, session.root) if outside(s.path)]
    except OSError as e:
        return CannotLook(f"{e.filename or session.root}: {e.strerror}; nobody knows what lies there"), []
    if files := [s.path for s in rows if s.format]:
        text = f"{session.root} holds files in a checkpoint format under names that ckpt does not know: {_names(session, files)}"
        found = [
            finding("no-layout", f"its content is {s.format}, and no layout could place it", path=s.path)
            for s in rows
            if s.format
        ]
        return NoneUsable(
            text, f"describe their layout ('ckpt layouts --check'); {_BYSTANDERS}; {_FRESH}"
        ), found
    if rows:
        text = f"{session.root} holds large files of no known kind: {_names(session, [s.path for s in rows])}"
        hint = f"if they are checkpoints, describe their layout ('ckpt layouts --check'); {_BYSTANDERS}; {_FRESH}"
        found = list(_each("unrecognised-file", "a large file of no known kind", [s.path for s in rows]))
        return NotRecognised(f"{text}: whether they are checkpoints is yours to say", hint), found
    return None


def _names(session: Session, paths: Sequence[str]) -> str:
    shown = ", ".join(os.path.relpath(p, session.root) if p != session.root else p for p in paths[:4])
    return f"{shown} and {len(paths) - 4:,} more" if len(paths) > 4 else shown


def _each(code: str, text: str, paths: Sequence[str]) -> Iterator[Finding]:
    yield from (finding(code, text, path=p) for p in paths[:_LISTED])
    if len(paths) > _LISTED:
        yield finding(code, f"{len(paths) - _LISTED:,} more such files", path=os.path.commonpath(paths))


def _trackers(session: Session, inside: Scope) -> Iterator[Finding]:
    """What the trackers say although there is no checkpoint: each of them was written because there was one."""
    readers: dict[str, list[Callable[[bytes], int | str | None]]] = {}
    for layout in active():
        if layout.tracker and layout.read_tracker:
            readers.setdefault(layout.tracker, []).append(layout.read_tracker)
    for (name, directory), path in session.found.trackers.items():
        if name not in readers or not inside(os.path.join(directory, name)) or os.path.isdir(path):
            continue
        if os.path.islink(path) and not os.path.exists(path):
            yield finding(
                "dangling-tracker", f"it leads to {os.readlink(path)}, which is not there", path=path
            )
            continue
        data = read_tracker(path, TRACKER_LIMIT)
        if isinstance(data, Finding):
            yield data
            continue
        said = next((word for read in readers[name] if (word := read(data)) is not None), None)
        if said is None:
            yield finding("bad-tracker", "the tracker is empty, or not what its framework writes", path=path)
        else:
            yield finding(
                "dangling-tracker",
                f"the tracker names {said}, which is not there or was never finished",
                path=path,
            )


_UNDER_WAY = re.compile(r"(^|[._-])te?mp([._-]|\d|$)|\.(dirty|part|partial)(\.|$)|tmp-\d+")
"""In the name of a directory: what was written there was to be renamed when it was whole."""


def _outside(session: Session, saves: Sequence[Checkpoint], inside: Scope) -> Scope:
    """Paths that matter, without the parts of saves that never finished and what lies in their directories."""
    homes = {p.home for c in saves for p in c.parts if p.home}
    parts = {p.path for p in session.parts}

    def outside(path: str) -> bool:
        if not inside(path) or path in parts:
            return False
        above = os.path.relpath(os.path.dirname(path), session.root).split("/")
        under_way = any(_UNDER_WAY.search(part) for part in above if part not in ("tmp", "temp"))
        return path == session.root or not (under_way or any(path.startswith(f"{home}/") for home in homes))

    return outside


def _holds_state(session: Session, path: str) -> bool:
    """Whether a file is one that only a training run writes: not a configuration, a vocabulary, or a strategy that was made before the first step."""
    name = os.path.basename(path)
    if formats.names.state(name) and "mindspore_strategy" not in formats.names.allowed(name):
        return True
    if path != session.root and not formats.names.state(name) and formats.names.known(name):
        return False
    return (
        session.look(path, Level.STRUCTURE).format not in (None, "mindspore_strategy", "json_member")
        or path == session.root
    )
