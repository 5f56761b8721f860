"""The text file ``checkpoint`` beside TensorFlow's bundles: which of them is the newest, and which are kept.

A CheckpointState in protobuf's text form, one field in a line. It is no format of its own: the name is too
common, and nothing in the file tells whether it is right. Paths are prefixes ("ckpt-50" for ckpt-50.index),
relative to the file's directory or, from another machine perhaps, absolute. Facts:
python/checkpoint/checkpoint_management.py and python/training/checkpoint_state.proto of TensorFlow 2.21;
checked against real files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.notes import Notes

LIMIT = 1 << 20
"""Bytes: with max_to_keep=None the list grows by a line with every save."""
_LINE = re.compile(r'(\w+): (?:"((?:[^"\\\n]|\\.)*)"|([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)))')
_PATHS = ("model_checkpoint_path", "all_model_checkpoint_paths")
_TIMES = ("all_model_checkpoint_timestamps", "last_preserved_timestamp")
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_PLAIN = {
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b'"': b'"',
    b"'": b"'",
    b"\\": b"\\",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}


class State(NamedTuple):
    """``latest`` and ``paths`` (oldest first) are as written; ``timestamps`` are seconds since the epoch, one
    for each path or none at all.
    """

    latest: str
    paths: tuple[str, ...] = ()
    timestamps: tuple[float, ...] = ()


def _unescaped(text: str, at: int) -> str:
    def one(m: re.Match[bytes]) -> bytes:
        said = m[1]
        if said in _PLAIN:
            return _PLAIN[said]
        value = (
            int(said[1:], 16)
            if said[:1] == b"x" and len(said) > 1
            else int(said, 8)
            if said[:1] in b"01234567"
            else 256
        )
        if value > 255:
            raise Damage("bad-tracker", f"an escape \\{said.decode('latin-1')} that nobody writes", at)
        return bytes([value])

    try:
        return _ESCAPE.sub(one, text.encode()).decode()
    except UnicodeDecodeError:
        raise Damage("bad-tracker", "a path is not UTF-8", at) from None


def check(home: str, notes: Notes) -> Iterator[Finding]:
    """Whether the file is well-formed, and names a bundle of its directory that is there. Absolute paths may
    be another machine's.
    """
    path = os.path.join(home, "checkpoint")
    data = notes.read(path, LIMIT)
    if data is None:
        return
    if isinstance(data, Finding):
        yield data
        return
    try:
        named = parse(data).latest
    except Damage as e:
        yield replace(e.finding, path=path)
        return
    if named and not os.path.isabs(named):
        index = os.path.join(home, f"{named}.index")
        if wrong := notes.gone(index, path, f"it names {named[:200]!r}, which is not there"):
            yield wrong


def parse(data: bytes) -> State:
    """The contents of the file.
    Raises Damage (``bad-tracker``) for anything that TensorFlow does not write.
    """
    if len(data) > LIMIT:
        raise Damage("bad-tracker", f"{len(data)} bytes are no list of checkpoints", 0)
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise Damage("bad-tracker", "the file is no text", e.start) from None
    found: dict[str, list[str]] = {field: [] for field in (*_PATHS, *_TIMES)}
    at = 0
    for line in text.split("\n"):
        if line.strip(" \r\t"):
            field, value = _field(line, at)
            found[field].append(value)
        at += len(line.encode()) + 1
    latest, paths, times, preserved = found.values()
    if len(latest) != 1 or not latest[0] or len(preserved) > 1:
        raise Damage("bad-tracker", "the list of checkpoints does not name the newest of them once", 0)
    if times and len(times) != len(paths):
        raise Damage("bad-tracker", f"{len(paths)} checkpoints with {len(times)} times", 0)
    return State(latest[0], tuple(paths), tuple(map(float, times)))


def _field(line: str, at: int) -> tuple[str, str]:
    """The name and the value of the field in a line, which begins at ``at``. Raises Damage."""
    m = _LINE.fullmatch(line)
    if m is None:
        raise Damage("bad-tracker", f"not a line of a list of checkpoints: {line[:80]!r}", at)
    field, path, number = m.groups()
    if path is not None and field in _PATHS:
        return field, _unescaped(path, at)
    if number is not None and field in _TIMES:
        return field, number
    raise Damage("bad-tracker", f"{field[:80]!r} is no field of a list of checkpoints", at)
