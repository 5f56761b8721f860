"""What a worker does, wherever it runs: plain data in, plain data out."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from ckpt_tools.cache.codec import pack
from ckpt_tools.inspection.check import inspect
from ckpt_tools.inspection.digest_pass import DigestPass
from ckpt_tools.model.plain import decode, encode
from ckpt_tools.model.report import Level
from ckpt_tools.model.seal import values
from ckpt_tools.settings.plugins import tool_version
from ckpt_tools.storage import counted


def work(version: str, files: tuple[tuple[Any, ...], ...]) -> tuple[str, str, str, tuple[Any, ...]]:
    """Return the worker's version, its host's name, what went wrong with us or "", and for each file of a
    unit: why nobody could look at it or None, what came of it, and how many bytes were read.

    Never raises: not every exception survives the way back, and one that does not is waited for in vain.
    """
    host, ours = socket.gethostname(), tool_version()
    if version != ours:
        return ours, host, "", ()
    try:
        return ours, host, "", tuple(_answer(*file) for file in files)
    except Exception as e:
        return ours, host, f"{type(e).__name__}: {e}", ()


def _answer(kind: str, *rest: Any) -> tuple[str | None, tuple[Any, ...], int]:
    with counted() as read:
        try:
            wrong, came = None, _WORK[kind](*rest)
        except OSError as e:
            wrong, came = e.strerror or str(e), ()
    return wrong, came, read.bytes


def _inspect(
    path: str, level: int, expect: tuple[str, ...], how: tuple[Any, ...], claims: tuple[Any, ...]
) -> tuple[bytes | None, tuple[int, ...] | None]:
    """Return the report on a file, as the cache keeps it (None: it cannot be sent), and the ``Identity`` of
    the file. One thread does it: many files are read at once.
    """
    told, (io, key, require) = tuple(map(decode, claims)), how
    report, anatomy = inspect(
        path, Level(level), expect=expect, claims=told, jobs=1, require=require, key=key, io=io
    )
    return pack(report, anatomy.places), anatomy.identity and tuple(anatomy.identity)


def _digest(
    path: str, expect: tuple[str, ...], require: tuple[str, ...], claims: tuple[Any, ...], wanted: Any
) -> tuple[Any, ...]:
    """Return the report or None, whether it can be sent, the file as its seal has it or None, and its
    identity or None. Raises OSError.
    """
    name, algorithm, also, tensors = wanted
    reading = DigestPass(algorithm, also, tensors, jobs=1, require=require)
    seen = reading.read(path, name, expect, tuple(map(decode, claims)))
    packed = None if seen.report is None else pack(seen.report, {})
    file = None if seen.file is None else encode(values(seen.file))
    return packed, packed is not None or seen.report is None, file, seen.identity and tuple(seen.identity)


_WORK: dict[str, Callable[..., tuple[Any, ...]]] = {"whole": _inspect, "seal": _digest}
