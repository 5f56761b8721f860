"""``ckpt repair``: mends files whose contents can be proven, points trackers at what a job resumes from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence

from ckpt_tools.api import plan
from ckpt_tools.discovery.exclude import QUARANTINE, REPAIRED, SCHEMA, STATE, Repaired, read_repaired
from ckpt_tools.errors import CannotLook, NoCheckpoint, UsageError, explain_refusal
from ckpt_tools.guard.journal import Journal, Step, open_journal
from ckpt_tools.guard.quarantine import point_tracker
from ckpt_tools.guard.repair.mending import Bench, Damaged, Lost, Mended, find_lost_indexes, mend
from ckpt_tools.model.answers import Change, Changes
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.scheduler import prefetch
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import LocalSource


def repair(
    root: str,
    paths: Sequence[str],
    *,
    accept_odds: float = 0.0,
    apply: bool = False,
    selection: Selection | None = None,
) -> Changes:
    """Repair the damaged files at and below ``paths``, which lie below ``root``: flipped bits that CRCs
    locate, the lost directory of a torch archive, the index of a sharded model. Without ``apply`` nothing is
    written.

    A bit that only one CRC proves is flipped back if the probability that it was another damage is at most
    ``accept_odds``. A repaired file passes level content and its seal before it replaces the damaged file,
    which goes to quarantine. ``selection`` says how to read. Raises NoCheckpoint if nothing at ``paths`` is
    recognised, and CannotLook.
    """
    selection, root = selection or Selection(), os.path.abspath(root)
    # A command that was interrupted is taken back before anything is inspected.
    with open_journal(root, selection.trust, apply=apply) as journal:
        s = open_session(root, selection.read_options())
        s.add_members()
        prefetch(s, s.parts, Level.STRUCTURE)
        for part in s.parts:
            s.report(part, Level.STRUCTURE)
        bench = Bench(s)
        inspected = [bench.look(path) for path in _find_files(s, paths)]
        judged = [(d, *_judge(bench, d, accept_odds)) for d in inspected if d.is_damaged]
        repairs = [(damaged, mended) for damaged, mended, why in judged if mended and not why]
        missing = [row for row in find_lost_indexes(s) if _is_at_or_below(row[0], paths)]
        number = _replace_all(journal, bench, repairs, missing) if apply and (repairs or missing) else None
        rows = (*journal.recovered, *_list_changes(judged, missing, apply))
        return Changes("repair", root, apply, rows, _find_unseen(inspected), number)


def _find_unseen(inspected: Sequence[Damaged]) -> tuple[Finding, ...]:
    """Return the findings, except notes, on files whose contents nobody could look at."""
    unknown = (d.report for d in inspected if d.report.verdict is Verdict.UNKNOWN)
    return tuple(f.at(report.path) for report in unknown for f in report.findings if f.severity)


def _judge(bench: Bench, damaged: Damaged, accept_odds: float) -> tuple[Mended | None, str]:
    """Return (how a damaged file can be mended or None, why it is not replaced or ""). Raises CannotLook."""
    s, path = bench.session, damaged.path
    try:
        mended = mend(bench, damaged)
    except OSError as e:
        raise CannotLook(f"{e.filename or path}: {e.strerror}") from e
    if s.now_ns - os.stat(path).st_mtime_ns < s.options.settle * 1e9:
        return mended, "written a moment ago, so it may be in use: wait, or add --settle 0s"
    if mended is None:
        worst = max(damaged.report.findings, key=lambda f: f.severity)  # of equals the first
        why = f"{worst.code}: {worst.message}; nothing proves what it held: copy it from a backup"
        return None, why
    if mended.odds > accept_odds:
        odds = f"--accept-odds {mended.odds:.2g}"
        return mended, f"{mended.say()}, and nothing else bears witness: {odds} takes that"
    return mended, ""


def _list_changes(
    judged: Sequence[tuple[Damaged, Mended | None, str]], missing: Sequence[Lost], done: bool
) -> Iterator[Change]:
    """Yield the answer's rows: files that stay, then mended files, then indexes written anew."""
    for damaged, mended, why in sorted(judged, key=lambda row: not row[2]):
        state = "stays" if why else "repaired" if done else "would-repair"
        reason = why or (mended.say() if mended else "")
        yield Change(damaged.path, state, reason, size=max(damaged.report.size, 0))
    written = "written" if done else "would-write"
    yield from (Change(path, written, "it is lost, and all its shards are there") for path, _, _ in missing)


