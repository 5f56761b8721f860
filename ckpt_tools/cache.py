"""The cache of reports on files between runs: one SQLite file per user and host, and locks so that many
processes read a file once.

Nothing here interprets the entries. A damaged or unusable cache is a note, never a failure: the caller then
reads the file itself.
"""

from __future__ import annotations

import fcntl
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import DecodeError, msgpack
from msgspec.structs import replace

from ckpt_tools.model.report import NO_METADATA, Box, Report
from ckpt_tools.settings.resolve import verdicts as directory
from ckpt_tools.storage import Identity
from ckpt_tools.storage import trust as orders
from ckpt_tools.storage.trust import OURS, Trust, Untrusted
from ckpt_tools.storage.urls import is_url, real_path, to_absolute

if TYPE_CHECKING:
    import sqlite3
import stat

Note = Callable[[str], object]
"""Called with a sentence for the user."""

_UNUSED = 30 * 86400  # seconds without use after which an entry is dropped
ROWS, BYTES, ENTRY = 100_000, 256 << 20, 4 << 20
"""Entries, bytes of all pages in use, and bytes of one entry, at most."""
_LARGEST = 4 * BYTES
"""Bytes of a cache file that is opened, at most: it does not shrink when entries are dropped."""
_UNKEPT = "no verdicts are kept between runs"
_FILE, _ENDS = "verdicts.sqlite", ("", "-journal", "-wal", "-shm")
_BUSY = 30.0  # seconds to wait for another process
_DAY = 86400 * 10**9  # nanoseconds
_SCHEMA = (
    (
        "CREATE TABLE IF NOT EXISTS seen (path BLOB, question BLOB, depth INTEGER, identity TEXT, seen_ns"
        " INTEGER, bad INTEGER, used_ns INTEGER, entry BLOB, digest BLOB, PRIMARY KEY (path, question))"
    ),
    "CREATE INDEX IF NOT EXISTS used ON seen (used_ns)",
)
_TYPES = (bytes, int, int, int, int, str, bytes)
"""The types of the columns that ``get`` reads: SQLite itself allows any type in any column."""


class Entry(NamedTuple):
    """One entry: ``data``, the ``depth`` of the check, its start (``seen_ns``), if the file is ``bad``."""

    data: bytes
    depth: int
    seen_ns: int
    bad: bool


