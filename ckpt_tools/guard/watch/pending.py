"""Which checkpoints of a listing are to be verified now; and the records of earlier verifications, which one
process at a time keeps outside the tree.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Literal

import xxhash
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ckpt_tools.discovery import group as grouping
from ckpt_tools.errors import UsageError
from ckpt_tools.guard.watch import WatchOptions
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.planning.first_launch import name_home
from ckpt_tools.planning.other_writers import get_etag
from ckpt_tools.planning.trackers import find_declared
from ckpt_tools.reading.session import Session
from ckpt_tools.settings import checked_json, resolve
from ckpt_tools.storage import trust
from ckpt_tools.storage.retry import status
from ckpt_tools.storage.writes import hold_lock, replace_file

_NEAR = 3  # neighbours on either side that a checkpoint is compared with
_RETRY = 10.0  # a failed verification or sealing is tried again after this many times its duration


class Listed(Struct, frozen=True):
    """A checkpoint as a listing shows it; ``key`` is its first file's path, ``stamp`` changes with its files.
    The ``window`` has its neighbours in the run, and itself; ``basis`` changes with all that its
    verification depends on.
    """

    key: str
    stamp: str
    checkpoint: Checkpoint
    window: Sequence[Checkpoint]
    basis: tuple[object, ...]
    finished: bool


def list_checkpoints(s: Session) -> dict[str, Listed]:
    """Return every checkpoint of a session, by its key in the records, with neighbours to compare it with."""
    out = dict[str, Listed]()
    for run in s.runs(grouping.group(s.parts, s.layouts)).values():
        newest = max(run, key=lambda c: c.mtime_ns).key
        trackers = {base: s.tracker(run[0].layout, base) for base in {c.parts[0].base for c in run}}
        ordered = sorted(run, key=lambda c: (c.order, c.mtime_ns))
        fullest = max(ordered, key=_count_files)  # its ranks show what all neighbours lack
        for at, c in enumerate(ordered):
            window = ordered[max(0, at - _NEAR) : at + _NEAR + 1]
            if fullest not in window:
                window.insert(0, fullest)
            key, stamp = os.path.relpath(c.parts[0].path, s.root), make_stamp(c)
            basis = (stamp, newest, trackers[c.parts[0].base])
            finished = not c.unfinished or find_declared(s, c) is not None
            out[key] = Listed(key, stamp, c, window, basis, finished)
    return out


def _count_files(c: Checkpoint) -> tuple[int, int]:
    """Return (last rank, number of files) of a finished checkpoint; (-1, 0) of an unfinished one."""
    ranks = [p.rank for p in c.parts if p.rank is not None]
    return (-1, 0) if c.unfinished else (max(ranks, default=-1), len(c.parts))


def make_stamp(c: Checkpoint) -> str:
    """Return a hash that changes when a file of the checkpoint changes its size, time or ETag."""
    rows = sorted((p.path, p.size, p.mtime_ns, get_etag(p.path)) for p in c.parts)
    return xxhash.xxh3_64_hexdigest("\n".join(map(repr, rows)).encode("utf-8", "surrogateescape"))


State = Literal["good", "suspect", "bad", "unknown"]
NAME, LOCK = "watch.json", "watch.lock"
_MOST = 256 << 20


class Record(Struct, frozen=True):
    """The last verification of a checkpoint. ``stamp`` changes with its files, ``checked_at`` is in seconds
    since the epoch, ``state`` is good, suspect, bad or unknown; ``codes`` are of its findings; ``unsealed``:
    it was to be sealed and could not be.
    """

    stamp: str
    state: State
    checked_at: float
    path: str
    step: int | None = None
    saved_at: float = 0.0
    codes: tuple[str, ...] = ()
    unsealed: bool = False


class Starts(Struct, frozen=True):
    """A job's last start: its time, the step resumed from, and how many starts before it in a row had it."""

    decided_at: float = 0.0
    step: int | None = None
    again: int = 0


class _Watched(Struct, frozen=True):
    """The file of a root's records."""

    schema: Literal["ckpt-tools/watched/v1"]
    checkpoints: dict[str, Record]
    starts: Starts


