"""The decisions about one root: who comes first makes one, under a lock; every other member of the job reads
it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from ckpt_tools.errors import BY_EXIT_CODE, CannotLook, CkptError
from ckpt_tools.job import starts
from ckpt_tools.job.decision import Body, Decision, failed, read
from ckpt_tools.job.files import locked, write, written
from ckpt_tools.job.process import Process
from ckpt_tools.output import json as as_json
from ckpt_tools.planning import decision_log
from ckpt_tools.planning.decision_log import FLAG, safe
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust, Untrusted
from ckpt_tools.storage.urls import absolute
from ckpt_tools.storage.writes import take_lock, write_all

if TYPE_CHECKING:
    from ckpt_tools.job.rendezvous import Rendezvous


_MOST = 8 << 20
"""Bytes of the history of starts: some 20,000. Then the older half is forgotten."""
_NUMBERED = re.compile(r"(\d{1,9})\.(json|taken)")


class Decisions:
    """The decisions about one root, below ``plan_dir``: a directory for each key (job and generation), in it
    numbered attempts.
    """

    def __init__(
        self, plan_dir: str, root: str, now: Callable[[], float] = time.time, trusted: Trust = OURS
    ) -> None:
        self.now, self.trusted = now, trusted
        self.root, self.directory = absolute(root), decision_log.place(plan_dir, root)
        self._make(self.directory, "name a writable directory with --plan-dir")

    def _make(self, path: str, hint: str) -> None:
        """Raises CannotLook, and Untrusted where it is there and others can write it."""
        try:
            trust.make(path, self.trusted)
            with trust.named(FLAG):
                trust.check(path, self.trusted)
        except OSError as e:
            raise CannotLook(f"{path} cannot be made: {e.strerror}", hint) from e

    def once(
        self,
        key: str,
        member: str,
        *,
        unique: bool,
        timeout: float,
        make: Callable[[], Body],
        about: Mapping[str, object],
        peers: Rendezvous | None = None,
    ) -> Decision:
        """The decision for ``key``: read when another member has made it, else made here, under a lock.
        Raises what deciding raised, in every member.

        Each ``member`` takes a decision once: who asks again is of a later generation. Unless ``unique``, the
        key alone does not tell launches apart, and a decision whose launcher is gone is not followed; nor is
        one that was made from something else than the digest ``saves`` in ``about`` tells.
        ``peers`` are other nodes, who start together with this one or not at all.
        """
        started = self.now()
        reporting = peers.reporting if peers else nullcontext
        with reporting():
            place = os.path.join(self.directory, key)
            self._make(place, "make room, or name another directory with --plan-dir")
        with locked(os.path.join(place, "lock"), timeout, trusted=self.trusted):
            with reporting():
                names = _names(place)
                numbers = [int(m[1]) for name in names if (m := _NUMBERED.fullmatch(name))]
                last = max((n for n in numbers if f"{n}.json" in names), default=0)
                newest = os.path.join(place, f"{last}.json")
                decision = self._usable(newest, member, unique, started) if last else None
            if decision is None:
                prune(self.directory, key, self.now(), self.trusted)
                path = os.path.join(place, f"{max(numbers, default=0) + 1}.json")
                decision = self._made(Decision(path, {}, self.trusted), member, make, about, peers)
            elif not decision.body.get("error") and decision.about.get("saves", "") != about.get("saves", ""):
                raise CannotLook(
                    f"the decision {newest} may be of an earlier start with the same job id: it was made from"
                    f" other checkpoints than are in {self.root} now, or for another number of ranks",
                    f"give each start its own --job; or end the whole job, then rm -r {shlex.quote(place)}",
                )
            else:
                self._claim(decision.path, member)
        error = decision.body.get("error")
        if error:
            raise BY_EXIT_CODE.get(error["exit_code"], CannotLook)(error["message"], error["hint"])
        return decision

    def _made(
        self,
        blank: Decision,
        member: str,
        make: Callable[[], Body],
        about: Mapping[str, object],
        peers: Rendezvous | None,
    ) -> Decision:
        try:
            decision = self._stamped(blank, make(), about)
            with self._written(decision):
                self._claim(decision.path, member)  # before the others are told that this node can start
                if peers:
                    peers.ready(decision)
            self._remember(decision)
        except CkptError as e:
            with (
                suppress(CkptError),
                self._written(self._stamped(blank, failed(e), about)),
            ):  # the reason that counts is the first one
                pass
            raise
        return decision

    def _remember(self, decision: Decision) -> None:
        """Add the decision to the history of starts, which is told and never asked: where it cannot be
        written, the job starts all the same.
        """
        with suppress(OSError, CkptError), trust.directory(self.directory, self.trusted) as at:
            fd = trust.create(starts.NAME, os.O_WRONLY | os.O_APPEND, at, self.trusted)
            try:
                os.write(fd, starts.line(decision.body, decision.about))
                os.fsync(fd)
                size = os.fstat(fd).st_size
            finally:
                os.close(fd)
            if size > _MOST:
                path = os.path.join(self.directory, starts.NAME)
                with open(path, "rb") as file:
                    file.seek(size - _MOST // 2)
                    kept = file.read().partition(b"\n")[2]
                write(path, b"\n" + kept, self.trusted)

    def _stamped(self, blank: Decision, body: Body, about: Mapping[str, object]) -> Decision:
        by = Process.here()
        stamp = {
            "root": self.root,
            "decided_at": self.now(),
            "host": by.host,
            "pid": by.pid,
            "process": by.identity,
            "agent": by.parent,
            **about,
        }
        return Decision(blank.path, {**body, "decision": stamp}, self.trusted)

    @contextmanager
    def _written(self, decision: Decision) -> Iterator[None]:
        """A decision that is on the disk within, and appears when that ends well. A later start learns from
        it that there was a checkpoint here (planning/decision_log.py).
        """
        with ExitStack() as files:
            files.enter_context(written(decision.path, as_json.dump(decision.body).encode(), self.trusted))
            if decision.found:
                files.enter_context(
                    written(
                        os.path.join(self.directory, decision_log.LAST),
                        as_json.dump(_note(decision)).encode(),
                        self.trusted,
                    )
                )
            yield

    def _usable(self, path: str, member: str, unique: bool, started: float) -> Decision | None:
        """The newest decision where this member may follow it; None where it has to be made anew. Raises
        CannotLook when that cannot be known.
        """
        takers = _names(f"{path.removesuffix('.json')}.taken")
        if safe(member) in takers:
            return None
        try:
            decision = read(path, self.trusted, FLAG)
        except CannotLook as e:
            if (
                isinstance(e.__cause__, OSError) or takers
            ):  # others may follow it: a new one would mix with it
                who = f", and {', '.join(sorted(takers)[:4])} may have started by it" if takers else ""
                hint = (
                    "make it readable; or end all processes of that start, then rm -r"
                    f" {shlex.quote(os.path.dirname(path))}"
                )
                raise CannotLook(f"{e}{who}", hint) from e
            return None  # cut off by a full disk or a power failure, and nobody has started by it
        about = decision.about
        if decision.body.get("error") and about.get("decided_at", 0) < started:
            return None  # it failed those who waited for it; whoever comes later may have better luck
        here = Process.here()
        if (
            not unique
            and about.get("host") == here.host
            and about.get("agent") != here.parent
            and not Process.alive(str(about.get("agent")))
        ):
            return None
        return decision

    def _claim(self, path: str, member: str) -> None:
        taken = os.path.join(f"{path.removesuffix('.json')}.taken", safe(member))
        try:
            by = Process.here()  # so that it stays as long as somebody follows it
            said = {"host": by.host, "process": by.identity, "agent": by.parent}
            trust.make(os.path.dirname(taken), self.trusted)
            with trust.named(FLAG), trust.directory(os.path.dirname(taken), self.trusted) as at:
                fd = trust.create(os.path.basename(taken), os.O_WRONLY | os.O_TRUNC, at, self.trusted)
                try:  # it may be lost with the machine, and so is who took it
                    write_all(fd, json.dumps(said).encode())
                finally:
                    os.close(fd)
        except OSError as e:
            raise CannotLook(
                f"{taken} cannot be written: {e.strerror}",
                "make room, or name another directory with --plan-dir",
            ) from e


def _note(decision: Decision) -> Mapping[str, object]:
    """What a later start is told of this one (planning/decision_log.py)."""
    body, about = decision.body, decision.about
    chosen = body["checkpoint"]
    return {
        "step": decision.step,
        "path": chosen["path"],
        "job": about.get("job"),
        "decided_at": about["decided_at"],
    }


def _names(directory: str) -> list[str]:
    """The names in a directory; none where it does not exist. Raises CannotLook."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as e:
        raise CannotLook(
            f"{directory} cannot be listed: {e.strerror}",
            "make it readable, or name another directory with --plan-dir",
        ) from e


