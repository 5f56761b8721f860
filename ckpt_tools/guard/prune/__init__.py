"""``ckpt prune``: moves what a policy does not keep out of sight, in one rename each, then removes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from glob import escape

from msgspec.structs import replace

from ckpt_tools.api import plan
from ckpt_tools.cache import open_cache
from ckpt_tools.discovery import group as grouping
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, UsageError
from ckpt_tools.guard.journal import Journal, Step, open_journal
from ckpt_tools.guard.prune.entries import Entry, find_entries, identify_files
from ckpt_tools.guard.prune.policy import Policy, Save, choose_kept, pin
from ckpt_tools.guard.prune.protected import find_bests, find_need, find_obstacle, find_protected, find_stages
from ckpt_tools.guard.writing import DELETE_ELSEWHERE, require_writable
from ckpt_tools.model.answers import Change, Changes
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import choose
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.urls import is_url, real_path, to_absolute

__all__ = ["Policy", "pin", "prune"]
Plans = Sequence[tuple[Selection, LoadPlan]]
"""(question, the plan that answers it) for each run."""


def prune(
    root: str,
    policy: Policy,
    *,
    damaged: bool = False,
    apply: bool = False,
    selection: Selection | None = None,
) -> Changes:
    """Remove the checkpoints below ``root`` that are verified and that ``policy`` does not keep; with
    ``damaged`` also checkpoints with damage in their files. Without ``apply`` it only says what it would do.

    Nothing is removed if ``plan`` chooses nothing for one of the runs: raises what ``plan`` raises. Raises
    UsageError if nothing is to be kept, CannotLook if something could not be looked at or not be removed, and
    if ``plan`` would choose something else afterwards.
    """
    policy.require_one()
    root = real_path(to_absolute(root))
    if apply:
        require_writable([root], DELETE_ELSEWHERE)
    selection = selection or Selection(cache=True)
    never = dict.fromkeys(("allow_none", "allow_missing", "allow_fresh", "skip_unreadable"), False)
    sel = replace(selection, **never)
    number, findings = None, tuple[Finding, ...]()
    with open_journal(root, sel.trust) if apply and not is_url(root) else nullcontext() as journal:
        s, plans, found, why = _choose_staying(root, policy, sel, damaged=damaged)
        rows = [_make_row(e, why.get(e.name, ""), apply) for e in found]  # while sizes are known
        if going := [e for e in found if e.name not in why]:
            require_same_plans = partial(_require_same_plans, root, plans)
            require_same_plans(going)
            if is_url(root):
                from ckpt_tools.guard.prune.in_store import delete_objects, warn_of_versions

                findings = warn_of_versions(root)
                if apply:
                    delete_objects(s, going, require_same_plans)
            elif journal:
                number, written = _remove(journal, s, going, require_same_plans)
                for e in written:
                    rows[found.index(e)] = _make_row(e, "somebody wrote it while it was looked at", apply)
        recovered = journal.recovered if journal else ()
        return Changes("prune", root, apply, (*recovered, *rows), findings, number)


def _choose_staying(
    root: str, policy: Policy, sel: Selection, *, damaged: bool
) -> tuple[Session, Plans, list[Entry], dict[str, str]]:
    """Return (session, plans, all checkpoints, name -> why it stays). A checkpoint stays if the policy keeps
    it, or it is protected, or a staying one needs it. Without ``damaged`` all that are not good stay too.
    """
    with open_cache(root, sel.cache, sel.max_age, None, sel.trust) as cache:
        s = open_session(root, sel.read_options(), cache=cache)
        plans = [(question, _plan(root, question)) for question in _find_questions(s, sel)]
        found = find_entries(s, sel)
        protected = find_protected(s, found, plans, sel)
        why = {e.name: e.why for e in found if e.why and not (damaged and e.damaged)}
        for run in {e.run for e in found}:
            good = (e for e in found if e.run == run and e.good)
            saves = [
                Save(e.name, e.checkpoint.step, e.checkpoint.mtime_ns, e.checkpoint.kind, e.group.size)
                for e in sorted(good, key=lambda e: e.newness)[::-1]
            ]
            why |= choose_kept(policy, saves, protected)
        why |= protected
        while more := _find_needed(s, found, [e for e in found if e.name in why]):
            why |= more
        return s, plans, found, why


# ---- what is resumed from


def _find_questions(s: Session, selection: Selection) -> list[Selection]:
    """Return the given selection, or one for each run if ``plan`` cannot choose between several runs."""
    everything = grouping.group(s.parts, s.layouts, selection.save_interval)
    runs = list(s.runs(c for c in everything if choose.belongs(c, selection) and not c.unfinished))
    if selection.run is not None or len(runs) < 2:
        return [selection]
    with suppress(UsageError):  # raised unless ``plan`` takes them for one run
        _plan(s.root, selection)
        return [selection]
    return [replace(selection, run=run, layout=layout) for layout, run in runs]


def _plan(root: str, question: Selection) -> LoadPlan:
    """Return what ``plan`` answers. Raises NoCheckpoint if it chooses nothing."""
    made = plan(root, question)
    if made.checkpoint is None:
        raise NoCheckpoint(f"no checkpoint is chosen in {root}: nothing is removed")
    return made


def _require_same_plans(root: str, plans: Plans, going: Sequence[Entry] = ()) -> None:
    """Raise CannotLook unless ``plan`` chooses the same as before, now or without ``going``."""
    gone = [escape(os.path.relpath(path, root)) for e in going for path in e.group.paths]
    hint = "nothing is removed; this is a case that ckpt should know: please report it"
    for question, before in plans:
        try:
            after = plan(root, replace(question, exclude=(*question.exclude, *gone)))
        except CkptError as e:
            raise CannotLook(f"'ckpt plan' would fail after the removal: {e}", hint) from e
        if after.fingerprint != before.fingerprint:
            raise CannotLook("'ckpt plan' would choose something else after the removal", hint)


# ---- which


def _find_needed(s: Session, found: Sequence[Entry], staying: Sequence[Entry]) -> dict[str, str]:
    """Return name -> why it stays, for checkpoints that the ``staying`` need, or that cannot go alone."""
    needed_as, out = find_bests(s, staying, found), dict[str, str]()
    names = {e.name for e in staying}
    for e in (e for e in found if e.name not in names):
        if reason := needed_as.get(e.name) or find_need(e, staying) or find_obstacle(s, e, staying):
            out[e.name] = reason
    return out


# ---- what is done


def _remove(
    journal: Journal, s: Session, going: Sequence[Entry], require_same_plans: Callable[[], object]
) -> tuple[int | None, list[Entry]]:
    """Move checkpoints into the trash, and empty it. Return (number of the operation, checkpoints that stay
    because somebody has written them). All come back if there are any, and the others are moved again; or if
    ``require_same_plans`` raises CannotLook.
    """
    trash, steps, written = journal.name_directory("trash"), list[Step](), list[Entry]()
    for e in going:
        stage_of = find_stages(s, e)
        ordered = sorted(e.group.paths, key=lambda path: (stage_of(path), path))
        relative = [os.path.relpath(path, s.root) for path in ordered]
        steps += [Step(path, f"{trash}/{path}") for path in relative]

    def check() -> None:
        for e in going:
            moved = [f"{s.root}/{trash}/{os.path.relpath(path, s.root)}" for path in e.group.paths]
            if identify_files(moved) != e.seen:
                written.append(e)
        if written:
            raise CannotLook("somebody writes")
        require_same_plans()

    try:
        number = journal.run("prune", steps, check)
    except CannotLook:
        if not written:
            raise
        others = [e for e in going if e not in written]
        later, more = _remove(journal, s, others, require_same_plans) if others else (None, [])
        return later, [*written, *more]
    _remove_empty(journal, s.root, going)
    if why := journal.sweep():
        text = f"some of what was moved cannot be removed: {why}"
        raise CannotLook(text, "the next command tries it again")
    return number, []


def _remove_empty(journal: Journal, root: str, gone: Sequence[Entry]) -> None:
    """Remove the directories of checkpoints whose files were removed one by one, if they are empty."""
    homes = {part.home for e in gone for part in e.checkpoint.parts if part.home}
    for home in sorted(homes, reverse=True):
        with suppress(OSError, ValueError), journal.tree.open_parent(os.path.relpath(home, root)) as opened:
            os.rmdir(opened[1], dir_fd=opened[0])


def _make_row(e: Entry, why: str, apply: bool) -> Change:
    """Return the answer's row for a checkpoint that stays, with the reason ``why``, or goes if it is ""."""
    state = "stays" if why else "removed" if apply else "would-remove"
    reason = why or e.why.partition(",")[0] or "nothing says to keep it"
    return Change(e.group.path, state, reason, None, e.group.label, len(e.group.files), e.group.size)
