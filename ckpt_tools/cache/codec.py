"""A report <-> the bytes that the cache keeps and workers send, by the types that its fields declare."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from msgspec import DecodeError, msgpack
from msgspec.structs import replace

from ckpt_tools.model.report import NO_METADATA, Report
from ckpt_tools.model.tensor import Box
from ckpt_tools.storage import Identity

Places = Mapping[str, Box]


class Seen(NamedTuple):
    """A report made ahead of the question; ``identity`` is None when it may not be kept."""

    report: Report
    places: Places
    identity: Identity | None


def pack(report: Report, places: Places) -> bytes | None:
    """Return all of a report but its path and the map of its bytes; None when it cannot be kept."""
    try:
        return msgpack.encode((replace(report, path="", regions=()), places))
    except (TypeError, ValueError, OverflowError):  # a name that is no UTF-8, an integer of more than 64 bits
        return None


def unpack(path: str, data: bytes) -> tuple[Report, Places] | None:
    """Return what was packed, as a report on ``path``; None when it is not what ``pack`` writes."""
    try:
        report, places = _decoder().decode(data)
    except (DecodeError, ValueError, RecursionError):
        return None
    # the words that 100,000 reports have in common are kept once
    of = None if report.format is None else sys.intern(report.format)
    return replace(report, path=path, format=of, metadata=report.metadata or NO_METADATA), places


@cache
def _decoder() -> msgpack.Decoder[tuple[Report, Places]]:
    return msgpack.Decoder(tuple[Report, Places])
