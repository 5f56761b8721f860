"""What a worker of an engine does: plain data in, plain data out."""

from __future__ import annotations

import socket
from typing import Any

from ckpt_tools.checksum.remote import Item, read_items
from ckpt_tools.formats.common.zero_pages import MOST, watching
from ckpt_tools.model.plain import decode
from ckpt_tools.model.report import Level
from ckpt_tools.reading.request import Request, inspect_file
from ckpt_tools.settings.plugins import tool_version
from ckpt_tools.storage import opened


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
            tuple(_whole(*rest) if kind == "whole" else _read(*rest) for kind, *rest in files),
        )
    except Exception as e:
        return ours, host, f"{type(e).__name__}: {e}", ()


def _whole(
    path: str, level: int, expect: tuple[str, ...], require: tuple[str, ...], claims: tuple[Any, ...]
) -> tuple[Any, ...]:
    request = Request(path, 0, 0, Level(level), expect, tuple(map(decode, claims)))
    return tuple(inspect_file(request, require))


def _read(path: str, size: int, mtime_ns: int, items: tuple[Item, ...]) -> tuple[Any, ...]:
    """(what is wrong with the file or None, results, runs of zero pages, bytes read)."""
    empty: list[tuple[int, int]] = []
    try:
        source = opened(path)
    except OSError as e:
        return ("os", e.errno or 0, e.strerror or str(e)), (), (), 0
    with source:
        if (source.stat.st_size, source.stat.st_mtime_ns) != (size, mtime_ns):
            return ("other", source.stat.st_size, source.stat.st_mtime_ns), (), (), 0
        results = tuple(read_items(source, items, watching(empty)))
        wrong = ("changed",) if source.changed() else None
        return wrong, results, tuple(empty[:MOST]), source.bytes_read
