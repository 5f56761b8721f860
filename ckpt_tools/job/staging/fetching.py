"""Files of a store brought to this machine: in parallel, each verified by the bytes that pass, written aside
and named when it is whole.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from threading import Lock

from msgspec.structs import replace

from ckpt_tools.errors import CannotLook
from ckpt_tools.inspection.check import inspect
from ckpt_tools.job.process import Process
from ckpt_tools.job.staging.records import ASIDE, Record, added, seen
from ckpt_tools.job.staging.wanted import Wanted
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.model.store_checksum import NOT_KEPT
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.scheduler import Request
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage.stores.copies import Copy, Ledger, copying, fetch_rest
from ckpt_tools.storage.stores.mounts import store_of, tree_of
from ckpt_tools.storage.stores.store import Replaced, other_than
from ckpt_tools.storage.threads import Rate, Threads

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Aside:
    """The directory in which files of the staged checkpoint ``part`` wait until they are whole."""

    def __init__(self, part: str) -> None:
        self._home = os.path.join(part, ASIDE)

    def prepare(self, wanted: Collection[Wanted]) -> None:
        """Keep what an earlier attempt brought of these files, and nothing else. Raises OSError."""
        os.makedirs(self._home, 0o755, exist_ok=True)
        known = {os.path.basename(p) for w in wanted if w.object.etag for p in (self.path(w), self._cells(w))}
        for name in set(os.listdir(self._home)) - known:
            os.unlink(os.path.join(self._home, name))

    def room(self, wanted: Collection[Wanted]) -> int:
        """Bytes on the disk that an earlier attempt has taken for these files."""
        taken = 0
        for w in wanted:
            with suppress(FileNotFoundError):
                taken += os.stat(self.path(w)).st_blocks * 512
        return taken

    def path(self, wanted: Wanted) -> str:
        """One name for one version of one object."""
        from xxhash import xxh3_128_hexdigest

        of = f"{wanted.url}\0{wanted.object[1:4]}"
        return os.path.join(self._home, xxh3_128_hexdigest(of.encode("utf-8", "surrogatepass")))

    def _cells(self, wanted: Wanted) -> str:
        return f"{self.path(wanted)}.cells"

    def forget(self, wanted: Wanted) -> None:
        """Have a file begin anew. Raises OSError."""
        for path in (self.path(wanted), self._cells(wanted)):
            with suppress(FileNotFoundError):
                os.unlink(path)

    @contextmanager
    def opened(self, wanted: Wanted) -> Iterator[tuple[int, Ledger]]:
        """The file, open for writing, and what is known of its cells. Raises OSError."""
        fd = os.open(self.path(wanted), _FLAGS, 0o644)
        try:
            cells = os.open(self._cells(wanted), _FLAGS | os.O_APPEND, 0o644)
            try:
                yield fd, Ledger(cells)
            finally:
                os.close(cells)
        finally:
            os.close(fd)

    def finish(self, wanted: Wanted, path: str) -> None:
        """Give a file that is whole its name. Raises OSError."""
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.rename(self.path(wanted), path)
        with suppress(OSError):
            os.unlink(self._cells(wanted))

    def remove(self) -> None:
        """What is left, once all files have their names."""
        shutil.rmtree(self._home, ignore_errors=True)


FILES = 4
"""Files under way at a time, unless --jobs says otherwise."""
REQUESTS = 4
"""Requests under way at a time for each of them: together as many as fill a fast network, in 80 MiB."""
_AGAIN, _STOPPED = "start again: a new start decides anew", "another file could not be brought"


class Damaged(Exception):
    """A file came damaged twice, by what is stored about it."""

    def __init__(self, url: str, found: Sequence[Finding]) -> None:
        super().__init__(f"{url} came damaged twice: {found[0].code}: {found[0].message}")


class Fetch:
    """Brings files of the store of ``root`` to the directory ``part``. ``planned`` are URLs of files that are
    loaded: those must be whole by what is stored about them. ``progress`` is called with bytes that arrived.
    """

    def __init__(
        self,
        root: str,
        part: str,
        planned: Collection[str],
        options: ReadOptions,
        progress: Callable[[int], object],
    ) -> None:
        self.root, self.part, self.planned, self.options = root, part, planned, options
        self.progress = progress
        self.rate = Rate(options.limit_rate) if options.limit_rate else None
        self._aside = Aside(part)
        self._joint = Lock()
        self._key: bytes | None = None
        self._copies: dict[str, Copy] = {}
        self._stopped = False

    def files(self, wanted: Sequence[Wanted]) -> list[Record]:
        """Bring them. Raises Damaged, CannotLook, and OSError where this machine cannot write them."""
        session = open_session(self.root, self.options)
        requests = _requests(session, wanted)
        self._key = session.reader.key
        self._aside.prepare(wanted)
        pool = Threads(min(self.options.jobs or FILES, len(wanted)))
        names: dict[str, list[Wanted]] = {}
        for w in wanted:  # a rank that stands in for others has a name for each of them
            names.setdefault(w.url, []).append(w)
        with copying(self.root, REQUESTS) as self._copies:
            waiting: list[Future[list[Record]]] = []
            try:
                waiting += (pool.submit(self._once, some, requests[url]) for url, some in names.items())
                out = [record for future in waiting for record in future.result()]
            except Exception:
                self._stopped = True  # and let what is under way end soon
                for copy in list(self._copies.values()):
                    copy.error = copy.error or OSError(errno.ECANCELED, _STOPPED)
                pool.close(wait=True)
                raise
            except BaseException:
                pool.close(wait=False)
                raise
        pool.close(wait=True)
        self._aside.remove()
        return out

    def _once(self, names: Sequence[Wanted], request: Request) -> list[Record]:
        """One object, under all its names."""
        first = self._one(names[0], request)
        records = [first]
        for wanted in names[1:]:
            path = os.path.join(self.part, wanted.name)
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            shutil.copy2(os.path.join(self.part, first.name), path)
            self.progress(first.size)
            records.append(self._noted(replace(first, name=wanted.name), path))
        return records

    def _one(self, wanted: Wanted, request: Request) -> Record:
        """One file, whole and verified; what came damaged is asked for once more."""
        record, wrong = self._try(wanted, request)
        if wrong:
            self._aside.forget(wanted)
            record, wrong = self._try(wanted, request)
        if other := next((f for f in wrong if f.code == NOT_KEPT), None):
            raise CannotLook(f"{wanted.url}: {other.message}", _AGAIN)
        if wrong and wanted.url in self.planned:
            raise Damaged(wanted.url, wrong)
        path = os.path.join(self.part, wanted.name)
        self._aside.finish(wanted, path)
        return self._noted(record, path)

    def _noted(self, record: Record, path: str) -> Record:
        record = replace(record, seen=seen(os.stat(path)))
        added(self.part, record)
        return record

    def _try(self, wanted: Wanted, request: Request) -> tuple[Record, Sequence[Finding]]:
        """What one attempt to bring a file came to, and what is wrong with it."""
        of = wanted.object
        with self._aside.opened(wanted) as (fd, ledger):
            copy = Copy(of, fd, self._arrived, ledger)
            if self._stopped:
                raise OSError(errno.ECANCELED, _STOPPED)
            self._copies[of.key] = copy
            try:
                report = self._read(copy, wanted, request)
            finally:
                self._copies.pop(of.key, None)
            os.utime(fd, ns=(of.mtime_ns, of.mtime_ns))
        level, host = report.level.name.lower() if report.format else "", Process.here().host
        record = Record(wanted.name, wanted.url, of.size, of.etag, copy.version, level, copy.digest, (), host)
        bad = report.verdict is Verdict.BROKEN
        wrong = (f for f in report.findings if f.code == NOT_KEPT or (bad and f.severity is Severity.ERROR))
        return record, [*wrong]

    def _read(self, copy: Copy, wanted: Wanted, request: Request) -> Report:
        """Verify the file while it comes, and bring what no check has asked for. Raises CannotLook, and what
        kept its bytes from being written.
        """
        of, joint = wanted.object, any(c.joint for c in request.claims)
        with self._joint if joint else nullcontext():  # such checks add up what they find in several files
            report, _ = inspect(
                wanted.url,
                Level.CONTENT,
                expect=request.expect,
                claims=request.claims,
                jobs=1,
                require=self.options.require if wanted.url in self.planned else (),
                key=self._key,
                again=False,  # what differs is fetched once more, and written down
            )
        codes = {f.code: f for f in report.findings}
        try:
            if copy.error is not None:
                raise copy.error
            if "in-use" in codes:
                raise Replaced(wanted.url)
            if "unreadable" in codes and NOT_KEPT not in codes:
                raise CannotLook(f"{wanted.url}: {codes['unreadable'].message}", _AGAIN)
            fetch_rest(wanted.url, copy, REQUESTS)
            store, key = store_of(wanted.url)
            if not (of.etag and store.pins) and other_than(of, store.head(key)):
                raise Replaced(wanted.url)
        except Replaced:
            raise CannotLook(f"{wanted.url} was replaced while it was brought", _AGAIN) from None
        except OSError as e:
            if copy.error is not None:
                raise copy.error from None
            raise CannotLook(f"{wanted.url}: {e.strerror}", _AGAIN) from e
        return report

    def _arrived(self, n: int) -> None:
        self.progress(n)
        if self.rate is not None:
            self.rate.took(n)


def _requests(session: Session, wanted: Sequence[Wanted]) -> dict[str, Request]:
    """How each file is verified: by what its layout, the indexes and the seals say. Raises CannotLook where
    the store has another object by now.
    """
    parts = {p.path: p for p in session.parts}
    out: dict[str, Request] = {}
    for w in wanted:
        tree, key = tree_of(w.url)
        try:
            now = tree.object(key)
        except OSError as e:
            raise CannotLook(f"{w.url}: {e.strerror}", _AGAIN) from e
        if now[1:4] != w.object[1:4]:
            raise CannotLook(f"{w.url} has been replaced since it was chosen", _AGAIN)
        part = parts.get(w.url)
        expect = formats_allowed(part, session.layouts.piece_of(part)) if part else ()
        claims = session.indexes.claims(w.url)
        out[w.url] = Request(w.url, now.size, now.mtime_ns, Level.CONTENT, tuple(expect), claims)
    return out
