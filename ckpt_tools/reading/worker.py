"""What a worker does, wherever it runs. What it is told was pickled by who asks; plain data goes back."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import msgpack

from ckpt_tools.cache.codec import pack
from ckpt_tools.formats import Claim
from ckpt_tools.inspection.check import inspect
from ckpt_tools.inspection.digest_pass import DigestPass
from ckpt_tools.settings.plugins import tool_version
from ckpt_tools.storage import counted


def work(
    version: str, files: tuple[tuple[str, bytes], ...]
) -> tuple[str, str, str, tuple[tuple[Any, ...], ...]]:
    """Return the worker's version, its host's name, what went wrong with us or "", and for each file: why
    nobody could look at it or None, what came of it, and how many bytes were read.

    Never raises: not every exception survives the way back, and one that does not is waited for in vain.
    """
    host, ours = socket.gethostname(), tool_version()
    if version != ours:
        return ours, host, "", ()
    try:
        return ours, host, "", tuple(_answer(*file) for file in files)
    except Exception as e:
        return ours, host, f"{type(e).__name__}: {e}", ()


def _answer(kind: str, told: bytes) -> tuple[Any, ...]:
    with counted() as read:
        try:
            wrong, came = None, _WORK[kind](*pickle.loads(told))  # noqa: S301 - of who gave us the work
        except OSError as e:
            wrong, came = e.strerror or str(e), ()
    return wrong, came, read.bytes


def _inspect(path: str, how: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the report on a file, as the cache keeps it (None: it cannot be sent), and the ``Identity`` of
    the file. One thread does it: many files are read at once.
    """
    report, anatomy = inspect(path, **how, jobs=1)
    return pack(report, anatomy.places), anatomy.identity and tuple(anatomy.identity)


def _digest(
    path: str, expect: tuple[str, ...], claims: Sequence[Claim], name: str, how: DigestPass
) -> tuple[Any, ...]:
    """Return the report or None, whether it can be sent, the file as its seal has it or None, and its
    identity or None. Raises OSError.
    """
    seen = how.read(path, name, expect, claims)
    packed = None if seen.report is None else pack(seen.report, {})
    file = None if seen.file is None else msgpack.encode(seen.file)
    return packed, packed is not None or seen.report is None, file, seen.identity and tuple(seen.identity)


_WORK: dict[str, Callable[..., tuple[Any, ...]]] = {"whole": _inspect, "seal": _digest}
