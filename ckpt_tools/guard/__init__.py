"""``ckpt_tools.seal``: verifies checkpoints and writes seals, at once or in the background."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, overload

from ckpt_tools.errors import UsageError
from ckpt_tools.storage.paths import Path, Paths, one, to_paths
from ckpt_tools.storage.retry import exists
from ckpt_tools.storage.stalls import Threads
from ckpt_tools.storage.urls import to_absolute

if TYPE_CHECKING:
    from ckpt_tools.model.seal import Sealing

ALGORITHMS = ("xxh3", "sha256", "blake3")
OTHERS = ("md5", "sha1", "sha256", "sha512", "blake3", "crc64nvme")
LONGEST = 300.0
"""Seconds that the end of the process, or the next save, waits for seals that are being written."""
_FAULTLESS_STATES = frozenset({"sealed", "would-seal", "already", "merged"})
log = logging.getLogger("ckpt_tools")


@overload
def seal(paths: Paths, *, background: Literal[True], **options: Any) -> Pending: ...


@overload
def seal(paths: Paths, *, background: Literal[False] = False, **options: Any) -> Sealing: ...


def seal(
    paths: Paths,
    *,
    background: bool = False,
    digest: str = "xxh3",
    also: Sequence[str] = (),
    tensors: bool = False,
    sign_key: str | None = None,
    again: bool = False,
    merge: bool = False,
    dry_run: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    files: Sequence[Path] = (),
    **read: Any,
) -> Sealing | Pending:
    """Verify every checkpoint at or below ``paths``, and write a seal into each one that is sound.

    ``digest`` is the digest of whole files (xxh3, sha256, blake3), ``also`` are further ones (md5, sha1,
    sha512, crc64nvme); with ``tensors`` each tensor gets one as well. If there are seals already, the files
    are compared with them first, and seals that fit are kept; ``again`` replaces them without comparing. With
    ``sign_key``, the file of a private key, sealed checkpoints are signed too, as model_signing does. With
    ``merge`` the fragments of all ranks become one seal.

    With ``rank`` and ``world_size`` only the files of that rank are sealed: ``files``, relative to the
    checkpoint's directory, or those that its layout names. ``dry_run`` writes nothing. ``read`` are
    fields of ``ReadOptions``.

    With ``background`` the call returns at once, for use in training: errors are logged as warnings of the
    logger "ckpt_tools" and never raised, checkpoints are sealed one after the other, and a process that ends
    waits for the seal that is being written, 5 minutes at most.

    Raises UsageError for digests that are not known or need a package that is not installed, and CannotLook
    when a path cannot be listed or a seal cannot be written.
    """
    from ckpt_tools.guard.sealing import SealOptions, seal_below
    from ckpt_tools.model.seal import Fragment
    from ckpt_tools.model.selection import ReadOptions

    roots = [to_absolute(p) for p in to_paths(paths)]

    def work() -> Sealing:
        if (rank is None) != (world_size is None):
            raise UsageError("rank and world_size belong together", "give both, or neither")
        given = [("digest", digest, ALGORITHMS), *(("also", name, OTHERS) for name in also)]
        for option, name, names in given:
            if name not in names:
                raise UsageError(f"{option}: {name!r} is not a digest", f"use one of {', '.join(names)}")
        if sign_key is not None and (rank is not None or merge or read.get("seal_dir") is not None):
            why = "a signature is of a whole checkpoint and lies beside it"
            raise UsageError(why, "leave out --sign-key, or --merge and CKPT_SEAL_DIR")
        options = SealOptions(
            read=ReadOptions(**read),
            algorithm=digest,
            also=tuple(also) if sign_key is None else tuple(sorted({*also, "sha256"} - {digest})),
            tensors=tensors,
            again=again,
            compare=not background,  # each save that is sealed in training would read all others again
            merge=merge,
            dry_run=dry_run,
            fragment=None if rank is None or world_size is None else Fragment(rank, world_size),
            files=tuple(one(f, "file") for f in files),
            sign_key=sign_key,
        )
        return seal_below(roots, options)

    return _seal_later(work, roots) if background else work()


# ---- in the background


class Pending:
    """A sealing that goes on in the background."""

    def __init__(self, future: Future[Sealing | None]) -> None:
        self._future = future

    def wait(self, timeout: float | None = None) -> Sealing | None:
        """Return the result; None if it failed, or is not there after ``timeout`` seconds."""
        try:
            return self._future.result(timeout)
        except NotDone:
            return None


def _seal_later(work: Callable[[], Sealing], roots: Sequence[str]) -> Pending:
    """Call ``work``, which seals ``roots``, after all earlier calls. A failure is logged, not raised."""

    def seal() -> Sealing | None:
        try:
            sealing = work()
        except Exception as e:
            where = ", ".join(roots)
            if any(map(_may_exist, roots)):
                log.warning("%s: not sealed: %s", where, e, exc_info=log.isEnabledFor(logging.DEBUG))
            else:
                log.info("%s: not sealed: it is gone", where)
            return None
        for c in sealing.checkpoints:
            if c.state not in _FAULTLESS_STATES and _may_exist(c.path):
                reason = c.findings[0].message if c.findings else "nothing more is known"
                log.warning("%s: not sealed, it is %s: %s", c.path, c.state, reason)
        return sealing

    return Pending(_get_worker().submit(seal))


def _may_exist(path: str) -> bool:
    """Return False if nothing lies at ``path``, True if something does or the file system cannot say."""
    try:
        return exists(path)
    except OSError:
        return True


def finish(timeout: float | None = None) -> bool:
    """Wait for all sealings under way in this process; return False if ``timeout`` seconds are too few."""
    if not _get_worker.cache_info().currsize:
        return True
    try:
        _get_worker().submit(lambda: None).result(timeout)
    except NotDone:
        return False
    return True


@cache
def _get_worker() -> Threads:
    """Return the pool of one daemon thread that seals: whatever it hangs in, the process can end."""
    return Threads(1)


@atexit.register
def _finish_at_exit() -> None:
    if not finish(LONGEST):
        log.warning("the process ends with sealings under way: what they are of stays as it was")


os.register_at_fork(after_in_child=_get_worker.cache_clear)  # a fork has no threads
