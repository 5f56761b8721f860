"""Moves checkpoints below ``.ckpt/quarantine`` and back, deletes none; points trackers at another one."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from glob import escape
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.api import plan, verify
from ckpt_tools.discovery.exclude import QUARANTINE, STATE
from ckpt_tools.errors import CkptError, NoCheckpoint, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.guard.journal import UNDOABLE, Journal, Operation, Step, open_journal
from ckpt_tools.guard.targets import Group, find_named, list_groups
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
    selection: Selection | None = None,
) -> Changes:
    """Put checkpoints below ``root`` into its quarantine: the ones at or below ``paths``, or with ``damaged``
    all damaged ones, except one that ``plan`` resumes from nevertheless. Without ``apply`` nothing is moved.

    A tracker that names one of them is pointed at what ``plan`` chooses then, if it chooses something.
    ``selection`` says how to read and what to plan. Raises UsageError, NoCheckpoint if a path is none, and
    CannotLook.
    """
    sel, root, number = selection or Selection(cache=True), os.path.abspath(root), None
    with open_journal(root, sel.trust, apply=apply) as journal:
        s = open_session(root, sel.read_options())
        s.add_members()
        found = list_groups(s)
        wanted = _find_damaged(found, root, sel) if damaged else _find_asked(found, paths, root)
        chosen = _plan_without(root, sel, ()) if damaged and wanted else None
        why_stays = {g: _find_reason_to_stay(g, chosen, sel.settle, s.now_ns) for g in wanted}
        moving = [g for g, reason in why_stays.items() if not reason]
        relative = _make_relative(root, moving)
        tracker, dangling = _point_trackers(s, sel, moving, relative)
        first_staying = sorted(why_stays.items(), key=lambda row: not row[1])
        rows = [_make_row(g, reason, apply) for g, reason in first_staying]
        steps = [Step(path, f"{journal.name_directory(QUARANTINE)}/{path}") for path in relative]
        if tracker:
            rows.append(tracker.make_row(apply))
        if apply and moving:
            if tracker:
                steps.insert(0, journal.step_to_write(os.path.relpath(tracker.path, root), [tracker.data]))
            number = journal.run("quarantine", steps)
        return Changes("quarantine", root, apply, (*journal.recovered, *rows), dangling, number)


def _find_asked(found: Sequence[Group], paths: Sequence[str], root: str) -> list[Group]:
    """Return the groups at or below ``paths``. Raises UsageError for a directory of checkpoints."""
    wanted = find_named(found, paths, root)
    own_paths = {root, *(g.path for g in wanted)}
    for path in paths:
        if path not in own_paths and os.path.isdir(path):  # its next job would begin anew
            hint = f"name each checkpoint in it, or add --root {quote(path)} to put all of them away"
            raise UsageError(f"{path} is no checkpoint, but a directory of some", hint)
    return wanted


def _point_trackers(
    s: Session, sel: Selection, moving: Sequence[Group], relative: Collection[str]
) -> tuple[NewTracker | None, tuple[Finding, ...]]:
    """Return the tracker that names a group in ``moving``, as it names what ``plan`` chooses without their
    ``relative`` paths; and a finding for each tracker that cannot.
    """
    named_by = find_trackers_naming(s, [g.checkpoint for g in moving if g.checkpoint])
    chosen = _plan_without(s.root, sel, relative) if named_by else None
    tracker = point_tracker(s, chosen.checkpoint) if chosen and chosen.checkpoint else None
    if tracker and tracker.path not in named_by:
        tracker = None
    text = "it names what goes into quarantine, and 'ckpt plan' chooses nothing that it could name"
    left, warn = sorted(named_by - {tracker.path if tracker else ""}), Severity.WARNING
    return tracker, tuple(finding("dangling-tracker", text, path=path, severity=warn) for path in left)


def _make_row(g: Group, reason: str, done: bool) -> Change:
    """Return the answer's row for a group that stays for a ``reason``, or is moved if it is ""."""
    state = "stays" if reason else "moved" if done else "would-move"
    return Change(g.path, state, reason, None, g.label, len(g.files), g.size)


