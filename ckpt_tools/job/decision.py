"""One job, one decision: a load plan in a file, written once by whoever holds the lock, read and re-checked by everyone else."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ckpt_tools.emit import json as as_json
from ckpt_tools.errors import BY_EXIT_CODE, CannotLook, CkptError, UsageError
from ckpt_tools.job.process import Process
from ckpt_tools.model import LoadPlan

KEPT_DAYS = 30
_POLL = 0.05
Body = dict[str, Any]


@dataclass(frozen=True)
class Decision:
    """A decision as it stands in the file at ``path``: the JSON of the plan, and under "decision" who made it, when and for what."""

    path: str
    body: Mapping[str, Any]

    @property
    def about(self) -> Mapping[str, Any]:
        return self.body.get("decision") or {}

    @property
    def step(self) -> int | None:
        return self.body.get("resume_step")

    @property
    def found(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.body.get("checkpoint") is not None

    def files(self, rank: int | None = None) -> list[Mapping[str, Any]]:
        """The file entries of one rank, or of all; files that every rank loads are among both."""
        mine = [f for r in self.body.get("ranks") or () if rank in (None, r["rank"]) for f in r["files"]]
        return [*(self.body.get("shared") or ()), *mine]

    def links(self, rank: int | None = None) -> list[str]:
        """Where the entries of ``files`` are to be opened: links in the view where there is one; what lies on other nodes has none."""
        view = self.body.get("view")
        if not view:
            return [f["path"] for f in self.files(rank)]
        numbers = [str(r["rank"]) for r in self.body.get("ranks") or () if rank in (None, r["rank"])]
        return [*view["shared"], *(link for number in numbers for link in view["ranks"].get(number, ()))]

    def path_of(self, rank: int | None) -> str | None:
        """What CKPT_PATH says: what the framework is given, else the one file that this rank loads, else of a view the checkpoint in it."""
        told: str | None = (self.body.get("resume") or {}).get("path")
        files = [] if told or rank is None or (self.body.get("shared") and not self.body.get("ranks")) else self.links(rank)
        return files[0] if len(files) == 1 else told or (self.body.get("view") or {}).get("checkpoint")

    def check(self, ranks: Iterable[int] | None = None) -> None:
        """Whether the planned files of ``ranks`` (None: all) are still what was verified: size and modification time, one stat each. Raises CannotLook."""
        files = {f["path"]: f for r in ((None,) if ranks is None else ranks) for f in self.files(r)}
        for f in files.values():
            try:
                st = os.stat(f["path"])
            except OSError as e:
                raise CannotLook(
                    f"{f['path']}, which was chosen, cannot be looked at any more: {e.strerror}", "start again: a new start decides anew"
                ) from e
            if (st.st_size, st.st_mtime_ns) != (f["size"], f["mtime_ns"]):
                raise CannotLook(f"{f['path']} has changed since it was chosen and verified", "start again: a new start decides anew")
        if self.body.get("view"):
            numbers = [r["rank"] for r in self.body.get("ranks") or ()] if ranks is None else list(ranks)
            for rank in numbers or [None]:
                self._check_links(rank)

    def _check_links(self, rank: int | None) -> None:
        """Whether the view is still the one that was built for this decision."""
        for link, f in zip(self.links(rank), self.files(rank), strict=False):  # a rank of another node has no links here
            try:
                said = os.readlink(link)
            except OSError as e:
                hint = "every node must see --view DIR, or build its own with --agree"
                raise CannotLook(f"{link} of the view that was built cannot be looked at: {e.strerror}", hint) from e
            if said != f["path"]:
                hint = "start again, and give each job a --view of its own"
                raise CannotLook(f"the view has been replaced by another start: {link} leads to {said}", hint)


def read(path: str) -> Decision:
    """The decision in a file. Raises CannotLook when there is none or it is not one."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as f:
            body = json.load(f)
    except OSError as e:
        raise CannotLook(
            f"the decision {path} cannot be read: {e.strerror}", "is --plan-dir on a file system that every process of the job sees?"
        ) from e
    except ValueError as e:
        raise CannotLook(f"{path} is no decision of ckpt: {e}", "remove it, and start again") from e
    if not isinstance(body, dict) or not isinstance(body.get("decision"), dict):
        raise CannotLook(f"{path} is no decision of ckpt", "CKPT_PLAN names the file that 'ckpt run' or 'ckpt hook' wrote")
    return Decision(path, body)


def failed(error: CkptError) -> Body:
    """The body of a decision that could not be made, so that nobody who waited for it has to fail on his own."""
    empty = json.loads(as_json.render(error.plan)) if error.plan else {"schema": "ckpt-tools/plan/v1", "checkpoint": None}
    return {**empty, "error": {"message": str(error), "hint": error.hint, "exit_code": error.exit_code}}


def body_of(plan: LoadPlan) -> Body:
    """The JSON of a plan as a value."""
    body: Body = json.loads(as_json.render(plan))
    return body


def state_dir(env: Mapping[str, str]) -> str:
    """Where decisions go unless --plan-dir says otherwise: it survives a reboot, so that a lost mount is not taken for a first launch."""
    home = env.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "ckpt-tools", "decisions")


def write(path: str, data: bytes) -> None:
    """Put a whole file at ``path`` or nothing: written aside, synced, renamed. Raises CannotLook."""
    aside = f"{path}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(aside, path)
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as e:
        with suppress(OSError):
            os.unlink(aside)
        raise CannotLook(f"the decision could not be written to {path}: {e.strerror}", "make room, or name another directory with --plan-dir") from e


