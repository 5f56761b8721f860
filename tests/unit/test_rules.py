"""The catalogue of rules: each is a file with a page that is read in one breath."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import PACKAGE

from ckpt_tools.cli import app, execute
from ckpt_tools.errors import CannotLook, NoCheckpoint, NoneUsable, NotNewest, NotRecognised, UsageError
from ckpt_tools.findings import CODES, adapt_hint, finding
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.planning import rules
from ckpt_tools.planning.rules.catalogue import BY_CODE, RULES, find_rule
from ckpt_tools.planning.rules.rule import Rule

FIXTURES = Path(__file__).parents[2] / "fixtures"
HERE = Path(rules.__file__).parent


def test_each_file_below_a_scope_is_a_rule() -> None:
    files = {f"{p.parent.name}/{p.stem.replace('_', '-')}" for p in HERE.glob("*/*.py") if p.stem[0] != "_"}
    assert files == RULES.keys()
    assert all(name == rule.id for name, rule in RULES.items())


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_page_is_short_and_says_what_for(rule: Rule) -> None:
    lines = rule.why.strip().splitlines()
    assert 2 <= len(lines) <= 10
    assert any(line.startswith("For: ") for line in lines)
    assert rule.answer


def test_every_flag_that_an_answer_names_is_one() -> None:
    params = (p for name in app.COMMANDS for p in app.command(name).params if not p.hidden)
    flags = {flag for p in params for flag in p.opts}
    named = {flag for rule in RULES.values() for flag in re.findall(r"--[a-z-]+", rule.answer + rule.why)}
    assert named <= flags


def test_every_code_has_a_rule() -> None:
    assert BY_CODE.keys() == CODES.keys()
    codes = [code for rule in RULES.values() for code in rule.codes]
    assert len(codes) == len(set(codes))


def test_a_finding_names_its_rule_or_has_that_of_its_code() -> None:
    f = Finding("missing-part", Severity.ERROR, "")
    assert find_rule(f) == "save/missing-part"
    assert find_rule(Finding("missing-part", Severity.ERROR, "", rule="save/missing-rank")) in RULES
    assert find_rule(Finding("of-the-future", Severity.ERROR, "")) == ""


def test_every_rule_that_code_names_is_in_the_catalogue() -> None:
    texts = (file.read_text(encoding="utf-8") for file in HERE.parents[1].rglob("*.py"))
    nodes = (node for text in texts if 'rule="' in text for node in ast.walk(ast.parse(text)))
    words = (
        word for node in nodes if isinstance(node, ast.Call) for word in node.keywords if word.arg == "rule"
    )
    named = {word.value.value for word in words if isinstance(word.value, ast.Constant)}
    assert named - {""} <= RULES.keys()
    for error in (UsageError, NotRecognised, NoCheckpoint, NoneUsable, CannotLook, NotNewest):
        assert error.rule in {"", *RULES}


@pytest.mark.parametrize(
    "tree", ["demo", "layouts/orbax/cut/tree", "layouts/megatron", "formats/torch_zip/bad"]
)
def test_every_finding_in_json_has_a_known_rule(tree: str, capfd: pytest.CaptureFixture[str]) -> None:
    told = []
    for command in ("plan", "verify"):
        execute([command, str(FIXTURES / tree), "--json"])
        told += _findings(json.loads(capfd.readouterr().out))
    assert told
    assert {f["rule"] for f in told if f.get("code") != "usage-error"} <= RULES.keys()


def _findings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "severity" in value or "exit_code" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _findings(item)


# --- The catalogue and the code that uses it know the same findings


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
    assert adapt_hint(finding("unreadable", ""), url).hint == of_url.hint
    assert adapt_hint(finding("unreadable", "", hint="restore the index"), url).hint == "restore the index"