def _find_damaged(found: Sequence[Group], root: str, sel: Selection) -> list[Group]:
    """Return the groups of ``found`` that ``verify`` finds an error in, in a file or in the directory."""
    names = ("jobs", "settle", "key_file", "cache", "max_age", "io", "limit_rate", "trust", "layouts")
    verification = verify(root, **{name: getattr(sel, name) for name in names})
    damaged_paths = {row.report.path for row in verification.files if row.report.verdict is Verdict.BROKEN}
    damaged_paths |= {f.path for f in verification.findings if f.severity is Severity.ERROR and f.path}
    return [g for g in found if any(map(g.holds, damaged_paths)) or g.path in damaged_paths]


def _find_reason_to_stay(group: Group, chosen: LoadPlan | None, settle: float, now_ns: int) -> str:
    """Return why a group is not moved; "" if it is. ``chosen`` is the plan of a job that starts now."""
    times = [os.lstat(path).st_mtime_ns for path in group.files if os.path.lexists(path)]
    if (now_ns - max(times, default=0)) / 1e9 < settle:
        return "written a moment ago, so it may be in use: wait, or add --settle 0s"
    resumed = chosen.checkpoint if chosen else None
    if resumed and group.checkpoint and group.checkpoint.key == resumed.key:
        return "a job resumes from it all the same, because other files stand in for the damaged ones"
    return ""


def _plan_without(root: str, sel: Selection, hidden: Collection[str]) -> LoadPlan | None:
    """Return the plan of a job that does not see the ``hidden`` paths below the root; None if it fails."""
    try:
        return plan(root, replace(sel, exclude=(*sel.exclude, *map(escape, hidden))))
    except CkptError:
        return None


def _make_relative(root: str, moving: Sequence[Group]) -> list[str]:
    """Return the groups' paths relative to the root. Raises UsageError for a path that is not below it."""
    out = list[str]()
    for path in (path for g in moving for path in g.paths):
        out.append(os.path.relpath(path, root))
        if out[-1].split("/")[0] in (".", ".."):
            text = f"{path} does not lie below {root}, in which its quarantine would be"
            raise UsageError(text, f"add --root {os.path.dirname(path)}")
    return out


# ---- and back


def undo(root: str, paths: Sequence[str] = (), *, apply: bool = False, trust: Trust = OURS) -> Changes:
    """Take back the last repair or quarantine below ``root``; or bring back the checkpoints at ``paths``,
    which are directories below ``.ckpt/quarantine``, or the paths that files and checkpoints had. Without
    ``apply`` nothing is moved. Raises NoCheckpoint if there is nothing to take back, UsageError if a file has
    changed since or an old path is taken, and CannotLook.
    """
    root, number = os.path.abspath(root), None
    with open_journal(root, trust, apply=apply) as journal:
        steps_of = _find_moves(journal, root, paths) if paths else _find_last(journal, root)
        rows = [row for steps in steps_of.values() for row in _list_undo(journal, root, steps, apply)]
        for operation, steps in steps_of.items() if apply else ():
            number = journal.take_back(operation, steps if paths else ())
        command = "restore" if paths else "undo"
        return Changes(command, root, apply, (*journal.recovered, *rows), (), number)


def _find_last(journal: Journal, root: str) -> dict[Operation, list[Step]]:
    """Return the last operation that can be taken back, with its steps that are done, the last first."""
    undoable = (op for op in journal.operations if op.status == "done" and op.command in UNDOABLE)
    last = next(undoable, None)
    if last is None:
        raise NoCheckpoint(f"no command that can be taken back has changed anything in {root}", _hint(root))
    for step in last.steps:
        if not step.is_done(journal.tree) and not step.is_to_do(journal.tree):
            text = f"{os.path.join(root, step.target)} is not as 'ckpt {last.command}' left it"
            raise UsageError(text, "move back by hand what it has put away")
    return {last: [step for step in last.steps[::-1] if step.is_done(journal.tree)]}


def _find_moves(journal: Journal, root: str, paths: Sequence[str]) -> dict[Operation, list[Step]]:
    """Return by operation the renames to undo for ``paths``. Raises NoCheckpoint."""
    out = dict[Operation, list[Step]]()
    for path in paths:
        found = list(_find_meant(journal, f"{os.path.relpath(path, root)}/"))
        if not found:
            raise NoCheckpoint(f"nothing that 'ckpt quarantine' put away was {path}", _hint(root))
        for operation, meant in found:
            known = out.setdefault(operation, [])
            known += [step for step in meant if step not in known]
    return out


