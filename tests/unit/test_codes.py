"""The catalogue and the code that uses it know the same findings."""

from __future__ import annotations

import re

import pytest
from places import PACKAGE

from ckpt_tools.findings import CODES, finding

SOURCE = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
EMITTED = {
    code
    for path, text in SOURCE.items()
    if path.name != "findings.py"
    for code in re.findall(r"(?:finding|Damage|_Bad)\(\s*\"([a-z][a-z0-9-]+)\"", text)
}
NAMED = {
    code
    for path, text in SOURCE.items()
    if path.name != "findings.py"
    for code in re.findall(r"\"([a-z0-9]+(?:-[a-z0-9]+)+)\"", text)
}


def test_every_emitted_code_is_in_the_catalogue() -> None:
    assert len(EMITTED) > 30
    assert not EMITTED - set(CODES)


def test_every_code_is_emitted_somewhere() -> None:
    assert not set(CODES) - EMITTED - NAMED, "a code that nothing emits claims a check that does not exist"


@pytest.mark.parametrize("code", CODES.values(), ids=lambda c: c.id)
def test_every_code_says_what_to_do(code: object) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)+|truncated|unreadable|skeleton", code.id)  # type: ignore[attr-defined]
    assert code.hint  # type: ignore[attr-defined]
    assert code.title  # type: ignore[attr-defined]


def test_unknown_codes_are_refused() -> None:
    with pytest.raises(KeyError):
        finding("no-such-code", "")