class Records:
    """What is known of a root: ``known`` checkpoints by their keys and ``starts``, kept in a file; and which
    checkpoints wait for verification or a seal, by a clock that never jumps.
    """

    def __init__(self, root: str, options: WatchOptions) -> None:
        home = options.state_dir or resolve.find_watched()
        try:
            self.directory = name_home(home, root)
        except UsageError as e:
            text = f"the state directory {home} lies inside {root}, where nothing is written"
            raise UsageError(text, "name one outside it with CKPT_STATE_DIR") from e
        self.options, self.trusted = options, options.read.trust
        self.known: dict[str, Record] = {}
        self.starts = Starts()
        self._since: dict[str, tuple[str, float]] = {}  # key -> (stamp, when it was first seen with it)
        self._again: dict[str, tuple[object, float]] = {}  # key -> (basis, when it is tried again)
        self._written = self._encode()

    def load(self) -> None:
        """Read the records of an earlier run, if there are any. Raises OSError and ValueError if they cannot
        be used, and Untrusted if others can write them, who could call damage good.
        """
        try:
            data = trust.read(os.path.join(self.directory, NAME), _MOST, self.trusted)
        except FileNotFoundError:
            return
        watched, now = checked_json.decode(checked_json.parse(data), _Watched), time.time()
        # a clock that was ahead must not put the next scrub off
        records = watched.checkpoints.items()
        self.known = {key: replace(r, checked_at=min(r.checked_at, now)) for key, r in records}
        self.starts = watched.starts
        self._written = self._encode()

    def save(self) -> None:
        """Write the records, if they have changed: aside, synced, renamed. Raises OSError and Untrusted."""
        if (data := self._encode()) != self._written:
            replace_file(self.directory, NAME, data, self.trusted)
            self._written = data

    def _encode(self) -> bytes:
        value = to_builtins(_Watched("ckpt-tools/watched/v1", self.known, self.starts))
        return json.dumps(value).encode("ascii")

    def hold(self) -> AbstractContextManager[None]:
        """Hold the lock of a watched root. Raises UsageError if another process has it, and CannotLook."""
        text = f"watches this directory already ({os.path.join(self.directory, LOCK)})"
        hint = "end it first; two that are to watch one directory need a CKPT_STATE_DIR each"
        return hold_lock(self.directory, LOCK, self.trusted, lambda who: UsageError(f"{who} {text}", hint))

    def forget_waits(self, found: Mapping[str, Listed]) -> None:
        """Forget since when checkpoints wait that are not in ``found``."""
        for waits in (self._since, self._again):
            for key in waits.keys() - found.keys():
                del waits[key]

    def put_off(self, one: Listed, seconds: float) -> None:
        """Let a checkpoint wait after a failed attempt, ``seconds`` long: each attempt reads all of it."""
        again = time.monotonic() + max(self.options.rescan, _RETRY * seconds)
        self._again[one.key] = one.basis, again

    def find_due(self, found: Mapping[str, Listed]) -> list[tuple[Listed, str]]:
        """Return what is to be verified now, and why (new, changed, retry or scrub): in this order, newest
        first, and for scrub the least recently checked first.
        """
        reasons = ((one, self._find_reason(one, self.known.get(one.key))) for one in found.values())

        def rank(row: tuple[Listed, str]) -> tuple[int, float]:
            one, reason = row
            at = self.known[one.key].checked_at if reason == "scrub" else -one.checkpoint.mtime_ns
            return ("new", "changed", "retry", "scrub").index(reason), at

        return sorted((row for row in reasons if row[1]), key=rank)

    def _find_reason(self, one: Listed, record: Record | None) -> str:
        """Return why a checkpoint is to be verified now; "" if it is not."""
        basis, again = self._again.get(one.key, (None, 0.0))
        if basis == one.basis and time.monotonic() < again:
            return ""
        if record is None or record.stamp != one.stamp:
            if not one.finished or not self._is_settled(one):
                return ""
            return "new" if record is None else "changed"
        if record.state == "unknown" or (self.options.seal and record.unsealed):
            return "retry"
        return "scrub" if time.time() - record.checked_at >= self.options.every else ""

    def _is_settled(self, one: Listed) -> bool:
        """Return whether the files are unwritten for ``settle`` seconds, by our clock or by their times."""
        now, settle = time.monotonic(), self.options.read.settle
        stamp, since = self._since.get(one.key, ("", now))
        if stamp != one.stamp:
            self._since[one.key], since = (one.stamp, now), now
        latest = 0.0  # a copy may set a file's mtime, not its ctime
        for part in one.checkpoint.parts:
            with suppress(OSError):
                info = status(part.path)
                latest = max(latest, info.st_mtime, info.st_ctime)
        return now - since >= settle or time.time() - latest >= settle