KEPT_DAYS = 30
_LOOKED_AT = 32
"""Old decisions that one start looks at, at most."""
_DECISION = re.compile(r"\d{1,9}\.json")
_GONE = ".gone."
"""How the name of a directory that is being removed begins: no key does."""


def prune(directory: str, keep: str, now: float, trusted: Trust = OURS) -> None:
    """Remove old decisions below ``directory``, but for the key ``keep``. What cannot be read stays."""
    oldest = now - KEPT_DAYS * 86400
    with suppress(OSError):
        entries = [e for e in os.scandir(directory) if e.is_dir(follow_symlinks=False) and e.name != keep]
        for entry in entries:
            if entry.name.startswith(_GONE):
                shutil.rmtree(entry.path, ignore_errors=True)
        old = [e.path for e in entries if not e.name.startswith(_GONE) and _last_change(e.path) < oldest]
        for path in secrets.SystemRandom().sample(old, min(len(old), _LOOKED_AT)):  # else some hide others
            if not _is_followed(path, trusted):
                _remove(path, trusted)


def _last_change(key: str) -> float:
    """When a decision under this key was made or taken the last time. Raises OSError."""
    with os.scandir(key) as entries:
        return max([os.stat(key).st_mtime, *(e.stat(follow_symlinks=False).st_mtime for e in entries)])


