"""Checkpoints out of their framework's sight, and back: renamed below ``.ckpt/quarantine``, never deleted."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from glob import escape
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.api import plan, verify
from ckpt_tools.discovery.exclude import QUARANTINE, STATE
from ckpt_tools.errors import CkptError, NoCheckpoint, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.guard import journal
from ckpt_tools.guard.journal import Operation, Step, Store
from ckpt_tools.guard.targets import Group, groups, named
from ckpt_tools.model.answers import Change, Changes
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.trust import OURS, Trust


def quarantine(
    root: str,
    paths: Sequence[str] = (),
    *,
    damaged: bool = False,
    apply: bool = False,
    state_dir: str | None = None,
    selection: Selection | None = None,
) -> Changes:
    """Put checkpoints below ``root`` into its quarantine: those at or below ``paths``, or with ``damaged``
    all that have damage, but for the one that ``plan`` resumes from all the same. Without ``apply`` it only
    says what it would do.

    A tracker that names one of them is pointed at what ``plan`` chooses then, where it chooses something.
    ``selection`` says how to read and what to plan. Raises UsageError, NoCheckpoint where a path is none, and
    CannotLook.
    """
    sel, root = selection or Selection(cache=True), os.path.abspath(root)
    with journal.opened(root, state_dir, sel.trust, apply=apply) as store:
        s = open_session(root, sel.read_options())
        s.add_members()
        found = groups(s)
        wanted = _find_damaged(found, root, sel) if damaged else named(found, paths, root)
        chosen = _plan_without(root, sel, ()) if damaged and wanted else None
        why = {g: _why_it_stays(g, chosen, sel.settle, s.now_ns) for g in wanted}
        away = [g for g, stays in why.items() if not stays]
        below = _find_below(root, away)

        pointed, findings = _point_trackers(s, sel, away, below)
        number = None
        if apply and away:
            steps = [store.step_to_write(os.path.relpath(t.path, root), t.data) for t in pointed]
            steps += [Step(path, f"{store.place(QUARANTINE)}/{path}") for path in below]
            number = store.run("quarantine", ", ".join(g.name for g in away), steps).number
        rows = [*store.changes(), *_say(why, pointed, apply)]
        return Changes("quarantine", root, apply, tuple(rows), findings, number)


def _point_trackers(
    s: Session, sel: Selection, away: Sequence[Group], below: Collection[str]
) -> tuple[list[Pointed], tuple[Finding, ...]]:
    """The trackers that name what goes, made to name what is resumed from then; and those that cannot be."""
    named_by = find_naming(s, [g.checkpoint for g in away if g.checkpoint])
    then = _plan_without(s.root, sel, below) if named_by else None
    made = point_tracker(s, then.checkpoint) if then and then.checkpoint else None
    pointed = [made] if made and made.path in named_by else []
    text = "it names what goes into quarantine, and 'ckpt plan' chooses nothing that it could name"
    left, warn = sorted(named_by - {t.path for t in pointed}), Severity.WARNING
    return pointed, tuple(finding("dangling-tracker", text, path=path, severity=warn) for path in left)


def _say(why: Mapping[Group, str], trackers: Sequence[Pointed], done: bool) -> Iterator[Change]:
    """First what stays, and ``why``."""
    for g in sorted(why, key=lambda g: not why[g]):
        state = "stays" if why[g] else "moved" if done else "would-move"
        size = 0 if done and not why[g] else g.size
        yield Change(g.path, state, why[g], None, g.label, len(g.files), size)
    for t in trackers:
        said = f"it named {t.now}, and names {t.then} then"
        yield Change(t.path, "pointed" if done else "would-point", said)


def _find_damaged(found: Sequence[Group], root: str, sel: Selection) -> list[Group]:
    names = ("jobs", "settle", "key_file", "cache", "max_age", "io", "limit_rate", "trust", "layouts")
    seen = verify(root, **{name: getattr(sel, name) for name in names})
    bad = {row.report.path for row in seen.files if row.report.verdict is Verdict.BROKEN}
    bad |= {f.path for f in seen.findings if f.severity is Severity.ERROR and f.path}
    return [g for g in found if any(map(g.holds, bad)) or g.path in bad]


def _why_it_stays(group: Group, chosen: LoadPlan | None, settle: float, now_ns: int) -> str:
    times = [os.lstat(path).st_mtime_ns for path in group.files if os.path.lexists(path)]
    if (now_ns - max(times, default=0)) / 1e9 < settle:
        return "written a moment ago, so it may be in use: wait, or add --settle 0s"
    resumed = chosen.checkpoint if chosen else None
    if resumed and group.checkpoint and group.checkpoint.key == resumed.key:
        return "a job resumes from it all the same, because other files stand in for the damaged ones"
    return ""


def _plan_without(root: str, sel: Selection, away: Collection[str]) -> LoadPlan | None:
    """What a job would resume from without these paths; None where nothing."""
    try:
        return plan(root, replace(sel, exclude=(*sel.exclude, *map(escape, away))))
    except CkptError:
        return None


def _find_below(root: str, away: Sequence[Group]) -> list[str]:
    """The paths of what goes, as seen from the root. Raises UsageError for what does not lie below it."""
    out = list[str]()
    for path in (path for g in away for path in g.paths):
        out.append(os.path.relpath(path, root))
        if out[-1].split("/")[0] in (".", ".."):
            text = f"{path} does not lie below {root}, in which its quarantine would be"
            raise UsageError(text, f"add --root {os.path.dirname(path)}")
    return out


# ---- and back


def restore(
    root: str, paths: Sequence[str], *, apply: bool = False, state_dir: str | None = None, trust: Trust = OURS
) -> Changes:
    """Bring back what ``paths`` name: directories below ``.ckpt/quarantine``, or the paths that files and
    checkpoints had. Without ``apply`` it only says what it would do.

    Raises NoCheckpoint where nothing of the kind lies there, UsageError where something else has its name by
    now, and CannotLook.
    """
    root = os.path.abspath(root)
    with journal.opened(root, state_dir, trust, apply=apply) as store:
        found = list(dict.fromkeys(pair for path in paths for pair in _find_moves(store, root, path)))
        rows = _list_back(store, root, [step for _, step in found], apply)
        number = store.take_back_some(found) if apply else None
        return Changes("restore", root, apply, tuple(rows), (), number)


def _find_moves(store: Store, root: str, path: str) -> Iterator[tuple[Operation, Step]]:
    """The moves of operations whose things a path means, that are still where they were moved to."""
    below = os.path.relpath(path, root)
    found = False
    for operation in store.operations:
        if operation.command != "quarantine" or operation.status != "done":
            continue
        for step in operation.steps:
            meant = any(f"{own}/".startswith(f"{below}/") for own in (step.source, step.target))
            if meant and not step.kept and step.find_state(store.tree) == "done":
                found = True
                yield operation, step
        if found and not below.startswith(STATE):
            return  # the last time that it was put away
    if not found:
        text = f"nothing that 'ckpt quarantine' put away was {path}"
        hint = f"'ckpt ls --quarantine {quote(root)}' lists what lies in {STATE}/{QUARANTINE}"
        raise NoCheckpoint(text, hint)


def undo(root: str, *, apply: bool = False, state_dir: str | None = None, trust: Trust = OURS) -> Changes:
    """Take back the last repair or quarantine below ``root``. Without ``apply`` it only says what it would
    do.

    Raises NoCheckpoint where there is none, UsageError where a file is no longer what it left, and
    CannotLook.
    """
    root = os.path.abspath(root)
    with journal.opened(root, state_dir, trust, apply=apply) as store:
        ended = (op for op in store.operations if op.status == "done" and op.command in journal.UNDOABLE)
        last = next(ended, None)
        if last is None:
            raise NoCheckpoint(f"no command that can be taken back has changed anything in {root}")
        states = [(step, step.find_state(store.tree)) for step in last.steps]
        for path in (os.path.join(root, step.target) for step, state in states if state == "gone"):
            text = f"{path} is not as 'ckpt {last.command}' left it"
            raise UsageError(text, "move back by hand what it has put away")
        rows = _list_back(store, root, [step for step, state in states[::-1] if state == "done"], apply)
        if apply:
            store.take_back(last)
        return Changes("undo", root, apply, tuple(rows), (), last.number if apply else None)


def _list_back(store: Store, root: str, steps: Sequence[Step], done: bool) -> list[Change]:
    """What was taken back already, and what is done to undo these steps. Raises UsageError where something
    else has the name of what comes back by now.
    """
    rows = store.changes()
    for step in steps:
        was, now = os.path.join(root, step.source), os.path.join(root, step.target)
        if step.kept:
            old = os.path.join(root, step.kept)
            rows.append(Change(now, "replaced" if done else "would-replace", f"by {old}"))
            continue
        if store.tree.identify(step.source) is not None:
            raise UsageError(f"{was} exists, and is not replaced", "move it away first")
        rows.append(Change(now, "moved" if done else "would-move", "", was))
    return rows


def list_quarantine(root: str, *, state_dir: str | None = None, trust: Trust = OURS) -> Changes:
    """What lies in the quarantine of ``root``, the last that was put away first. Raises CannotLook."""
    root, rows = os.path.abspath(root), list[Change]()
    with journal.opened(root, state_dir, trust, apply=False) as store:
        for op in store.operations:
            why = f"{op.command}, {time.strftime('%Y-%m-%d %H:%M', time.localtime(op.at))}"
            for step in op.steps:
                was, there = (step.target, step.kept) if step.kept else (step.source, step.target)
                if there.startswith(f"{STATE}/{QUARANTINE}/") and store.tree.identify(there) is not None:
                    was, there = os.path.join(root, was), os.path.join(root, there)
                    rows.append(Change(there, "in-quarantine", why, was))
    return Changes("ls", root, applied=False, changes=tuple(rows))


class Pointed(Struct, frozen=True):
    """A tracker at ``path`` that says ``now`` (None where it is not there); with ``data`` in it, it says
    ``then``.
    """

    path: str
    now: str | None
    then: int | str
    data: bytes


def point_tracker(s: Session, chosen: Checkpoint) -> Pointed | None:
    """The tracker beside a checkpoint made to name it; None where it does, or its layout has none that is
    missed.

    Raises UsageError where the tracker is a link: what it leads to is not known to be a tracker.
    """
    layout, base = s.layouts.of(chosen), chosen.parts[0].base
    then = layout.tracker.name(chosen) if layout.tracker.file else None
    if not layout.tracker.file or then is None or layout.tracker.read is None:
        return None
    path = os.path.join(base, layout.tracker.file)
    tracker = s.text_tracker(layout.name, base)
    if tracker is None:
        data = layout.tracker.write(then)
        return Pointed(path, None, then, data) if layout.tracker.always else None
    if os.path.islink(path):
        raise UsageError(f"{path} is a link", "point it yourself: ln -sfn")
    said = tracker[1]
    if not isinstance(said, Finding) and layout.tracker.names(chosen, said):
        return None
    now = said.message if isinstance(said, Finding) else "nothing readable" if said is None else str(said)
    return Pointed(path, now, then, layout.tracker.write(then))


def find_naming(s: Session, checkpoints: list[Checkpoint]) -> set[str]:
    """The trackers beside these checkpoints that name one of them."""
    out = set[str]()
    for c in checkpoints:
        path, said = s.text_tracker(c.layout, c.parts[0].base) or ("", None)
        if said is not None and not isinstance(said, Finding) and s.layouts.of(c).tracker.names(c, said):
            out.add(path)
    return out
