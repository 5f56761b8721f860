"""The directory below which checkpoints are staged: who brings files to one, who uses one, and which go."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from pathlib import PurePath
from typing import NamedTuple

from msgspec import Struct

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.staging.records import ASIDE, NOTE, finished, unfinished
from ckpt_tools.job.waiting import Backoff
from ckpt_tools.output.words import size as words_of_size
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import take_lock

OWN = ".ckpt-stage"
"""The directory of locks, and of what is on its way out."""
PART = ".part"
"""The end of the name of a checkpoint that is not whole yet."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+-[0-9a-f]{16}")
_GONE = "gone."
_FOREVER = float(1 << 40)


def _not_ours(path: str) -> UsageError:
    return UsageError(
        f"{path} was not put there by ckpt: the staged checkpoint is not used",
        "move it, and let the job save elsewhere",
    )


class _Earlier(NamedTuple):
    """Another staged checkpoint, and when it was used last (ns)."""

    used_ns: int
    name: str


class Place(Struct, frozen=True):
    """The directory ``home``, and in it the checkpoint ``name``."""

    home: str
    name: str
    trusted: Trust = OURS

    @property
    def whole(self) -> str:
        """Where the checkpoint lies once it is whole."""
        return os.path.join(self.home, self.name)

    @property
    def part(self) -> str:
        """Where its files lie until then."""
        return self.whole + PART

    def lock(self, what: str, how: int = fcntl.LOCK_EX) -> int:
        """Return a lock, open and taken, once it is free: ``use`` is shared by those who use the checkpoint,
        ``work`` held by the one who brings its files. Raises OSError.
        """
        fd = take_lock(self._lock_at(self.name, what), self.trusted, how, Backoff(_FOREVER).pause)
        assert fd is not None  # noqa: S101 - for the type checker: who waits for ever gets it
        return fd

    def _lock_at(self, name: str, what: str) -> str:
        return os.path.join(self.home, OWN, f"{name}.{what}")

    def prepare(self) -> None:
        """Make the directory where it is not there. Raises OSError, and Untrusted where others can write
        it.
        """
        with trust.named("--stage"):
            trust.make(os.path.join(self.home, OWN), self.trusted)
            for path in (self.home, os.path.join(self.home, OWN)):
                trust.check(path, self.trusted)
            for path in (self.whole, self.part):
                with suppress(FileNotFoundError):
                    trust.check(path, self.trusted)
        for name in os.listdir(os.path.join(self.home, OWN)):
            if name.startswith(_GONE):
                shutil.rmtree(os.path.join(self.home, OWN, name), ignore_errors=True)

    def require_ours(self, known: Collection[str], *names: str) -> None:
        """Raises UsageError where the staged checkpoint, or what of it is not whole yet, has files, links or
        directories that ckpt did not bring: a framework might load them, and nobody else has them; Untrusted
        where others can write in it. Raises OSError.
        """
        homes = {ASIDE, *(str(home) for file in known for home in PurePath(file).parents)}
        for name in names or (self.name, self.name + PART):
            directory = os.path.join(self.home, name)
            if os.path.islink(directory):
                raise _not_ours(directory)
            for above, below, files in os.walk(directory):
                at = os.path.relpath(above, directory)
                for file in files if at != ASIDE else ():  # there they have names of their own
                    if not file.startswith((".nfs", NOTE)) and os.path.normpath(f"{at}/{file}") not in known:
                        raise _not_ours(os.path.join(above, file))
                for home in below:
                    path = os.path.join(above, home)
                    if os.path.normpath(f"{at}/{home}") not in homes or os.path.islink(path):
                        raise _not_ours(path)
                    with trust.named("--stage"):
                        trust.check(path, self.trusted)

    # ---- room

    def make_room(self, needed: int, keep: int | None) -> list[str]:
        """Look whether so many bytes fit; where they do not and ``keep`` allows it, remove what was used
        least recently. Returns what was removed. Raises CannotLook, and OSError.
        """
        removed: list[str] = []
        while needed > (free := self._free()):
            name = next(self._removable(keep), None) if keep is not None else None
            if name is None:
                more = "" if keep else "; --keep N removes those that were used least recently"
                raise CannotLook(
                    f"{words_of_size(needed)} are to be staged, and {self.home} has {words_of_size(free)}"
                    f" free: {words_of_size(needed - free)} too little",
                    f"make room, or name another directory{more}",
                )
            removed.append(name)
        return removed

    def _free(self) -> int:
        found = os.statvfs(self.home)
        return found.f_bavail * found.f_frsize

    def prune(self, keep: int) -> list[str]:
        """Remove what was used least recently, but for ``keep`` checkpoints with this one, and those in use.
        Returns their names. Raises OSError.
        """
        return list(self._removable(keep))

    def _removable(self, keep: int | None) -> Iterator[str]:
        """Remove the least recently used one, and say which, as often as somebody asks."""
        others = sorted(self._others())
        for _, name in others[: max(0, len(others) - max(0, (keep or 1) - 1))]:
            with suppress(OSError):  # what cannot be removed stays, and stops no job
                if self._remove(name):
                    yield name

    def _others(self) -> Iterator[_Earlier]:
        names = {e.name.removesuffix(PART) for e in os.scandir(self.home) if e.is_dir(follow_symlinks=False)}
        for name in names - {self.name}:
            if _NAME.fullmatch(name):
                with suppress(FileNotFoundError):  # nobody else than us makes such a lock
                    yield _Earlier(os.stat(self._lock_at(name, "use")).st_mtime_ns, name)

    def _remove(self, name: str) -> bool:
        """Remove a checkpoint that nobody uses or brings, and that holds nothing but what was brought."""
        with ExitStack() as held:
            for what in ("use", "work"):
                if (fd := take_lock(self._lock_at(name, what), self.trusted)) is None:
                    return False
                held.callback(os.close, fd)
            whole, part = (os.path.join(self.home, name + end) for end in ("", PART))
            try:
                known = {*finished(whole, self.trusted), *unfinished(part, self.trusted)}
                self.require_ours(known, name, name + PART)
            except UsageError:
                return False
            gone = [self._aside(path) for path in (whole, part) if os.path.isdir(path)]
            for what in ("use", "work"):
                os.unlink(self._lock_at(name, what))
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)
        return True

    def _aside(self, path: str) -> str:
        """Rename it in one step, so that nobody meets a half of it."""
        aside = os.path.join(self.home, OWN, f"{_GONE}{secrets.token_hex(8)}")
        os.rename(path, aside)
        return aside
