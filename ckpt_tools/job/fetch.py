"""A file of another node, brought by the user's own command: into a directory of this start alone, and from
there to its place.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ckpt_tools.model.part import Part
from ckpt_tools.storage import trust

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotBrought(Exception):
    """Why a file is not there."""


def bring(
    command: Sequence[str], host: str, part: Part, to: str, below: str, *, timeout: float
) -> os.stat_result:
    """Bring a part to ``below``, a relative name in the directory ``to``, and say what it is there. Raises
    NotBrought.

    No link leads the file elsewhere: the command writes where nobody else can have put one, and each
    directory on the way is opened from the one before.
    """
    try:
        with _opened(to, "") as top, _aside(top, to) as (aside, fd):
            name = os.path.basename(below)
            _run([*command, host, part.path, os.path.join(aside, name)], timeout)
            _dated(name, fd, part)
            with _opened(to, os.path.dirname(below)) as home:
                os.replace(name, name, src_dir_fd=fd, dst_dir_fd=home)
                return os.stat(name, dir_fd=home, follow_symlinks=False)
    except OSError as e:
        raise NotBrought(f"{e.strerror}: {e.filename or below}") from e


def _run(words: Sequence[str], timeout: float) -> None:
    try:
        done = subprocess.run(words, stdout=sys.stderr, timeout=timeout, check=False)  # noqa: S603 - the user's own command
    except subprocess.TimeoutExpired:
        raise NotBrought(f"{words[0]} took longer than {timeout:g} s") from None
    if done.returncode:
        ended = (
            f"ended with {done.returncode}"
            if done.returncode > 0
            else f"was killed by signal {-done.returncode}"
        )
        raise NotBrought(f"{words[0]} {ended}")


def _dated(name: str, directory: int, part: Part) -> None:
    """Give what was brought the time of its save: one of today would tell of a second attempt to save this
    step.
    """
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotBrought("what it has made is no regular file")
        os.utime(fd, ns=(part.mtime_ns, part.mtime_ns))
    finally:
        os.close(fd)


@contextmanager
def _aside(top: int, path: str) -> Iterator[tuple[str, int]]:
    """A new directory that only this user can enter: (path, descriptor)."""
    name = f".bring-{secrets.token_hex(8)}"
    os.mkdir(name, 0o700, dir_fd=top)
    fd = os.open(name, _DIRECTORY, dir_fd=top)
    try:
        yield os.path.join(path, name), fd
    finally:
        os.close(fd)
        shutil.rmtree(os.path.join(path, name), ignore_errors=True)


@contextmanager
def _opened(top: str, below: str) -> Iterator[int]:
    """A directory, made where it is not there; below ``top`` no link is followed."""
    trust.make(top)
    fd = os.open(top, _DIRECTORY)
    try:
        for name in filter(None, below.split("/")):
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=fd)
            inner = os.open(name, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)
