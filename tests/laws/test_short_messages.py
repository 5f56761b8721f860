"""No message and no hint of any recorded answer takes more than three lines of 80 columns."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator
from typing import Any

import pytest
from places import FIXTURES

MOST = 3 * 80
NAME = re.compile(r"\S{32,}")
"""A name may be of any length: a long one counts as 32 characters."""


def texts(answer: Any) -> Iterator[str]:
    if isinstance(answer, dict):
        for key, value in answer.items():
            yield from [value] if key in ("message", "hint") and isinstance(value, str) else texts(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from texts(value)


@pytest.mark.slow
def test_no_message_is_longer_than_three_lines() -> None:
    stored = sorted((FIXTURES / "answers").rglob("*.xz"))
    found = {text for path in stored for text in texts(json.loads(lzma.decompress(path.read_bytes())))}
    assert len(found) > 1000
    assert not [text for text in found if len(NAME.sub("x" * 32, text)) > MOST]
