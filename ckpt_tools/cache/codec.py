"""A report <-> the bytes that the cache keeps: JSON, because nothing that lies on a disk is unpickled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, NamedTuple

from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.report import Level, Report, Scalar, Unlisted
from ckpt_tools.model.tensor import Box, Stats
from ckpt_tools.storage import Identity

Places = Mapping[str, Box]


class Seen(NamedTuple):
    """A report made ahead of the question.
    ``identity`` is None when the file may not be kept under its name.
    """

    report: Report
    places: Places
    identity: Identity | None


def _out(value: Scalar) -> object:
    return (
        {"hex": hex(value)} if isinstance(value, int) and value.bit_length() > 1024 else value
    )  # Python refuses decimals of thousands of digits


def _in(value: object) -> Scalar:
    if isinstance(value, dict):
        return int(value["hex"], 16)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError("it is no scalar")


def _offset(value: object) -> int | None:
    offset = _in(value)
    if offset is None or isinstance(offset, int):
        return offset
    raise ValueError("it is no offset")


def pack(report: Report, places: Places) -> bytes | None:
    """All of a report but its path and the map of its bytes; None when it cannot be kept."""
    import json  # here, because it costs start-up time

    value = {
        "format": report.format,
        "size": report.size,
        "verdict": report.verdict.value,
        "level": int(report.level),
        "coverage": report.coverage,
        "metadata": {key: _out(item) for key, item in report.metadata.items()},
        "findings": [
            [f.code, int(f.severity), f.message, _out(f.offset), f.hint, f.path] for f in report.findings
        ],
        "signature": report.signature,
        "tensors": report.tensors,
        "bytes_read": report.bytes_read,
        "mtime_ns": report.mtime_ns,
        "mode": report.mode,
        "stats": [
            [s.name, s.dtype, s.count, s.nan, s.inf, s.denormal, s.absurd, s.zeros, s.min, s.max]
            for s in report.stats
        ],
        "places": dict(places),
        "unlisted": report.unlisted,
    }
    try:
        # Not as ASCII: two lone surrogates in a name would come back as one letter.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError):
        return None


def unpack(path: str, data: bytes) -> tuple[Report, Places] | None:
    """What was packed, as a report on ``path``; None when it is not what ``pack`` writes."""
    import json

    try:
        v = json.loads(data.decode("utf-8", "surrogatepass"))
        _typed(v)
        metadata = {key: _in(item) for key, item in v["metadata"].items()}
        findings = tuple(
            Finding(code, Severity(severity), message, _offset(offset), hint, at)
            for code, severity, message, offset, hint, at in v["findings"]
        )
        report = Report(
            path,
            v["format"],
            v["size"],
            Verdict(v["verdict"]),
            Level(v["level"]),
            v["coverage"],
            metadata,
            findings,
            v["signature"],
            v["tensors"],
            v["bytes_read"],
            v["mtime_ns"],
            v["mode"],
            (),
            tuple(Stats(*row) for row in v["stats"]),
            tuple(Unlisted(*row) for row in v["unlisted"]),
        )
        return report, {name: Box(tuple(start), tuple(stop)) for name, (start, stop) in v["places"].items()}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None


_FIELDS: Mapping[str, tuple[type, ...]] = {
    "format": (str, NoneType),
    "size": (int,),
    "coverage": (int, float),
    "signature": (str,),
    "tensors": (int,),
    "bytes_read": (int,),
    "mtime_ns": (int,),
    "mode": (int,),
    "verdict": (str,),
    "level": (int,),
    "metadata": (dict,),
    "findings": (list,),
    "stats": (list,),
    "places": (dict,),
    "unlisted": (list,),
}
_FINDING: tuple[tuple[type, ...], ...] = ((str,), (int,), (str,), (int, dict, NoneType), (str,), (str,))
_NUMBER = (int, float, NoneType)
_UNLISTED: tuple[tuple[type, ...], ...] = ((str,), (bool,), (int,))
_STATS: tuple[tuple[type, ...], ...] = ((str,), (str,), *[(int,)] * 6, _NUMBER, _NUMBER)


def _typed(v: Mapping[str, Any]) -> None:
    """Raises TypeError where a value is of another type than that which ``pack`` writes: what reads a report
    later does not look again.
    """
    _check((v[name], kinds) for name, kinds in _FIELDS.items())
    for name, kinds in (("findings", _FINDING), ("stats", _STATS), ("unlisted", _UNLISTED)):
        for row in v[name]:
            _check(zip(row, kinds, strict=True))
    for box in v["places"].values():
        for side in box:
            _check([(side, (list,)), *((n, (int,)) for n in side)])


def _check(values: Iterable[tuple[object, tuple[type, ...]]]) -> None:
    if not all(type(value) in kinds for value, kinds in values):
        raise TypeError("it is no report")
