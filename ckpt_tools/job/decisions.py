"""The decisions about one root: who comes first makes one, under a lock; every other member of the job reads it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ckpt_tools.emit import json as as_json
from ckpt_tools.errors import BY_EXIT_CODE, CannotLook, CkptError, UsageError
from ckpt_tools.job.decision import Body, Decision, failed, read
from ckpt_tools.job.files import locked, safe, write
from ckpt_tools.job.process import Process

KEPT_DAYS = 30


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
