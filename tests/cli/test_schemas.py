"""The JSON Schemas in the package say what is printed: each real answer is valid, and has no field that they lack."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sample_results as sample
from jsonschema import Draft202012Validator
from one_question import Asker
from places import DOCS, FIXTURES, PACKAGE
from run_helpers import CLEAN, broken, ckpt
from small_runs import FILE, flipped, lost, plain

from ckpt_tools import guard
from ckpt_tools.errors import BY_EXIT_CODE
from ckpt_tools.output import json as as_json
from ckpt_tools.output import jsonl
from ckpt_tools.output.failure import Failure

HOME = PACKAGE / "output/schemas"
NAMES = sorted(path.stem for path in HOME.glob("*.json"))
RECORDED = sorted((FIXTURES / "answers").rglob("*.json.xz"))


def published(name: str) -> Any:
    return json.loads((HOME / f"{name}.json").read_text())


def closed(schema: Any) -> Any:
    """The same where no field may be added: a new one must be written down."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(closed(published(name)))


def name_of(answer: Any) -> str:
    """The schema of a document or of a line."""
    if answer.get("type") == "progress":
        return "progress-line-v1"
    if "type" in answer and "time" not in answer:
        return "verify-line-v1"
    name, version = answer["schema"].removeprefix("ckpt-tools/").split("/")
    return f"{name}-{version}"


def check(answer: Any) -> str:
    name = name_of(answer)
    wrong = [f"{e.json_path}: {e.message[:300]}" for e in validator(name).iter_errors(answer)]
    assert not wrong, (name, wrong[:5])
    return name


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one_and_knows_its_name(name: str) -> None:
    schema = published(name)
    Draft202012Validator.check_schema(schema)
    Draft202012Validator.check_schema(closed(schema))
    assert schema["$id"] == f"urn:ckpt-tools:{name.replace('-v', ':v')}"
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(json.dumps(schema).split("#/$defs/")[1:]) or "$defs" not in schema


def recorded(path: Path) -> Any:
    """What ckpt answers about the fixtures, with what the record leaves out."""
    for said in json.loads(lzma.decompress(path.read_bytes())).values():
        answer = (json.loads(said) if isinstance(said, str) else said)["answer"]
        if isinstance(answer, dict):
            answer.setdefault("tool_version", "0")
            if isinstance(answer.get("summary"), dict):
                answer["summary"].setdefault("seconds", 0.0)
            found = [f for of in (answer, *answer.get("files", ())) for f in of.get("findings", ())]
            for f in found:  # those that Python words
                f.setdefault("message", "")
                f.setdefault("offset", None)
            yield answer


def hold(paths: list[Path]) -> None:
    seen = {check(answer) for path in paths for answer in recorded(path)}
    assert {"verify-v1", "plan-v1"} <= seen


@pytest.mark.slow
def test_answers_about_fixtures_are_valid() -> None:
    hold(RECORDED[::10])


@pytest.mark.exhaustive
def test_answers_about_all_fixtures_are_valid() -> None:
    hold(RECORDED)


LINES = (
    "verify run --explain-bytes --level values", "verify run --sample 1/2 --max-duration 1h", "plan run", "latest run --rank 0", "hook run --plan-dir plans --view view --job j", "ls run",
    f"show run/{FILE} --level values --explain-bytes", "diff run/iter_0000010 run/iter_0000020", "diff run run", "explain truncated", "formats", "layouts", "layouts run --check --layout megatron",
    "launchers", "plan run --history --plan-dir plans", "quarantine run/iter_0000010", "repair run", "prune run --keep-last 1 --settle 0s", "pin run/iter_0000010 --dry-run", "seal run --dry-run --again",
    "show run/iter_0000010/.ckpt-seal.json", "plan nowhere", "plan run --max-step 5 --plan-dir none", "verify nowhere", "ls nowhere", "explain nonsense", "quarantine run/iter_0000010 --apply", "ls run --quarantine",
    "undo run", "report run --level values",
)  # fmt: skip