def _find_files(s: Session, paths: Sequence[str]) -> list[str]:
    """Return checkpoint files at or below ``paths``. Raises CannotLook for a missing path, NoCheckpoint."""
    for path in paths:
        if not os.path.lexists(path):
            raise CannotLook(f"{path} is not there")
    known = dict.fromkeys([*(p.path for p in s.parts), *(f.path for f in s.found.bare)])
    files = [p for p in known if os.path.isfile(p) and _is_at_or_below(p, paths)]
    if not files:
        text = f"nothing at {', '.join(paths)} is a file of a checkpoint"
        raise NoCheckpoint(text, "'ckpt ls' shows what is there")
    return files


def _is_at_or_below(path: str, paths: Sequence[str]) -> bool:
    """Return whether an absolute path is one of ``paths``, which may be relative, or lies below one."""
    return any(f"{path}/".startswith(f"{os.path.abspath(above)}/") for above in paths)


def _replace_all(
    journal: Journal, bench: Bench, repairs: Sequence[tuple[Damaged, Mended]], missing: Sequence[Lost]
) -> int:
    """Put mended files, and indexes that are ``missing``, in their places; return the operation's number.
    Files that only one CRC proves are listed in .ckpt/repaired.json: verify and plan warn of such a file
    until it changes. Raises CannotLook.
    """
    root, list_path, steps = journal.tree.root, f"{STATE}/{REPAIRED}", list[Step]()
    unwitnessed = {row["path"]: row for row in read_repaired(os.path.join(root, list_path))}
    for damaged, mended in repairs:
        path = os.path.relpath(damaged.path, bench.session.root)
        steps.append(step := journal.step_to_write(path, mended.read(damaged.path), backup_kind=QUARANTINE))
        with explain_refusal(f"{damaged.path} cannot be replaced: nothing is changed"):
            old = os.stat(damaged.path)
            written = LocalSource(new := os.path.join(root, step.source))
            info = os.stat(new)
            if (info.st_uid, info.st_gid) != (old.st_uid, old.st_gid):
                os.chown(new, old.st_uid, old.st_gid)
            written.path = damaged.path
        if not bench.look(damaged.path, written).is_sound:
            raise CannotLook(f"{damaged.path}: the repaired file is not sound; nothing is changed")
        if mended.odds:
            below = os.path.relpath(os.path.realpath(damaged.path), root)
            size, mtime_ns = old.st_size, old.st_mtime_ns
            unwitnessed[below] = Repaired(path=below, size=size, mtime_ns=mtime_ns, odds=mended.odds)
    if any(mended.odds for _, mended in repairs):
        body = json.dumps({"schema": SCHEMA, "files": list(unwitnessed.values())})
        steps.insert(0, journal.step_to_write(list_path, [body.encode("utf-8", "surrogateescape")]))
    for path, data, shard in missing:
        target, like = (os.path.relpath(p, bench.session.root) for p in (path, shard))
        steps.append(journal.step_to_write(target, [data], like=like))
    return journal.run("repair", steps)


def repair_trackers(root: str, *, apply: bool = False, selection: Selection | None = None) -> Changes:
    """Point the tracker of a run at the checkpoint that ``plan`` chooses, if it names another one or none, or
    is missing. Without ``apply`` it only says what it would do. Raises what ``plan`` raises: if nothing can
    be chosen, nothing is changed.
    """
    root, selection = os.path.abspath(root), selection or Selection(cache=True)
    with open_journal(root, selection.trust, apply=apply) as journal:
        chosen = plan(root, selection).checkpoint
        if chosen is None:
            raise UsageError(f"there is no checkpoint in {root} to name as the latest")
        tracker, number = point_tracker(open_session(root, selection.read_options()), chosen), None
        if apply and tracker:
            step = journal.step_to_write(os.path.relpath(tracker.path, root), [tracker.data])
            number = journal.run("repair", [step])
        rows = [tracker.make_row(apply, chosen.label)] if tracker else []
        return Changes("repair", root, apply, (*journal.recovered, *rows), (), number)
