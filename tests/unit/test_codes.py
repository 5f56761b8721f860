"""The catalogue and the code that uses it know the same findings."""

from __future__ import annotations

import re

import pytest
from places import PACKAGE

from ckpt_tools.findings import CODES, finding, of_file

SOURCE = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "findings.py")
EMITTED = set(re.findall(r"(?:finding|Damage|_Bad)\(\s*\"([a-z][a-z0-9-]+)\"", SOURCE))
NAMED = set(re.findall(r"\"([a-z0-9]+(?:-[a-z0-9]+)+)\"", SOURCE))


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


LOCAL = re.compile(r"dmesg|smartctl|\bdisk|mount|chmod|file system\b|user that runs")
IN_STORE = re.compile(r"\bstore\b|bucket|credentials|upload|endpoint")
OF_STORES = {"store-checksum-mismatch", "unproven-content", "versions-kept"}
"""What is said of nothing but objects."""


def test_no_hint_about_a_url_speaks_of_this_machine_nor_one_about_a_path_of_a_store() -> None:
    wrong = {c.id: c.hint_at("s3://b/k") for c in CODES.values() if LOCAL.search(c.hint_at("s3://b/k"))}
    local = [c for c in CODES.values() if c.id not in OF_STORES]
    wrong |= {c.id: c.hint_at("/a/b") for c in local if IN_STORE.search(c.hint_at("/a/b"))}
    assert not wrong


def test_a_finding_has_the_hint_of_its_place() -> None:
    url, path = "gs://b/k", "/a/b"
    of_url, of_path = (finding("unreadable", "", path=p) for p in (url, path))
    assert of_url.hint != of_path.hint
    assert of_file(finding("unreadable", ""), url).hint == of_url.hint
    assert of_file(finding("unreadable", "", hint="restore the index"), url).hint == "restore the index"
