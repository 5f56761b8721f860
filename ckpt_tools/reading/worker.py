"""What a worker of an engine does: plain data in, plain data out."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from ckpt_tools.cache.codec import pack
from ckpt_tools.checksum.remote import Item, read_items
from ckpt_tools.formats.common.zero_pages import MOST, watching
from ckpt_tools.inspection.digest_pass import DigestPass
from ckpt_tools.model.plain import decode, encode
from ckpt_tools.model.report import Level
from ckpt_tools.model.seal import values
from ckpt_tools.reading.request import Request, inspect_file
from ckpt_tools.settings.plugins import tool_version
from ckpt_tools.storage import counted, opened


def work(version: str, files: tuple[tuple[Any, ...], ...]) -> tuple[str, str, str, tuple[Any, ...]]:
    """What a worker does with a unit: (its version, its host's name, what went wrong with us or "", an answer
    for each file).

    Never raises: not every exception survives the way back, and one that does not is waited for in vain.
    """
    host = socket.gethostname()
    ours = tool_version()
    if version != ours:
        return ours, host, "", ()
    try:
        return (
            ours,
            host,
            "",
            tuple(_WORK[kind](*rest) for kind, *rest in files),
        )
    except Exception as e:
        return ours, host, f"{type(e).__name__}: {e}", ()


def _whole(
    path: str, level: int, expect: tuple[str, ...], require: tuple[str, ...], claims: tuple[Any, ...]
) -> tuple[Any, ...]:
    request = Request(path, 0, 0, Level(level), expect, tuple(map(decode, claims)))
    return tuple(inspect_file(request, require))


def _sealed(
    path: str, expect: tuple[str, ...], require: tuple[str, ...], claims: tuple[Any, ...], wanted: Any
) -> tuple[Any, ...]:
    """(report or None, whether it can be sent, the file as its seal has it or None, identity or None, error
    or None, bytes read).
    """
    name, algorithm, also, tensors = wanted
    reading = DigestPass(algorithm, also, tensors, jobs=1, io="pread", require=require)
    with counted() as read:
        try:
            seen = reading.read(path, name, expect, tuple(map(decode, claims)))
        except OSError as e:
            return None, True, None, None, (e.errno or 0, e.strerror or str(e)), read.bytes
    packed = None if seen.report is None else pack(seen.report, {})
    is_whole = packed is not None or seen.report is None
    file = None if seen.file is None else encode(values(seen.file))
    identity = None if seen.identity is None else tuple(seen.identity)
    return packed, is_whole, file, identity, None, read.bytes


def _read(
    path: str, size: int, mtime_ns: int, items: tuple[Item, ...], ctime_ns: int | None = None
) -> tuple[Any, ...]:
    """(what is wrong with the file or None, results, runs of zero pages, bytes read). With ``ctime_ns`` it
    must be the same as well.
    """
    empty: list[tuple[int, int]] = []
    try:
        source = opened(path)
    except OSError as e:
        return ("os", e.errno or 0, e.strerror or str(e)), (), (), 0
    with source:
        if (source.stat.st_size, source.stat.st_mtime_ns) != (size, mtime_ns):
            return ("other", source.stat.st_size, source.stat.st_mtime_ns), (), (), 0
        if ctime_ns not in (None, source.stat.st_ctime_ns):
            return ("other", source.stat.st_size, source.stat.st_ctime_ns), (), (), 0
        results = tuple(read_items(source, items, watching(empty)))
        try:
            wrong: tuple[Any, ...] | None = ("changed",) if source.changed() else None
        except OSError as e:  # nobody can tell
            wrong = ("os", e.errno or 0, e.strerror or str(e))
        return wrong, results, tuple(empty[:MOST]), source.bytes_read


_WORK: dict[str, Callable[..., tuple[Any, ...]]] = {"whole": _whole, "seal": _sealed, "read": _read}
