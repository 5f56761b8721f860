"""Values come back from plain data as they were, and nothing comes back that their types do not allow."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from ckpt_tools.findings import finding
from ckpt_tools.model.codec import decode, decode_object, encode, encode_object
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import FileLoad
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.tensor import Box

PART = Part("/a", "toy", "model", "model", "/run", "/run", kind=Kind.BEST, rank=3, coords=(("tp", 1),))
FOUND = Finding("crc-mismatch", Severity.ERROR, "x", 1 << 5000, ranks=((0, 3),), follows=True)


@pytest.mark.parametrize(
    "value",
    [
        PART,
        PART._replace(findings=(FOUND,)),
        FOUND,
        FileLoad("model", "/a", 1, -2, Level.CONTENT, 1, None),
        Box((0, 1), (2, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_records_come_back(value: object) -> None:
    assert decode(type(value), json.loads(json.dumps(encode(value)))) == value
    assert decode_object(type(value), json.loads(json.dumps(encode_object(value)))) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "worst"),
        ("kind", 1),
        ("rank", True),
        ("rank", "3"),
        ("rank", 3.0),
        ("rank", {"hex": 3}),
        ("coords", [["tp"]]),
        ("coords", [["tp", 1, 2]]),
        ("coords", [["tp", None]]),
        ("coords", {"tp": 1}),
        ("size", None),
        ("unfinished", 1),
        ("path", {"hex": "1"}),
        ("findings", [[]]),
    ],
)
def test_other_types_do_not(field: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        decode_object(Part, {**encode_object(PART), field: value})


def test_a_row_has_every_field_and_no_other() -> None:
    row = encode(PART)
    for other in (row[:-1], [*row, 1], tuple(row), {}, None, "text"):
        with pytest.raises((TypeError, ValueError)):
            decode(Part, other)
    with pytest.raises(KeyError):
        decode_object(Finding, {"code": "x"})


def test_severities_and_levels_are_no_truth_values() -> None:
    load = encode_object(FileLoad("model", "/a", 1, 1, Level.STRUCTURE, 0.5, None))
    for wrong in (True, "structure", 9, 1.0):
        with pytest.raises((TypeError, ValueError)):
            decode_object(FileLoad, {**load, "level": wrong})


def test_what_is_no_value_of_ours_is_not_encoded() -> None:
    assert encode(finding("truncated", "x"))[0] == "truncated"
    for value in (object(), b"bytes", {1, 2}, open):
        with pytest.raises(TypeError):
            encode(value)


def test_metadata_keeps_the_type_of_each_scalar() -> None:
    values = {"a": True, "b": 1, "c": 1.0, "d": None, "e": "x", "f": -(1 << 4000)}
    back = decode(Mapping[str, int | float | str | bool | None], json.loads(json.dumps(encode(values))))
    assert back == values and [type(v) for v in back.values()] == [type(v) for v in values.values()]


@pytest.mark.parametrize("metadata", [{}, {"step": 3, "args.lr_schedule": "cosine"}])
def test_reports_share_their_texts(metadata: dict[str, int | str]) -> None:
    """100,000 files of a checkpoint say the same words, and have as little metadata."""
    sent = json.dumps(
        encode(Report("/a/b", "toy", 1, Verdict.OK, Level.CONTENT, 1.0, metadata, signature="ab12"))
    )
    one, other = (decode(Report, json.loads(sent)) for _ in range(2))
    assert (one.path, one.metadata) == ("/a/b", metadata)
    for name in ("path", "format", "signature"):
        assert getattr(one, name) is getattr(other, name)
    for a, b in zip(one.metadata.items(), other.metadata.items(), strict=True):
        assert a[0] is b[0] and a[1] is b[1]
    assert metadata or one.metadata is other.metadata