def _find_meant(journal: Journal, above: str) -> Iterator[tuple[Operation, list[Step]]]:
    """Yield (operation, renames) for what lies below ``above`` in the quarantine, or lay there the last time
    that it was put away.
    """
    for operation in journal.operations:
        if operation.command != "quarantine" or operation.status != "done":
            continue
        moved = [step for step in operation.steps if not step.backup and step.is_done(journal.tree)]
        meant = [s for s in moved if f"{s.source}/".startswith(above) or f"{s.target}/".startswith(above)]
        if meant:
            yield operation, meant
            if not above.startswith(f"{STATE}/"):
                return


def _hint(root: str) -> str:
    return f"'ckpt ls --quarantine {quote(root)}' lists what lies in {STATE}/{QUARANTINE}"


def _list_undo(journal: Journal, root: str, steps: Sequence[Step], done: bool) -> Iterator[Change]:
    """Yield the answer's rows of undoing ``steps``. Raises UsageError if the old path of a file is taken."""
    for step in steps:
        was, now = os.path.join(root, step.source), os.path.join(root, step.target)
        if step.backup:
            old = os.path.join(root, step.backup)
            yield Change(now, "replaced" if done else "would-replace", f"by {old}")
        elif journal.tree.identify(step.source) is not None:
            raise UsageError(f"{was} exists, and is not replaced", "move it away first")
        else:
            yield Change(now, "moved" if done else "would-move", "", was)


def list_quarantine(root: str, *, trust: Trust = OURS) -> Changes:
    """Return what lies in the quarantine of ``root``, what was put away last first. Raises CannotLook."""
    root, rows = os.path.abspath(root), list[Change]()
    with open_journal(root, trust, apply=False) as journal:
        for op in journal.operations:
            why = f"{op.command}, {time.strftime('%Y-%m-%d %H:%M', time.localtime(op.at))}"
            for step in op.steps:
                old, now = (step.target, step.backup) if step.backup else (step.source, step.target)
                if now.startswith(f"{STATE}/{QUARANTINE}/") and journal.tree.identify(now) is not None:
                    rows.append(Change(f"{root}/{now}", "in-quarantine", why, f"{root}/{old}"))
    return Changes("ls", root, applied=False, changes=tuple(rows))


class NewTracker(Struct, frozen=True):
    """A tracker file that names ``before`` (None: it is missing), and ``after`` once ``data`` is in it."""

    path: str
    before: str | None
    after: int | str
    data: bytes

    def make_row(self, done: bool, label: str = "") -> Change:
        """Return the answer's row for this change; ``label`` is the checkpoint that is named."""
        text = "it is not there" if self.before is None else f"it named {self.before}"
        why = f"{text}, and names {self.after} then"
        return Change(self.path, "pointed" if done else "would-point", why, label=label)


def point_tracker(s: Session, chosen: Checkpoint) -> NewTracker | None:
    """Return the tracker beside a checkpoint with contents that name it; None if it names it already, or is
    missing and its layout can do without. Raises UsageError if the tracker is a link: the target may be no
    tracker.
    """
    layout, base = s.layouts.of(chosen), chosen.parts[0].base
    after = layout.tracker.name(chosen) if layout.tracker.file else None
    if not layout.tracker.file or after is None or layout.tracker.read is None:
        return None
    path = os.path.join(base, layout.tracker.file)
    tracker = s.text_tracker(layout.name, base)
    if tracker is None:
        data = layout.tracker.write(after)
        return NewTracker(path, None, after, data) if layout.tracker.always else None
    if os.path.islink(path):
        raise UsageError(f"{path} is a link", "point it yourself: ln -sfn")
    name = tracker[1]
    if not isinstance(name, Finding) and layout.tracker.names(chosen, name):
        return None
    before = name.message if isinstance(name, Finding) else "nothing readable" if name is None else str(name)
    return NewTracker(path, before, after, layout.tracker.write(after))


def find_trackers_naming(s: Session, checkpoints: list[Checkpoint]) -> set[str]:
    """Return the paths of the trackers beside these checkpoints that name one of them."""
    out = set[str]()
    for c in checkpoints:
        path, name = s.text_tracker(c.layout, c.parts[0].base) or ("", None)
        if name is not None and not isinstance(name, Finding) and s.layouts.of(c).tracker.names(c, name):
            out.add(path)
    return out
