"""A report <-> the bytes that the cache keeps: JSON, because nothing that lies on a disk is unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ckpt_tools.model.codec import decode, decode_object, encode, encode_object
from ckpt_tools.model.report import Report
from ckpt_tools.model.tensor import Box
from ckpt_tools.storage import Identity

Places = Mapping[str, Box]


class Seen(NamedTuple):
    """A report made ahead of the question.
    ``identity`` is None when the file may not be kept under its name.
    """

    report: Report
    places: Places
    identity: Identity | None


def pack(report: Report, places: Places) -> bytes | None:
    """All of a report but its path and the map of its bytes; None when it cannot be kept."""
    import json  # here, because it costs start-up time

    try:
        value = {**encode_object(report), "path": "", "regions": [], "places": encode(places)}
        # Not as ASCII: two lone surrogates in a name would come back as one letter.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError):
        return None


def unpack(path: str, data: bytes) -> tuple[Report, Places] | None:
    """What was packed, as a report on ``path``; None when it is not what ``pack`` writes."""
    import json

    try:
        kept = json.loads(data.decode("utf-8", "surrogatepass"))
        report = decode_object(Report, {**kept, "path": path, "regions": []})
        return report, decode(Places, kept["places"])  # type: ignore[type-abstract]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
