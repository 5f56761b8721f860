"""Files of a store brought to this machine, in the versions that were judged: in parallel, each verified from
its local copy, and renamed into place when whole.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from threading import Lock
from typing import Any, cast

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace
from xxhash import xxh3_128_hexdigest

from ckpt_tools.errors import CannotLook, UsageError, explain_refusal
from ckpt_tools.inspection.check import inspect
from ckpt_tools.job.decision import AGAIN, Stage, StagedFile
from ckpt_tools.job.staging.place import NOTE, Record, digest_file, list_marks
from ckpt_tools.job.view_tree import Tree, make_tree
from ckpt_tools.layouts import Layouts
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.seal import NOT_KEPT
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.scheduler import Request
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage.stalls import Rate, Threads
from ckpt_tools.storage.stores.mounts import learn_versions, object_of, store_of, tree_of
from ckpt_tools.storage.stores.source import CHUNK, StoreSource
from ckpt_tools.storage.stores.store import Object, Replaced, Store, is_other
from ckpt_tools.storage.urls import is_url, split

FILES = 6
"""Files under way at a time, unless --jobs says otherwise: some of them are verified while others come."""
REQUESTS = 4
"""Requests under way at a time for each file: together enough to fill a fast network, in 100 MiB."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class Damaged(Exception):
    """A file came damaged twice, by what is stored about it."""

    def __init__(self, url: str, found: Sequence[Finding]) -> None:
        super().__init__(f"{url} came damaged twice: {found[0].code}: {found[0].message}")


class _StoreWithCopies:
    """A store that reads objects with a local copy from the copy; ``copies`` maps keys to descriptors."""

    def __init__(self, store: Store, copies: Mapping[str, int]) -> None:
        self.store, self.copies = store, copies

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def read(self, of: Object, start: int, length: int) -> tuple[memoryview, Object]:
        """Return bytes of an object, from its local copy if there is one, else from the store."""
        fd = self.copies.get(of.key)
        if fd is None:
            return self.store.read(of, start, length)
        return memoryview(os.pread(fd, length, start)), of


@contextmanager
def _substitute_copies(url: str) -> Iterator[dict[str, int]]:
    """Yield a dict of descriptors by key, from which the store of ``url`` is read while the block runs."""
    tree, _ = tree_of(url)
    before, copies = tree.store, dict[str, int]()
    tree.store = cast("Store", _StoreWithCopies(before, copies))
    try:
        yield copies
    finally:
        tree.store = before


def has_size(path: str, size: int) -> bool:
    """Return True if an earlier attempt left a regular file of that size, which may be the one."""
    with suppress(OSError):
        st = os.lstat(path)
        return stat.S_ISREG(st.st_mode) and st.st_size == size
    return False