def _is_followed(key: str, trusted: Trust) -> bool:
    """Return whether a process may follow a decision under this key: it made or took one and runs, or is of
    a machine that nothing is known of. A decision that failed has started nothing.
    """
    here = Process.here().host
    try:
        for name in os.listdir(key):
            path, notes = os.path.join(key, name), []
            if _DECISION.fullmatch(name):
                body = _json(path, trusted)
                notes = [] if body.get("error") else [body.get("decision")]
            elif name.endswith(".taken"):
                notes = [_json(os.path.join(path, member), trusted) for member in os.listdir(path)]
            for note in notes:
                if isinstance(note, dict) and note:
                    processes = [str(note[by]) for by in ("process", "agent") if note.get(by)]
                    if note.get("host") != here or any(map(Process.alive, processes)):
                        return True
    except OSError:
        return True
    return False


def _json(path: str, trusted: Trust) -> dict[str, Any]:
    """What a file says; nothing where it is garbage, such as an empty claim of an earlier version. Raises
    OSError.
    """
    try:
        data = trust.read(path, checked_json.MOST, trusted)
    except Untrusted as e:  # it is not ours to judge, and so not ours to remove
        raise PermissionError(errno.EPERM, str(e), path) from e
    try:
        value = checked_json.parsed(data)
    except checked_json.NoJson:
        return {}
    return value if isinstance(value, dict) else {}


def _remove(key: str, trusted: Trust) -> None:
    """Remove a key whole: moved aside first, and only where nobody is deciding under it."""
    try:
        fd = take_lock(os.path.join(key, "lock"), trusted)
    except Untrusted:
        return
    if fd is None:
        return
    try:
        aside = os.path.join(os.path.dirname(key), f"{_GONE}{secrets.token_hex(4)}")
        os.rename(key, aside)
    finally:
        os.close(fd)
    shutil.rmtree(aside, ignore_errors=True)
