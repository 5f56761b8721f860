"""What a worker does, wherever it runs: plain data in, plain data out."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from ckpt_tools.cache.codec import pack
from ckpt_tools.checksum.remote import Item, read_items
from ckpt_tools.formats.common.zero_pages import MOST, watching
from ckpt_tools.inspection.check import inspect
from ckpt_tools.inspection.digest_pass import DigestPass
from ckpt_tools.model.plain import decode, encode
from ckpt_tools.model.report import Level
from ckpt_tools.model.seal import values
from ckpt_tools.settings.plugins import tool_version
from ckpt_tools.storage import counted, opened


def work(version: str, files: tuple[tuple[Any, ...], ...]) -> tuple[str, str, str, tuple[Any, ...]]:
    """Return the worker's version, its host's name, what went wrong with us or "", and an answer for each
    file of a unit.

    Never raises: not every exception survives the way back, and one that does not is waited for in vain.
    """
    host, ours = socket.gethostname(), tool_version()
    if version != ours:
        return ours, host, "", ()
    try:
        return ours, host, "", tuple(_WORK[kind](*rest) for kind, *rest in files)
    except Exception as e:
        return ours, host, f"{type(e).__name__}: {e}", ()


def _inspect(  # noqa: PLR0917 - what an inspection is told
    path: str,
    level: int,
    expect: tuple[str, ...],
    io: str,
    key: bytes | None,
    require: tuple[str, ...],
    claims: tuple[Any, ...],
) -> tuple[bytes | None, tuple[int, ...] | None, int]:
    """Return the report on a file, as the cache keeps it (None: it cannot be sent), the ``Identity`` of the
    file and how many bytes were read. One thread does it: many files are read at once.
    """
    told = tuple(map(decode, claims))
    with counted() as read:
        report, anatomy = inspect(
            path, Level(level), expect=expect, claims=told, jobs=1, require=require, key=key, io=io
        )
    identity = None if anatomy.identity is None else tuple(anatomy.identity)
    return pack(report, anatomy.places), identity, read.bytes


def _digest(
    path: str, expect: tuple[str, ...], require: tuple[str, ...], claims: tuple[Any, ...], wanted: Any
) -> tuple[Any, ...]:
    """Return the report or None, whether it can be sent, the file as its seal has it or None, its identity or
    None, the error or None, and how many bytes were read.
    """
    name, algorithm, also, tensors = wanted
    reading = DigestPass(algorithm, also, tensors, jobs=1, io="pread", require=require)
    with counted() as read:
        try:
            seen = reading.read(path, name, expect, tuple(map(decode, claims)))
        except OSError as e:
            return None, True, None, None, (e.errno or 0, e.strerror or str(e)), read.bytes
    packed = None if seen.report is None else pack(seen.report, {})
    file = None if seen.file is None else encode(values(seen.file))
    identity = None if seen.identity is None else tuple(seen.identity)
    return packed, packed is not None or seen.report is None, file, identity, None, read.bytes


def _read_ranges(path: str, items: tuple[Item, ...], size: int, *times: int) -> tuple[Any, ...]:
    """Return what is wrong with the file or None, results, runs of zero pages, and how many bytes were read.
    The times are those of its last write and, where it must be the same as well, of its last change.
    """
    empty: list[tuple[int, int]] = []
    try:
        source = opened(path)
    except OSError as e:
        return ("os", e.errno or 0, e.strerror or str(e)), (), (), 0
    with source:
        stat = source.stat
        if (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)[: 1 + len(times)] != (size, *times):
            return ("other",), (), (), 0
        results = tuple(read_items(source, items, watching(empty)))
        try:
            wrong: tuple[Any, ...] | None = ("changed",) if source.changed() else None
        except OSError as e:  # nobody can tell
            wrong = ("os", e.errno or 0, e.strerror or str(e))
        return wrong, results, tuple(empty[:MOST]), source.bytes_read


_WORK: dict[str, Callable[..., tuple[Any, ...]]] = {"whole": _inspect, "seal": _digest, "read": _read_ranges}