class Fetch(Struct):
    """Brings files of the store of ``root`` to the directory ``part``. ``planned`` are URLs of files to load,
    which must be whole by what is stored about them. ``progress`` gets the bytes here, and those of all.
    """

    root: str
    part: str
    planned: Collection[str]
    options: ReadOptions
    progress: Callable[[int, int], object] | None
    _rate: Rate | None = None
    _joint_lock: Lock = field(default_factory=Lock)
    _key: bytes | None = None
    _copies: dict[str, int] = {}
    _is_stopped: bool = False
    _bytes_here: int = 0
    _total: int = 0

    def files(self, wanted: Mapping[str, StagedFile]) -> list[Record]:
        """Bring the files, each to its name below ``part``. Raise Damaged, CannotLook and OSError."""
        if not wanted:
            return []
        session = open_session(self.root, self.options)
        requests = _make_requests(session, {f.url: f for f in wanted.values()})
        self._total = sum(f.size for f in wanted.values())
        self._key = session.reader.key
        if self.options.limit_rate:
            self._rate = Rate(self.options.limit_rate)
        aside = f"{self.part}.aside"
        shutil.rmtree(aside, ignore_errors=True)
        os.makedirs(aside, 0o755, exist_ok=True)
        names: dict[str, list[str]] = {}
        for name, f in wanted.items():  # a file may have the names of several ranks
            names.setdefault(f.url, []).append(name)
        pool = Threads(min(self.options.jobs or FILES, len(names)))
        with _substitute_copies(self.root) as self._copies:
            waiting: list[Future[list[Record]]] = []
            try:
                for n, (url, local_names) in enumerate(names.items()):
                    asked = wanted[local_names[0]], requests[url], local_names, os.path.join(aside, str(n))
                    waiting.append(pool.submit(self._bring, *asked))
                out = [record for future in waiting for record in future.result()]
            except BaseException as e:
                self._is_stopped = True  # running downloads end soon
                pool.close(wait=isinstance(e, Exception))
                if isinstance(e, Damaged):  # nothing will load these files
                    shutil.rmtree(self.part, ignore_errors=True)
                raise
        pool.close(wait=True)
        shutil.rmtree(aside, ignore_errors=True)
        return out

    def _bring(self, wanted: StagedFile, request: Request, names: Sequence[str], aside: str) -> list[Record]:
        """Return an object's records under all ``names``, of a copy here or of up to two downloads."""
        path = os.path.join(self.part, names[0])
        wrong: Sequence[Finding] = ()
        for at in (path, aside, aside):
            if at is aside:
                self._download(wanted, aside)
            elif not has_size(path, wanted.size):
                continue
            else:
                self._report(wanted.size)
            record, wrong = self._verify(wanted, at, request)
            if not wrong:
                break
        if other := next((f for f in wrong if f.code == NOT_KEPT), None):
            raise CannotLook(f"{wanted.url}: {other.message}", AGAIN)
        if wrong and wanted.url in self.planned:
            raise Damaged(wanted.url, wrong)
        if at is aside:
            put_in_place(aside, path)
        records = [replace(record, name=names[0], seen=list_marks(os.stat(path)))]
        for name in names[1:]:
            copy = os.path.join(self.part, name)
            os.makedirs(os.path.dirname(copy), 0o755, exist_ok=True)
            shutil.copy2(path, copy)
            self._report(record.size)
            records.append(replace(record, name=name, seen=list_marks(os.stat(copy))))
        return records

    def _download(self, wanted: StagedFile, path: str) -> None:
        """Bring the bytes of one object into a new file. Raise CannotLook and OSError."""
        starts = range(0, wanted.size, CHUNK)
        with open(os.open(path, _WRITE, 0o644), "wb", buffering=0) as file, StoreSource(wanted.url) as source:

            def one(start: int) -> None:
                if self._is_stopped:
                    raise OSError(errno.ECANCELED, "another file could not be brought")
                try:
                    data = source.fetch(start, min(CHUNK, wanted.size - start))
                except Replaced:
                    raise _explain_replaced(wanted.url) from None
                except OSError as e:
                    raise CannotLook(f"{wanted.url}: {e.strerror}", AGAIN) from e
                count = len(data)
                while data:
                    done = os.pwrite(file.fileno(), data, start)
                    data, start = data[done:], start + done
                self._report(count)
                if self._rate is not None:
                    self._rate.took(count)

            pool = Threads(min(REQUESTS, len(starts) or 1))
            try:
                for future in [pool.submit(one, start) for start in starts]:
                    future.result()
            finally:
                pool.close(wait=True)

    def _report(self, count: int) -> None:
        """Add ``count`` bytes to the progress."""
        self._bytes_here += count
        if self.progress is not None:
            self.progress(self._bytes_here, self._total)

    def _verify(self, wanted: StagedFile, path: str, request: Request) -> tuple[Record, Sequence[Finding]]:
        """Return the record of a copy, and the findings against it. Raise CannotLook for another object."""
        (_, key), is_joint = split(wanted.url), any(c.joint for c in request.claims)
        fd = os.open(path, _READ)
        try:
            self._copies[key] = fd
            # joint checks add up values of several files
            with self._joint_lock if is_joint else nullcontext():
                report, _ = inspect(
                    wanted.url,
                    Level.CONTENT,
                    expect=request.expect,
                    claims=request.claims,
                    jobs=1,
                    require=self.options.require if wanted.url in self.planned else (),
                    key=self._key,
                    again=False,  # a file that differs is fetched once more
                )
            del self._copies[key]
            _require_unchanged(wanted, report)
            os.utime(fd, ns=(wanted.mtime_ns, wanted.mtime_ns))
            level = report.level.name.lower() if report.format else ""
            of = wanted.url, wanted.size, wanted.etag, wanted.version
            record = Record("", *of, level, digest_file(fd))
        finally:
            os.close(fd)
        bad = report.verdict is Verdict.BROKEN
        wrong = [f for f in report.findings if f.code == NOT_KEPT or (bad and f.severity is Severity.ERROR)]
        return record, wrong


def _require_unchanged(wanted: StagedFile, report: Report) -> None:
    """Raise CannotLook if the store does not answer, or has another object by now."""
    codes = {f.code: f for f in report.findings}
    if "in-use" in codes:
        raise _explain_replaced(wanted.url)
    if "unreadable" in codes and NOT_KEPT not in codes:
        raise CannotLook(f"{wanted.url}: {codes['unreadable'].message}", AGAIN)
    store, key = store_of(wanted.url)
    if not (wanted.etag and store.pins):
        with explain_refusal(wanted.url, AGAIN):
            now = store.head(key)
        if is_other(Object(key, wanted.size, wanted.mtime_ns, wanted.etag, wanted.version), now):
            raise _explain_replaced(wanted.url)


def put_in_place(aside: str, path: str) -> None:
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    os.rename(aside, path)


def _explain_replaced(url: str) -> CannotLook:
    return CannotLook(f"{url} was replaced while it was brought", AGAIN)