@pytest.mark.slow
def test_every_command_prints_what_its_schema_says(
    asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = flipped(tmp_path)
    (root / "latest_checkpointed_iteration.txt").write_text("10")
    guard.seal(root)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    seen = set()
    (tmp_path / tmp_path.name).symlink_to(root)  # a store of this test's own
    for line in (f"stage local://{tmp_path.name} staged --max-step 10", *LINES):
        _, out, err = asker.execute(*line.split(), "--json")
        assert out, (line, err)
        seen.add(check(json.loads(out)))
    lines = asker.execute("verify", root, "--format", "jsonl", "--progress", "json")
    lines = [*lines[1].splitlines(), *(x for x in lines[2].splitlines() if x.startswith("{"))]
    seen |= {check(json.loads(line)) for line in lines}
    assert seen == {*NAMES} - {"watch-v1"}


def test_the_nastiest_results_are_valid() -> None:
    for result in (sample.verification(), sample.plan(), sample.empty_plan(), sample.scan()):
        check(json.loads(as_json.render(result)))
    for line in jsonl.render(sample.verification()).splitlines():
        check(json.loads(line))


def test_a_field_that_nobody_wrote_down_is_seen_and_allowed_to_others() -> None:
    answer = json.loads(as_json.render(sample.verification()))
    answer["files"][0]["colour"] = "blue"
    assert not validator("verify-v1").is_valid(answer)
    assert Draft202012Validator(published("verify-v1")).is_valid(answer)
    del answer["files"][0]["colour"], answer["files"][0]["verdict"]
    assert not Draft202012Validator(published("verify-v1")).is_valid(answer)


# -- failures ------------------------------------------------------------------------------------------------


FAILING = (
    ("plan nowhere", 5), ("verify nowhere", 5), ("ls nowhere", 5), ("show nowhere", 5), ("diff nowhere nowhere", 5), ("seal nowhere", 5), ("repair nowhere", 5), ("quarantine run/nothing", 3),
    ("prune nowhere --keep-last 1", 5), ("pin run/nothing", 3), ("undo nowhere", 5), ("explain nonsense", 2), ("formats --color x", 2), ("layouts run", 2), ("launchers --color x", 2),
    ("verify --jobs no", 2), ("plan run --no-such", 2), ("plan run", 4), ("latest run --rank 0", 4), ("hook run --plan-dir plans", 4), ("plan run --no-fallback", 6), ("report nowhere", 5),
)  # fmt: skip


@pytest.mark.slow
def test_all_commands_fail_in_one_shape(asker: Asker, tmp_path: Path) -> None:
    lost(tmp_path)
    for line, code in FAILING:
        got, out, err = asker.execute(*line.split(), "--json")
        answer = json.loads(out)
        assert check(answer) in ("error-v1", "plan-v1"), line
        error = answer["error"]
        other = line.startswith(("undo", "quarantine", "pin", "plan run --no-f"))
        assert got == error["exit_code"] and (got == code or other), (line, got, err)
        assert error["message"] and error["hint"] and error["code"], (line, error)
        if answer["schema"] == "ckpt-tools/error/v1":
            assert (answer["verdict"], answer["files"]) == ("unknown", [])
        else:
            assert answer["checkpoint"] is None and answer["rejected"]
    one = asker.execute("verify", "nowhere", "--format", "jsonl")[1]
    assert one.count("\n") == 1 and check(json.loads(one)) == "error-v1"


def test_every_error_of_the_package_is_of_that_shape() -> None:
    for code, kind in BY_EXIT_CODE.items():
        for plan in (None, sample.plan(checkpoint=None)):
            check(json.loads(as_json.render(Failure("plan", "x-y", "m", kind.hint, code, plan))))


@pytest.mark.slow
def test_a_decision_that_failed_is_a_plan_too(tmp_path: Path) -> None:
    root = plain(tmp_path)
    for step in (10, 20):
        broken(root, step)
    ckpt("hook", root, "--plan-dir", tmp_path / "plans", "--job", "j")
    for path in (tmp_path / "plans").rglob("*.json"):
        body = json.loads(path.read_text())
        if body.get("schema") == "ckpt-tools/plan/v1":
            check(body)


@pytest.mark.slow
def test_the_page_says_how_to_have_one(tmp_path: Path) -> None:
    page = (DOCS / "json.md").read_text().partition("## Schemas")[2]
    block = page.partition("```sh\n")[2].partition("```")[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**CLEAN, "PATH": path, "PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run(["sh", "-euc", block], cwd=tmp_path, env=env, check=True)
    assert json.loads((tmp_path / "plan-v1.json").read_text()) == published("plan-v1")


@pytest.mark.slow
def test_every_line_of_watch_is_valid(asker: Asker, tmp_path: Path) -> None:
    root = plain(tmp_path)
    line = "--once --settle 0s --state-dir state --on-good true --on-bad true --seal"
    lines = asker.execute("watch", root, *line.split())[1].splitlines()
    shutil.rmtree(root / "iter_0000010")
    broken(root, 20)
    asker.execute("hook", root, "--allow=fresh")
    lines += asker.execute("watch", root, *line.split())[1].splitlines()
    assert {check(json.loads(line)) for line in lines} == {"watch-v1"}
    types = {json.loads(line)["type"] for line in lines}
    assert types >= {"started", "checkpoint", "gone", "pass", "hook", "stopped"}
