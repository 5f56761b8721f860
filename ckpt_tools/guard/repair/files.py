"""Every damaged file below some paths, repaired where what it held can be proven."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import NamedTuple

from ckpt_tools.discovery.quarantined import REPAIRED, SCHEMA, read_repaired
from ckpt_tools.errors import CannotLook, NoCheckpoint
from ckpt_tools.guard import journal
from ckpt_tools.guard.journal import Move, Step, Store, Swap
from ckpt_tools.guard.repair.damage import Bench, Damaged
from ckpt_tools.guard.repair.evidence import Copies, Mended, mend
from ckpt_tools.guard.repair.indexes import Index, lost
from ckpt_tools.guard.repair.prepare import prepared
from ckpt_tools.model.change import Change, Changes
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.prefetch import prefetch

_COPIES = 16
"""Files that are tried as a copy of a damaged one, at most."""


class Repair(NamedTuple):
    """A damaged file and how it can be mended."""

    damaged: Damaged
    mended: Mended


def repair(
    root: str,
    paths: Sequence[str],
    *,
    copies: Sequence[str] = (),
    accept_odds: float = 0.0,
    apply: bool = False,
    state_dir: str | None = None,
    selection: Selection | None = None,
) -> Changes:
    """Repair the damaged files at and below ``paths``, which lie below ``root``: from replicas and from the
    directories ``copies``, where their bytes fit the checksums that are stored, else by the one flipped bit
    that a CRC tells. Without ``apply`` it only says what it would do.

    A bit that nothing but the CRC tells is flipped back where the probability that it was another damage is
    at most ``accept_odds``. What is repaired passes level content and its seal before it takes the place of
    the damaged file, which goes to quarantine. ``selection`` says how to read. Raises NoCheckpoint where
    nothing is recognised, and CannotLook.
    """
    selection = selection or Selection()
    # What a command that was interrupted did is taken back before anything is looked at.
    with journal.opened(root, state_dir, selection.trust) if apply else nullcontext() as store:
        work = _Work(os.path.abspath(root), [os.path.abspath(p) for p in copies], accept_odds, selection)
        return work.done(paths, store)


class _Work:
    """One command."""

    def __init__(self, root: str, copies: list[str], accept_odds: float, selection: Selection) -> None:
        self.root, self.copies, self.accept_odds = root, copies, accept_odds
        self.session = s = open_session(root, selection.read_options())
        s.add_members()
        prefetch(s, s.parts, Level.STRUCTURE)
        for part in s.parts:
            s.report(part, Level.STRUCTURE)
        self.bench = Bench(s)

    def done(self, paths: Sequence[str], store: Store | None) -> Changes:
        looks = [self.bench.look(path) for path in self._files(paths)]
        rows, repairs = self._mendable([look for look in looks if look.is_damaged])
        missing = [i for i in lost(self.session) if self._is_meant(i.path, paths)]
        number = self._apply(store, repairs, missing) if store and (repairs or missing) else None
        applied = store is not None
        state, written = ("repaired", "written") if applied else ("would-repair", "would-write")
        rows += (self._row(r.damaged, state, _odds(r.mended)) for r in repairs)
        rows += (Change(i.path, written, "it is lost, and all its shards are there") for i in missing)
        back = store.changes() if store else ()
        return Changes("repair", self.root, applied, (*back, *rows), tuple(_unseen(looks)), number)

    def _mendable(self, damaged: Sequence[Damaged]) -> tuple[list[Change], list[Repair]]:
        """(what stays as it is, and why; what can be repaired)."""
        rows, repairs = list[Change](), list[Repair]()
        for one in damaged:
            mended = self._mended(one)
            why = self._why_it_stays(one, mended)
            if why or mended is None:
                rows.append(self._row(one, "stays", why))
            else:
                repairs.append(Repair(one, mended))
        return rows, repairs

    def _files(self, paths: Sequence[str]) -> list[str]:
        """Raises CannotLook for a path that is not there, and NoCheckpoint where nothing is recognised."""
        for path in paths:
            if not os.path.lexists(path):
                raise CannotLook(f"{path} is not there")
        s = self.session
        known = dict.fromkeys([*(p.path for p in s.parts), *(f.path for f in s.found.bare)])
        files = [p for p in known if os.path.isfile(p) and self._is_meant(p, paths)]
        if not files:
            text = f"nothing at {', '.join(paths)} is a file of a checkpoint"
            raise NoCheckpoint(text, "'ckpt ls' shows what is there")
        return files

    def _is_meant(self, path: str, paths: Sequence[str]) -> bool:
        return any(f"{path}/".startswith(f"{os.path.abspath(top)}/") for top in paths)

    def _mended(self, damaged: Damaged) -> Mended | None:
        try:
            copies = Copies(tuple(self._named_alike(damaged.path)), tuple(self._beside(damaged.path)))
            return mend(self.bench, damaged, copies)
        except OSError as e:
            raise CannotLook(f"{e.filename or damaged.path}: {e.strerror}") from e

    def _named_alike(self, path: str) -> Iterator[str]:
        """The file of the same name in each tree of copies."""
        own = os.stat(path)
        below = os.path.relpath(path, self.root).split("/")
        for top in self.copies:
            for n in range(len(below)):
                other = os.path.join(top, *below[n:])
                if os.path.isfile(other) and not os.path.samestat(os.stat(other), own):
                    yield other
                    break

    def _beside(self, path: str) -> Iterator[str]:
        """The files of its checkpoint that have its role and its size: replicas, among others."""
        part = self.bench.parts.get(path)
        if part is not None:
            yield from islice((p.path for p in self.session.parts if _replica(p, part)), _COPIES)

    def _why_it_stays(self, damaged: Damaged, mended: Mended | None) -> str:
        if self.session.now_ns - os.stat(damaged.path).st_mtime_ns < self.session.options.settle * 1e9:
            return "written a moment ago, so it may be in use: wait, or say --settle 0s"
        if mended is None:
            worst = next(f for f in damaged.report.findings if f.severity)
            return f"{worst.code}: {worst.message}; nothing proves what it held (--from DIR names a copy)"
        if mended.odds > self.accept_odds:
            return (
                f"{mended.why}; the probability that it was another damage is at most {mended.odds:.2g}, and "
                f"nothing else bears witness: --accept-odds {mended.odds:.2g} takes that, --from DIR a copy"
            )
        return ""

    # ---- what is done

    def _apply(self, store: Store, repairs: Sequence[Repair], missing: Sequence[Index]) -> int:
        kept = store.place("quarantine")
        steps = list[Step]()
        for damaged, mended in repairs:
            path = os.path.relpath(damaged.path, self.root)
            incoming = prepared(store, path, mended)
            new = self.bench.look(os.path.join(store.tree.root, incoming), instead_of=damaged.path)
            if new.is_damaged or new.wrong or new.report.level < Level.CONTENT:
                raise CannotLook(f"{damaged.path}: the repaired file is not sound; nothing is changed")
            steps.append(Swap(path, incoming, f"{kept}/{path}"))
        guessed = [r for r in repairs if r.mended.odds]
        if guessed:
            steps.insert(0, _note_unwitnessed(store, [(r.damaged.path, r.mended.odds) for r in guessed]))
        for index in missing:
            target = os.path.relpath(index.path, self.root)
            incoming = f"{store.place('incoming')}/{target}"
            store.write(incoming, index.data, like=os.path.relpath(index.shard, self.root))
            steps.append(Move(incoming, target))
        why = "; ".join((*(r.mended.why for r in repairs), *(i.path for i in missing)))
        return store.run("repair", why[:4096], steps).number

    def _row(self, damaged: Damaged, state: str, why: str) -> Change:
        return Change(damaged.path, state, why, size=max(damaged.report.size, 0))


def _unseen(looks: Sequence[Damaged]) -> Iterator[Finding]:
    """What kept files from being looked at."""
    for look in looks:
        if look.report.verdict is Verdict.UNKNOWN:
            yield from (f for f in look.report.findings if f.severity)


def _replica(other: Part, part: Part) -> bool:
    same = (other.role, other.size, other.step, other.epoch) == (part.role, part.size, part.step, part.epoch)
    return same and other.path != part.path and other.base == part.base


def _odds(mended: Mended) -> str:
    if not mended.odds:
        return mended.why
    return f"{mended.why}; the probability that it was another damage is at most {mended.odds:.2g}"


def _note_unwitnessed(store: Store, repaired: Sequence[tuple[str, float]]) -> Step:
    """Return the step that adds (path, odds) to the list of files that were repaired by nothing but the CRC
    that told the flipped bit: verify and plan warn of them while they stay as they are. Raises CannotLook.
    """
    root = store.tree.root
    target = f".ckpt/{REPAIRED}"
    rows = {row["path"]: row for row in read_repaired(os.path.join(root, target))}
    for path, odds in repaired:
        info = os.stat(path)
        below = os.path.relpath(os.path.realpath(path), root)
        rows[below] = {"path": below, "size": info.st_size, "mtime_ns": info.st_mtime_ns, "odds": odds}
    data = json.dumps({"schema": SCHEMA, "files": list(rows.values())}).encode("utf-8", "surrogateescape")
    incoming = f"{store.place('incoming')}/{target}"
    there = store.tree.identity(target) is not None
    store.write(incoming, data, like=target if there else ".ckpt/lock")
    if there:
        return Swap(target, incoming, f"{store.place('replaced')}/{target}")
    return Move(incoming, target)