class Decisions:
    """The decisions about one root, below ``plan_dir``: a directory for each key (job and generation), in it numbered attempts."""

    def __init__(self, plan_dir: str, root: str) -> None:
        import xxhash

        self.root, plan_dir = os.path.abspath(root), os.path.abspath(plan_dir)
        inside = os.path.realpath(plan_dir) + os.sep
        if inside.startswith(os.path.realpath(self.root).rstrip(os.sep) + os.sep):
            raise UsageError(f"--plan-dir {plan_dir} lies inside {self.root}, where ckpt never writes", "name a directory outside it")
        self.directory = os.path.join(plan_dir, f"{safe(os.path.basename(self.root))}-{xxhash.xxh3_64_hexdigest(os.fsencode(self.root))}")
        try:
            os.makedirs(self.directory, exist_ok=True)
        except OSError as e:
            raise CannotLook(f"{self.directory} cannot be made: {e.strerror}", "name a writable directory with --plan-dir") from e

    def place(self, key: str) -> str:
        """The directory of one key, made when it is not there."""
        path = os.path.join(self.directory, key)
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as e:
            raise CannotLook(f"{path} cannot be made: {e.strerror}", "make room, or name another directory with --plan-dir") from e
        return path

    def save(self, key: str, attempt: int, body: Body, about: Mapping[str, object]) -> Decision:
        """Write one decision. A later start is told by ``last`` that there was a checkpoint here."""
        path = os.path.join(self.place(key), f"{attempt}.json")
        by = Process.here()
        stamp = {"root": self.root, "decided_at": time.time(), "host": by.host, "pid": by.pid, "agent": by.parent, **about}
        whole = {**body, "decision": stamp}
        write(path, as_json.dump(whole).encode())
        if body.get("checkpoint"):
            note = {"step": body.get("resume_step"), "path": body["checkpoint"]["path"], "job": about.get("job"), "decided_at": stamp["decided_at"]}
            write(os.path.join(self.directory, "last.json"), as_json.dump(note).encode())
        return Decision(path, whole)

    def last(self) -> Mapping[str, Any] | None:
        """What the last decision that named a checkpoint of this root said; None when there was none."""
        try:
            with open(os.path.join(self.directory, "last.json"), encoding="utf-8") as f:
                note = json.load(f)
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) else None

    def once(self, key: str, member: str, *, unique: bool, timeout: float, make: Callable[[], Body], about: Mapping[str, object]) -> Decision:
        """The decision for ``key``: read when another member has made it, else made here, under a lock. Raises what deciding raised, in every member.

        Each ``member`` takes a decision once: who asks again is of a later generation. Unless ``unique``, the key alone does not tell launches apart, and a
        decision whose launcher is gone is not followed.
        """
        started, place = time.time(), self.place(key)
        with locked(os.path.join(place, "lock"), timeout):
            numbers = [int(m[1]) for name in os.listdir(place) if (m := re.fullmatch(r"(\d{1,9})\.json", name))]
            attempt = max(numbers, default=0)
            decision = self._usable(os.path.join(place, f"{attempt}.json"), member, unique, started) if attempt else None
            if decision is None:
                self._prune(keep=key)
                attempt += 1
                try:
                    body = make()
                except CkptError as e:
                    with suppress(CannotLook):  # the reason that counts is the first one
                        self.save(key, attempt, failed(e), about)
                    raise
                decision = self.save(key, attempt, body, about)
            self._claim(decision.path, member)
        error = decision.body.get("error")
        if error:
            raise BY_EXIT_CODE.get(error["exit_code"], CannotLook)(error["message"], error["hint"])
        return decision

    def _usable(self, path: str, member: str, unique: bool, started: float) -> Decision | None:
        try:
            decision = read(path)
        except CannotLook:
            return None  # a torn disk, an old version: decide anew
        about = decision.about
        if os.path.exists(_claims(path, member)):
            return None
        if decision.body.get("error") and about.get("decided_at", 0) < started:
            return None  # it failed those who waited for it; whoever comes later may have better luck
        here = Process.here()
        if not unique and about.get("host") == here.host and about.get("agent") != here.parent and not Process.alive(str(about.get("agent"))):
            return None
        return decision

    def _claim(self, path: str, member: str) -> None:
        taken = _claims(path, member)
        try:
            os.makedirs(os.path.dirname(taken), exist_ok=True)
            os.close(os.open(taken, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        except OSError as e:
            raise CannotLook(f"{taken} cannot be written: {e.strerror}", "make room, or name another directory with --plan-dir") from e

    def _prune(self, keep: str) -> None:
        """Forget decisions of long ago; with restarts by the thousand the directory would only grow."""
        oldest = time.time() - KEPT_DAYS * 86400
        with suppress(OSError):
            for entry in os.scandir(self.directory):
                if entry.is_dir(follow_symlinks=False) and entry.name != keep and entry.stat(follow_symlinks=False).st_mtime < oldest:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _claims(path: str, member: str) -> str:
    return os.path.join(f"{path.removesuffix('.json')}.taken", safe(member))


def safe(name: str) -> str:
    """A name as a single path component."""
    return re.sub(r"[^A-Za-z0-9_.=-]", "_", name)[:80].lstrip(".") or "_"


@contextmanager
def locked(path: str, timeout: float) -> Iterator[None]:
    """Hold an exclusive flock on ``path``; the kernel lets go of it when the holder dies. Raises CannotLook after ``timeout`` seconds."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise CannotLook(f"{path} cannot be opened: {e.strerror}", "name a writable directory with --plan-dir") from e
    try:
        end = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise CannotLook(
                        f"another process has been deciding for more than {timeout:g} s", "wait longer with --timeout, or read less with --budget"
                    ) from None
                time.sleep(_POLL)
            except OSError as e:
                raise CannotLook(f"{path} cannot be locked: {e.strerror}", "--plan-dir must be on a file system with flock") from e
        yield
    finally:
        os.close(fd)