def _make_requests(session: Session, wanted: Mapping[str, StagedFile]) -> dict[str, Request]:
    """Return by URL how layout, indexes and seals verify a file. Raise CannotLook for another object."""
    parts, out = {p.path: p for p in session.parts}, dict[str, Request]()
    for url, f in wanted.items():
        tree, key = tree_of(url)
        with explain_refusal(url, AGAIN):
            now = tree.object(key)
        if (now.size, now.mtime_ns, now.etag) != (f.size, f.mtime_ns, f.etag):
            raise CannotLook(f"{url} has been replaced since it was chosen", AGAIN)
        part = parts.get(url)
        expect = formats_allowed(part, session.layouts.piece_of(part)) if part else ()
        claims = session.indexes.claims(url)
        out[url] = Request(url, now.size, Level.CONTENT, tuple(expect), claims)
    return out


_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_LABEL = 40
_LONGEST = 255  # the most bytes of a name on a disk; a key may have 1,024, with slashes anywhere
_NOWHERE = "/-"  # the place of a tree whose directory has no name yet


def select_files(stage: Stage, ranks: Collection[int] | None = None) -> dict[str, StagedFile]:
    """Return the staged files of these ranks (None: of all), by name below the staged checkpoint."""
    return {
        f.path.removeprefix(f"{stage.root}/"): f
        for f in stage.files
        if ranks is None or f.ranks is None or not {*ranks}.isdisjoint(f.ranks)
    }


def describe(plan: LoadPlan, home: str, layouts: Layouts) -> dict[str, Any]:
    """Return the fields of a decision whose files go below the directory ``home``: "resume" for the local
    files, "view" with the local path of every file entry, "stage" with all files to bring.

    Raise UsageError if ROOT is no URL, or a layout's names cannot be made; CannotLook if the store does not
    answer or has another object by now.
    """
    if not is_url(plan.root):
        text = f"--stage is for a ROOT in a store, and {plan.root} lies on this machine already"
        hint = "start without --stage, or with --view DIR for a tree that holds one checkpoint alone"
        raise UsageError(text, hint)
    tree = make_tree(plan, _NOWHERE, layouts)
    try:
        files = list(_find_files(tree))
    except OSError as e:
        raise CannotLook(f"{e.filename} cannot be looked at: {e.strerror}", AGAIN) from e
    # a name for these versions of these files, and for no others; without versions that not every list tells
    known = [f"{f.path}\0{f.url}\0{f.size}\0{f.mtime_ns}\0{f.etag}" for f in files]
    known += [f"{name}\0{data!r}" for name, data in sorted(tree.texts.items())]
    digest = xxh3_128_hexdigest("\n".join(known).encode("utf-8", "surrogatepass"))
    label = _UNSAFE.sub("_", tree.checkpoint.path.rpartition("/")[2]).strip("._")[:_LABEL]
    directory = f"{home.rstrip('/')}/{label or 'checkpoint'}-{digest[:16]}"
    tree = make_tree(plan, directory, layouts)
    rows = tuple(replace(f, path=f"{directory}/{f.path}") for f in files)
    texts = {name: data.decode("utf-8", "surrogateescape") for name, data in tree.texts.items()}
    return {**tree.describe(), "stage": to_builtins(Stage(directory, rows, texts))}


def _find_files(tree: Tree) -> Iterator[StagedFile]:
    """Yield a StagedFile for each link of the tree. Raise OSError, UsageError and CannotLook."""
    planned = {f.path: f for _, f in tree.plan.loads}
    learn_versions(list(tree.links.values()))
    start, ranks_by_name = len(tree.directory) + 1, dict[str, list[int]]()
    if tree.layout.ranks.own_files:  # no rank looks for other ranks' files
        for rank, links in tree.ranks.items():
            for link in links:
                ranks_by_name.setdefault(link[start:], []).append(rank)
    for name, url in sorted(tree.links.items()):
        if name == NOTE:  # the upload of a staged directory
            continue
        _require_name(tree, name, url)
        now = object_of(url)
        f = planned.get(url)
        if f is not None and (now.size, now.mtime_ns, now.etag) != (f.size, f.mtime_ns, f.etag):
            raise CannotLook(f"{url} has been replaced since it was chosen", AGAIN)
        ranks = ranks_by_name.get(name, [0])
        own = None if 0 in ranks else tuple(ranks)  # all open rank 0's: Megatron-LM reads arguments from them
        yield StagedFile(name, url, now.size, now.mtime_ns, now.etag, now.version, own)


def _require_name(tree: Tree, name: str, url: str) -> None:
    """Raise UsageError if no local file can have this name, or another file's would be its directory's."""
    parts = name.split("/")
    lengths = [len(part.encode("utf-8", "surrogatepass")) for part in parts]
    above = {"/".join(parts[:n]) for n in range(1, len(parts))}
    if max(lengths) > _LONGEST or {"", ".", ".."} & {*parts} or "\0" in name or above & tree.links.keys():
        text = f"{url} cannot be staged: no file here can be called {name!r}, beside the others"
        hint = "rename or delete what does not belong to the checkpoint, or start without --stage"
        raise UsageError(text, hint)
