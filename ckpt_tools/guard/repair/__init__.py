"""``ckpt repair``: damaged files mended where what they held can be proven, trackers pointed at what a job
resumes from.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext

from ckpt_tools.api import plan
from ckpt_tools.discovery.quarantined import QUARANTINE, REPAIRED, SCHEMA, read_repaired
from ckpt_tools.errors import CannotLook, NoCheckpoint, UsageError
from ckpt_tools.guard import journal
from ckpt_tools.guard.journal import Step, Store
from ckpt_tools.guard.repair.damage import Bench, Damaged
from ckpt_tools.guard.repair.mending import Mended, lost_indexes, mend
from ckpt_tools.guard.trackers import wanted
from ckpt_tools.model.answers import Change, Changes
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.prefetch import prefetch
from ckpt_tools.reading.session import Session

_FICLONE = 0x40049409
"""ioctl_ficlone(2): the file shares the blocks of another until one of them is written."""
_BLOCK = 8 << 20
_NO_ATTRIBUTES = frozenset({errno.ENOSYS, errno.EOPNOTSUPP})


def repair(
    root: str,
    paths: Sequence[str],
    *,
    accept_odds: float = 0.0,
    apply: bool = False,
    state_dir: str | None = None,
    selection: Selection | None = None,
) -> Changes:
    """Repair the damaged files at and below ``paths``, which lie below ``root``: flipped bits that CRCs tell,
    the lost directory of a torch archive, the index of a sharded model. Without ``apply`` it only says what
    it would do.

    A bit that nothing but the CRC tells is flipped back where the probability that it was another damage is
    at most ``accept_odds``. What is repaired passes level content and its seal before it takes the place of
    the damaged file, which goes to quarantine. ``selection`` says how to read. Raises NoCheckpoint where
    nothing is recognised, and CannotLook.
    """
    selection, root = selection or Selection(), os.path.abspath(root)
    # What a command that was interrupted did is taken back before anything is looked at.
    with journal.opened(root, state_dir, selection.trust) if apply else nullcontext() as store:
        s = open_session(root, selection.read_options())
        s.add_members()
        prefetch(s, s.parts, Level.STRUCTURE)
        for part in s.parts:
            s.report(part, Level.STRUCTURE)
        bench = Bench(s)
        looks = [bench.look(path) for path in _find_files(s, paths)]
        rows, repairs = _find_repairs(bench, looks, accept_odds, apply)
        missing = [row for row in lost_indexes(s) if _is_meant(row[0], paths)]
        number = _replace_all(store, bench, repairs, missing) if store and (repairs or missing) else None
        written = "written" if apply else "would-write"
        rows += (Change(path, written, "it is lost, and all its shards are there") for path, _, _ in missing)
        rows[:0] = store.changes() if store else ()
        return Changes("repair", root, apply, tuple(rows), _find_unseen(looks), number)


def _find_unseen(looks: Sequence[Damaged]) -> tuple[Finding, ...]:
    """What kept files from being looked at."""
    unknown = (d.report for d in looks if d.report.verdict is Verdict.UNKNOWN)
    return tuple(f for report in unknown for f in report.findings if f.severity)


def _find_repairs(
    bench: Bench, looks: Sequence[Damaged], accept_odds: float, done: bool
) -> tuple[list[Change], list[tuple[Damaged, Mended]]]:
    """(what is said of each that is damaged, first what stays; what can be repaired)."""
    rows, repairs = list[Change](), list[tuple[Damaged, Mended]]()
    for damaged in (look for look in looks if look.is_damaged):
        try:
            mended = mend(bench, damaged)
        except OSError as e:
            raise CannotLook(f"{e.filename or damaged.path}: {e.strerror}") from e
        why = _why_it_stays(bench.session, damaged, mended, accept_odds)
        state = "stays" if why else "repaired" if done else "would-repair"
        rows.append(Change(damaged.path, state, why or _say(mended), size=max(damaged.report.size, 0)))
        if mended and not why:
            repairs.append((damaged, mended))
    return sorted(rows, key=lambda row: row.state != "stays"), repairs


def _find_files(s: Session, paths: Sequence[str]) -> list[str]:
    """Raises CannotLook for a path that is not there, and NoCheckpoint where nothing is recognised."""
    for path in paths:
        if not os.path.lexists(path):
            raise CannotLook(f"{path} is not there")
    known = dict.fromkeys([*(p.path for p in s.parts), *(f.path for f in s.found.bare)])
    files = [p for p in known if os.path.isfile(p) and _is_meant(p, paths)]
    if not files:
        text = f"nothing at {', '.join(paths)} is a file of a checkpoint"
        raise NoCheckpoint(text, "'ckpt ls' shows what is there")
    return files


def _is_meant(path: str, paths: Sequence[str]) -> bool:
    return any(f"{path}/".startswith(f"{os.path.abspath(top)}/") for top in paths)


def _why_it_stays(s: Session, damaged: Damaged, mended: Mended | None, accept_odds: float) -> str:
    if s.now_ns - os.stat(damaged.path).st_mtime_ns < s.options.settle * 1e9:
        return "written a moment ago, so it may be in use: wait, or say --settle 0s"
    if mended is None:
        worst = next(f for f in damaged.report.findings if f.severity)
        return f"{worst.code}: {worst.message}; nothing proves what it held: copy it from a backup"
    if mended.odds > accept_odds:
        return f"{_say(mended)}, and nothing else bears witness: --accept-odds {mended.odds:.2g} takes that"
    return ""


def _say(mended: Mended | None) -> str:
    if mended is None:
        return ""
    if not mended.odds:
        return mended.why
    return f"{mended.why}; the probability that it was another damage is at most {mended.odds:.2g}"


def _replace_all(
    store: Store,
    bench: Bench,
    repairs: Sequence[tuple[Damaged, Mended]],
    missing: Sequence[tuple[str, bytes, str]],
) -> int:
    root, steps, guessed = store.tree.root, list[Step](), list[tuple[str, float]]()
    for damaged, mended in repairs:
        path = os.path.relpath(damaged.path, bench.session.root)
        incoming = _write_mended(store, path, mended)
        new = bench.look(os.path.join(root, incoming), instead_of=damaged.path)
        if new.is_damaged or new.wrong or new.report.level < Level.CONTENT:
            raise CannotLook(f"{damaged.path}: the repaired file is not sound; nothing is changed")
        steps.append(Step(incoming, path, f"{store.place(QUARANTINE)}/{path}"))
        if mended.odds:
            guessed.append((path, mended.odds))
    if guessed:
        steps.insert(0, _note_unwitnessed(store, guessed))
    for path, data, shard in missing:
        target = os.path.relpath(path, bench.session.root)
        incoming = f"{store.place('incoming')}/{target}"
        store.write(incoming, data, like=os.path.relpath(shard, bench.session.root))
        steps.append(Step(incoming, target))
    why = "; ".join((*(m.why for _, m in repairs), *(path for path, _, _ in missing)))
    return store.run("repair", why[:4096], steps).number


def _write_mended(store: Store, path: str, mended: Mended) -> str:
    """The file that takes the place of a damaged one, below ``.ckpt/incoming`` and on the disk, with
    everything that belongs to the old one but its damage. Raises CannotLook.
    """
    incoming, old = f"{store.place('incoming')}/{path}", os.path.join(store.tree.root, path)
    try:
        store.tree.make_above(incoming)
        with store.tree.above(incoming) as (at, name), open(old, "rb") as source:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, 0o600, dir_fd=at), "r+b") as new:
                try:
                    fcntl.ioctl(new, _FICLONE, source.fileno())
                except OSError:
                    shutil.copyfileobj(source, new, _BLOCK)
                for offset, value in mended.bits.items():
                    new.seek(offset)
                    new.write(bytes([value]))
                if mended.tail is not None:
                    new.seek(mended.tail[0])
                    new.write(mended.tail[1])
                    new.truncate()
                new.flush()
                _keep_attributes(new.fileno(), old)
                os.fsync(new)
    except OSError as e:
        hint = "make room, or see that it can be written, then run it again"
        if e.errno == errno.EPERM:
            hint = (
                "run it as the owner of the files, or as root: a repaired file keeps its owner and attributes"
            )
        raise CannotLook(f"{path} could not be repaired, nothing is changed: {e.strerror}", hint) from e
    return incoming


def _keep_attributes(fd: int, old: str) -> None:
    """Owner, mode, extended attributes and times of the old file. Raises OSError where one cannot be kept."""
    info, new = os.stat(old), os.fstat(fd)
    if (new.st_uid, new.st_gid) != (info.st_uid, info.st_gid):
        os.fchown(fd, info.st_uid, info.st_gid)
    os.fchmod(fd, info.st_mode & 0o7777)
    try:
        names = os.listxattr(old)
    except OSError as e:
        if e.errno not in _NO_ATTRIBUTES:
            raise
        names = []
    for name in names:
        os.setxattr(fd, name, os.getxattr(old, name))
    os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns))


def _note_unwitnessed(store: Store, repaired: Sequence[tuple[str, float]]) -> Step:
    """Return the step that adds (path, odds) to the list of files that were repaired by nothing but the CRC
    that told the flipped bit: verify and plan warn of them while they stay as they are. Raises CannotLook.
    """
    root, target = store.tree.root, f".ckpt/{REPAIRED}"
    rows = {row["path"]: row for row in read_repaired(os.path.join(root, target))}
    for path, odds in repaired:
        info = os.stat(os.path.join(root, path))
        below = os.path.relpath(os.path.realpath(os.path.join(root, path)), root)
        rows[below] = {"path": below, "size": info.st_size, "mtime_ns": info.st_mtime_ns, "odds": odds}
    data = json.dumps({"schema": SCHEMA, "files": list(rows.values())}).encode("utf-8", "surrogateescape")
    return store.step_to_write(target, data)


def repair_trackers(
    root: str,
    *,
    apply: bool = False,
    state_dir: str | None = None,
    selection: Selection | None = None,
) -> Changes:
    """Point the tracker of a run at what ``plan`` chooses, where it says something else, nothing, or is gone.
    Without ``apply`` it only says what it would do.

    Raises what ``plan`` raises: where nothing can be chosen nothing is changed.
    """
    root, selection = os.path.abspath(root), selection or Selection(cache=True)
    with journal.opened(root, state_dir, selection.trust) if apply else nullcontext() as store:
        chosen = plan(root, selection).checkpoint
        if chosen is None:
            raise UsageError(f"there is no checkpoint in {root} that a tracker could name")
        tracker = wanted(open_session(root, selection.read_options()), chosen)
        back = store.changes() if store else ()
        if tracker is None:
            return Changes("repair", root, apply, (*back,))
        number = None
        if store:
            step = store.step_to_write(os.path.relpath(tracker.path, root), tracker.data)
            number = store.run("repair", f"{tracker.path}: {tracker.then}", [step]).number
        said = "it is not there" if tracker.now is None else f"it named {tracker.now}"
        why = f"{said}, and names {tracker.then} then"
        row = Change(tracker.path, "pointed" if apply else "would-point", why, label=chosen.label)
        return Changes("repair", root, apply, (*back, row), (), number)
