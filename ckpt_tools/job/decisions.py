"""The decisions about one root: the first member of a job makes one, under a lock; all others read it."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from ckpt_tools.errors import CannotLook, CkptError, explain_refusal
from ckpt_tools.job import starts
from ckpt_tools.job.decision import Body, Decision, describe_failure, read
from ckpt_tools.job.files import hold_lock, make_own, write, write_first
from ckpt_tools.job.membership import Membership, Process
from ckpt_tools.output import json as as_json
from ckpt_tools.planning import first_launch
from ckpt_tools.planning.first_launch import FLAG, safe
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust, Untrusted
from ckpt_tools.storage.urls import absolute
from ckpt_tools.storage.writes import take_lock

if TYPE_CHECKING:
    from ckpt_tools.job.decider import Decider


_ROOM = "make room, or name another directory with --plan-dir"
KEPT_DAYS = 90
"""Days after which a decision that no member takes any more is removed."""
_GONE = ".gone."  # the beginning of the name of a directory that is being removed; no key begins so
_MOST = 8 << 20  # bytes of the history of starts, some 20,000 starts; a longer history loses its older half
_NUMBERED = re.compile(r"(\d{1,9})\.(json|taken)")


class Decisions:
    """The decisions about one root: numbered, in a directory for each key (job and generation)."""

    def __init__(self, plan_dir: str, root: str, trusted: Trust = OURS) -> None:
        self.trusted = trusted
        self.root, self.directory = absolute(root), first_launch.place(plan_dir, root)
        make_own(self.directory, trusted, "name a writable directory with --plan-dir")

    def once(self, asker: Decider) -> Decision:
        """Return the decision for the key of ``asker``: read if another member has made it, else made here,
        under a lock. Raise in every member the error of making it.

        Each member takes a decision once: a member that asks again is of a later generation. A key that is
        not unique does not tell launches apart: then a decision whose launcher is gone is not followed.
        CannotLook is raised for one of another digest of saves: its key may be that of an earlier start.
        """
        started, member = time.time(), asker.membership.member
        with asker.reporting():
            place = os.path.join(self.directory, asker.key)
            make_own(place, self.trusted, _ROOM)
        with hold_lock(os.path.join(place, "lock"), asker.options.timeout, self.trusted):
            with asker.reporting():
                names = _list_names(place)
                numbers = [int(m[1]) for name in names if (m := _NUMBERED.fullmatch(name))]
                last = max((n for n in numbers if f"{n}.json" in names), default=0)
                newest = os.path.join(place, f"{last}.json")
                decision = self._find_usable(newest, asker.membership, started) if last else None
            if decision is None:
                self._prune(asker.key)
                path = os.path.join(place, f"{max(numbers, default=0) + 1}.json")
                decision = self._make(path, asker)
            elif not decision.document.error and decision.about.saves != asker.saves:
                raise CannotLook(
                    f"the decision {newest} may be of an earlier start with this job id: its ranks or"
                    f" checkpoints are not those of {self.root} now",
                    f"give each start its own --job; or end the whole job, then rm -r {shlex.quote(place)}",
                )
            else:
                self._claim(decision.path, member)
        if error := decision.document.error:
            raise error.as_error()
        return decision

    def _make(self, path: str, asker: Decider) -> Decision:
        """Make the decision, or write the error of making it for the members that wait."""

        def add_origin(body: Body) -> Decision:
            stamp = {"root": self.root, "decided_at": time.time(), **asdict(Process.here()), **asker.about}
            return Decision(path, {**body, "decision": stamp}, self.trusted)

        try:
            decision = add_origin(asker.make(self))
            with self._publish(decision):
                self._claim(path, asker.membership.member)  # before other nodes hear that this one can start
                asker.wait(decision)
            self._log_start(decision)
        except CkptError as e:
            with suppress(CkptError), self._publish(add_origin(describe_failure(e))):
                pass  # raise the first error, not one of writing it
            raise
        return decision

    @contextmanager
    def _publish(self, decision: Decision) -> Iterator[None]:
        """Write a decision to the disk; it appears at its path when the block ends well. A later start learns
        from it that there was a checkpoint here (planning/first_launch.py).
        """
        files = {decision.path: decision.body}
        if chosen := decision.document.checkpoint:
            files[os.path.join(self.directory, first_launch.LAST)] = {
                "step": decision.step,
                "path": chosen.path,
                "job": decision.about.job,
                "decided_at": decision.about.decided_at,
            }
        with ExitStack() as opened:
            for path, body in files.items():
                opened.enter_context(write_first(path, as_json.dump(body).encode(), self.trusted))
            yield

    def _log_start(self, decision: Decision) -> None:
        """Add the decision to the history of starts; without it the job starts all the same."""
        with suppress(OSError, CkptError), trust.directory(self.directory, self.trusted) as at:
            fd = trust.create(starts.NAME, os.O_WRONLY | os.O_APPEND, at, self.trusted)
            with open(fd, "ab", buffering=0) as file:
                file.write(starts.line(decision))
                os.fsync(fd)
                size = os.fstat(fd).st_size
            if size > _MOST:
                path = os.path.join(self.directory, starts.NAME)
                with open(path, "rb") as file:
                    file.seek(size - _MOST // 2)
                    newer = file.read().partition(b"\n")[2]
                write(path, b"\n" + newer, self.trusted)

    def _find_usable(self, path: str, of: Membership, started: float) -> Decision | None:
        """Return the newest decision, None if this member needs another. Raise CannotLook if unknown."""
        takers = _list_names(f"{path.removesuffix('.json')}.taken")
        if safe(of.member) in takers:
            return None
        try:
            decision = read(path, self.trusted, FLAG)
        except CannotLook as e:
            if isinstance(e.__cause__, OSError) or takers:  # two decisions could be followed at once
                who = f", and {', '.join(sorted(takers)[:4])} may have started by it" if takers else ""
                hint = (
                    "make it readable; or end all processes of that start, then rm -r"
                    f" {shlex.quote(os.path.dirname(path))}"
                )
                raise CannotLook(f"{e}{who}", hint) from e
            return None  # cut off by a full disk or a power failure, and no member has taken it
        about, here = decision.about, Process.here()
        if decision.document.error and about.decided_at < started:
            return None  # a failure counts for the members that waited for it; later ones try again
        ended = about.host == here.host and about.agent != here.agent and not Process.alive(about.agent)
        return decision if (of.unique and of.key) or not ended else None

    def _claim(self, path: str, member: str) -> None:
        taken = os.path.join(f"{path.removesuffix('.json')}.taken", safe(member))
        with explain_refusal(f"{taken} cannot be written", _ROOM), trust.named(FLAG):
            trust.make(os.path.dirname(taken), self.trusted)
            with trust.directory(os.path.dirname(taken), self.trusted) as at:
                os.close(trust.create(os.path.basename(taken), os.O_WRONLY, at, self.trusted))

    def _prune(self, keep: str) -> None:
        """Remove the directories of keys older than ``KEPT_DAYS``, except ``keep``: each is moved aside
        first, none while a process decides in it. Errors are ignored.
        """
        oldest = time.time() - KEPT_DAYS * 86400
        with suppress(OSError):
            entries = [e for e in os.scandir(self.directory) if e.is_dir(follow_symlinks=False)]
            for entry in entries:
                with suppress(OSError, Untrusted):
                    path = entry.path
                    if entry.name == keep:
                        continue
                    if not entry.name.startswith(_GONE):
                        inside = [e.stat(follow_symlinks=False) for e in os.scandir(path)]
                        if max(st.st_mtime for st in (os.stat(path), *inside)) >= oldest:
                            continue
                        if (fd := take_lock(os.path.join(path, "lock"), self.trusted)) is None:
                            continue
                        try:
                            path = os.path.join(self.directory, f"{_GONE}{secrets.token_hex(4)}")
                            os.rename(entry.path, path)
                        finally:
                            os.close(fd)
                    shutil.rmtree(path, ignore_errors=True)


def _list_names(directory: str) -> list[str]:
    hint = "make it readable, or name another directory with --plan-dir"
    with explain_refusal(f"{directory} cannot be listed", hint), suppress(FileNotFoundError):
        return os.listdir(directory)
    return []