class Cache:
    """The cache, opened at first use. With ``max_age`` 0 (s) no entry is used; ``note`` is called once."""

    def __init__(
        self,
        root: str,
        max_age: float,
        note: Note | None = None,
        *,
        trust: Trust = OURS,
    ) -> None:
        self.max_age, self._note, self._trust = max_age, note, trust
        self.began_ns = time.time_ns()
        self.directory = directory(os.environ)
        self.path = os.path.join(self.directory, _FILE)
        self._db: sqlite3.Connection | None = None
        self._written = False
        self.usable = True
        if not self.directory:
            self._disable(f"{_UNKEPT}: there is no home directory; set CKPT_CACHE_DIR")
        elif is_inside(self.directory, root):
            self._disable(f"{_UNKEPT}: {self.directory} lies in the tree that is scanned; set CKPT_CACHE_DIR")

    @property
    def locks(self) -> str | None:
        """The directory of the locks; None if the cache is off, so no other process sees the entries."""
        return self.directory if self.usable else None

    def _disable(self, why: str) -> None:
        """Use the cache no more in this run, and note why."""
        self.usable = False
        self.close()
        if self._note:
            self._note(why)
            self._note = None

    # ---- entries

    def get(
        self, path: str, question: bytes, depth: int, identity: Identity, *, ever: bool = False
    ) -> Entry | None:
        """Return the entry of a file with this identity, of ``depth`` or deeper; None if there is none. A bad
        file has one only if a process that runs beside this one has checked it since this cache was made.

        ``ever``: of any age, for callers that want the time itself.
        """

        def look_up(db: sqlite3.Connection) -> Entry | None:
            key = os.fsencode(path), question
            row = db.execute(
                "SELECT entry, depth, seen_ns, bad, used_ns, identity, digest FROM seen WHERE path = ? AND"
                " question = ? AND depth >= ? AND identity = ?",
                (*key, depth, _identity_text(identity)),
            ).fetchone()
            is_ours = row is not None and tuple(map(type, row)) == _TYPES
            if not is_ours or row[6] != _digest(*key, *row[:4], row[5]):
                return None
            now, max_age = time.time_ns(), math.inf if ever else self.max_age * 1e9
            is_old_bad = row[3] and row[2] < self.began_ns and not ever
            if not -60e9 <= now - row[2] <= max_age or is_old_bad:
                return None
            if now - row[4] > _DAY:  # once a day, because most runs only read
                db.execute("UPDATE seen SET used_ns = ? WHERE path = ? AND question = ?", (now, *key))
            return Entry(row[0], row[1], row[2], bool(row[3]))

        return self._run(look_up) if ever or self.max_age > 0 else None

    def put(self, path: str, question: bytes, identity: Identity, entry: Entry) -> None:
        """Keep an entry, unless a deeper one is there. A bad one replaces all entries of the path."""

        def store(db: sqlite3.Connection) -> None:
            key, text = (os.fsencode(path), question), _identity_text(identity)
            row = (*key, entry.depth, text, entry.seen_ns, int(entry.bad), time.time_ns(), entry.data)
            digest = _digest(*key, entry.data, entry.depth, entry.seen_ns, int(entry.bad), text)
            db.execute("BEGIN IMMEDIATE")
            if entry.bad:
                db.execute("DELETE FROM seen WHERE path = ?", key[:1])
            db.execute(
                "INSERT INTO seen VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (path, question) DO UPDATE"
                " SET depth = excluded.depth, identity = excluded.identity, seen_ns = excluded.seen_ns, bad ="
                " excluded.bad, used_ns = excluded.used_ns, entry = excluded.entry, digest = excluded.digest"
                " WHERE excluded.depth >= depth OR excluded.identity != identity OR bad",
                (*row, digest),
            )
            db.execute("COMMIT")
            self._written = True

        if len(entry.data) <= ENTRY:
            self._run(store)

    def forget(self, path: str) -> None:
        """Drop all entries of a path."""

        def drop(db: sqlite3.Connection) -> None:
            if db.execute("SELECT 1 FROM seen WHERE path = ?", (os.fsencode(path),)).fetchone():
                db.execute("DELETE FROM seen WHERE path = ?", (os.fsencode(path),))

        self._run(drop)

    # ---- the file

    def _run(self, query: Callable[[sqlite3.Connection], Any]) -> Any:
        """Return the result of ``query``; None if the cache cannot be used, which ``note`` is told once."""
        if not self.usable:
            return None
        try:
            import sqlite3
        except ImportError:  # some builds of Python are without it
            self._disable(f"{_UNKEPT}: this Python has no sqlite3")
            return None
        try:
            if self._db is None:
                self._db = self._open()
            return query(self._db)
        except (sqlite3.Error, OSError, Untrusted) as e:  # who can write there can call a broken file good
            advice = e.hint if isinstance(e, Untrusted) else "remove it if it is damaged"
            self._disable(f"no verdicts are used from or kept in {self.path}: {e}; {advice}")
            return None

    def _open(self) -> sqlite3.Connection:
        """Open the cache, made if needed. Raises Untrusted, OSError and sqlite3.DatabaseError."""
        import sqlite3

        orders.make(os.path.dirname(self.directory))
        with suppress(FileExistsError):
            os.mkdir(self.directory, 0o700)
        orders.check(self.directory, self._trust)
        for path in (f"{self.path}{end}" for end in _ENDS):
            with suppress(FileNotFoundError):
                orders.check(path, self._trust)
                info = os.lstat(path)
                if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1 or info.st_size > _LARGEST:
                    why = f"is no file, has other names, or is larger than {_LARGEST >> 20:,} MiB"
                    raise Untrusted(f"{path} {why}", "remove it")
        db = sqlite3.connect(self.path, timeout=_BUSY, isolation_level=None)
        try:
            # One file and no shared memory: homes often lie on a network. No waiting for the disk: a crash of
            # the machine may lose or tear entries, which their digests show; a killed process leaves a
            # journal that the next one rolls back.
            db.execute("PRAGMA journal_mode = TRUNCATE").close()
            db.execute("PRAGMA synchronous = OFF")
            for statement in _SCHEMA:
                db.execute(statement)
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        """Close the file; if it was written, drop old entries first."""
        if self._db is not None and self._written:
            self._run(self._prune)
        if self._db is not None:
            self._db.close()
            self._db = None

    def _prune(self, db: sqlite3.Connection) -> None:
        """Drop entries that nobody has used for long, and half of all if the file is too large."""
        self._written = False
        db.execute("DELETE FROM seen WHERE used_ns < ?", (time.time_ns() - _UNUSED * 10**9,))
        count = db.execute("SELECT count(*) FROM seen").fetchone()[0]
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        keep = min(ROWS, count if (pages - free) * size <= BYTES else count // 2)
        drop_least_used = "DELETE FROM seen WHERE rowid IN (SELECT rowid FROM seen ORDER BY used_ns LIMIT ?)"
        db.execute(drop_least_used, (max(0, count - keep),))


@contextmanager
def open_cache(
    root: str, wanted: bool, max_age: float, note: Note | None, trust: Trust
) -> Iterator[Cache | None]:
    """Yield the cache for a scan of ``root``, None unless ``wanted``; all else as in ``Cache``."""
    cache = Cache(to_absolute(root), max_age, note, trust=trust) if wanted else None
    try:
        yield cache
    finally:
        if cache is not None:
            cache.close()


def _identity_text(identity: Identity) -> str:
    return " ".join(map(str, identity))


def _digest(*values: object) -> bytes:
    import xxhash

    return xxhash.xxh3_64_digest(repr(values).encode())


Places = Mapping[str, Box]


class Seen(NamedTuple):
    """One report that was made before anybody asked for it; ``identity`` is None if it may not be kept."""

    report: Report
    places: Places
    identity: Identity | None


def pack(report: Report, places: Places) -> bytes | None:
    """Return a report, without its path and the map of bytes, as bytes; None if it cannot be packed."""
    try:
        return msgpack.encode((replace(report, path="", regions=()), places))
    except (TypeError, ValueError, OverflowError):  # a name that is no UTF-8, an integer of more than 64 bits
        return None


def unpack(path: str, data: bytes) -> tuple[Report, Places] | None:
    """Return the report that ``pack`` packed, as one on ``path``; None for any other bytes."""
    try:
        report, places = _decoder().decode(data)
    except (DecodeError, ValueError, RecursionError):
        return None
    # texts that 100,000 reports have in common are in memory once
    fmt = None if report.format is None else sys.intern(report.format)
    return replace(report, path=path, format=fmt, metadata=report.metadata or NO_METADATA), places


@cache
def _decoder() -> msgpack.Decoder[tuple[Report, Places]]:
    return msgpack.Decoder(tuple[Report, Places])


WAIT = 600.0
"""Seconds to wait for another process that reads the same file; then the file is read without waiting."""
_LOCKS = 64
"""Lock files of each kind: few, as they are never removed; files with the same one wait for each other."""


def is_inside(path: str, root: str) -> bool:
    """Return True if ``path`` lies in the tree at ``root``, or begins with ``root`` if that is a prefix."""
    path, real = real_path(path), real_path(root)
    if is_url(root):
        return f"{path}/".startswith(f"{real}/")
    return path == real or path.startswith(real if not os.path.lexists(root) else real.rstrip("/") + "/")


@contextmanager
def take_turn(
    home: str | None, path: str, deep: bool, kind: str = "", give_up: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Wait until it is this process's turn to read ``path``, at most WAIT or until ``give_up``; it ends with
    the process, however that ends. Never hold two turns of one ``kind``.

    Deep checks have locks of their own, so that a check of a header never waits for a process that reads a
    whole file. If locks are impossible, or ``home`` is None, it is always this process's turn.
    """
    fd, flags = None, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    name = f"{kind}{'deep' if deep else 'quick'}-{zlib.crc32(os.fsencode(path)) % _LOCKS:02d}.lock"
    until, pause = time.monotonic() + WAIT, 0.002
    with suppress(OSError):
        fd = None if home is None else os.open(os.path.join(home, name), flags, 0o600)
    try:
        while fd is not None and _is_locked(fd) and time.monotonic() < until and not give_up():
            time.sleep(pause)
            pause = min(1.5 * pause, 0.1)
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _is_locked(fd: int) -> bool:
    """Return True if another process has the lock; else take it, unless its file system has none."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        return isinstance(e, BlockingIOError)
    return False
