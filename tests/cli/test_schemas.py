"""The JSON Schemas in the package and the pages of exit codes say what is printed: each real answer is valid, has no field
that they lack, and ends as each sentence about a code says.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sample_results as sample
from jsonschema import Draft202012Validator
from one_question import Asker
from own_plugins import install
from places import DOCS, FIXTURES, PACKAGE
from run_helpers import CLEAN, broken
from sample_results import field_names
from small_runs import FILE, encrypted, flipped, lost, plain, started_before

from ckpt_tools import guard
from ckpt_tools.errors import BY_EXIT_CODE
from ckpt_tools.output import json as as_json
from ckpt_tools.output import jsonl
from ckpt_tools.output.failure import Failure
from ckpt_tools.settings import plugins

HOME = PACKAGE / "output/schemas"
NAMES = sorted(path.stem for path in HOME.glob("*.json"))
RECORDED = sorted((FIXTURES / "answers").rglob("*.json.xz"))


PAGE = (DOCS / "json.md").read_text()
NASTY = [
    json.loads(as_json.render(s))
    for s in (sample.verification(), sample.plan(), sample.empty_plan(), sample.scan())
]
NASTY += map(json.loads, jsonl.render(sample.verification()).splitlines())


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


@pytest.mark.slow
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.exhaustive), 10])
def test_answers_about_fixtures_are_valid(step: int) -> None:
    seen = {check(answer) for path in RECORDED[::step] for answer in recorded(path)}
    assert {"verify-v1", "plan-v1"} <= seen


LINES = (
    "verify run --explain-bytes --level values", "verify run --sample 1/2 --max-duration 1h", "plan run", "latest run --rank 0", "hook run --plan-dir plans --view view --job j", "ls run",
    f"show run/{FILE} --level values --explain-bytes", "diff run/iter_0000010 run/iter_0000020", "diff run run", "explain truncated", "formats", "layouts", "layouts run --check --layout megatron",
    "launchers", "plan run --history --plan-dir plans", "quarantine run/iter_0000010", "repair run", "prune run --keep-last 1 --settle 0s", "pin run/iter_0000010 --dry-run", "seal run --dry-run --again",
    "show run/iter_0000010/.ckpt-seal.json", "plan nowhere", "plan run --max-step 5 --plan-dir none", "verify nowhere", "ls nowhere", "explain nonsense", "quarantine run/iter_0000010 --apply", "ls run --quarantine",
    "undo run", "report run --level values", "report none", "plan none",
)  # fmt: skip


@pytest.mark.slow
def test_every_command_prints_what_its_schema_says_and_the_page_names_each_of_its_fields(
    asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = flipped(tmp_path)
    (root / "latest_checkpointed_iteration.txt").write_text("10")
    guard.seal(root)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    (tmp_path / tmp_path.name).symlink_to(root)  # a store of this test's own
    values: list[Any] = []
    for line in (f"stage local://{tmp_path.name} staged --max-step 10", *LINES):
        _, out, err = asker.execute(*line.split(), "--json")
        assert out, (line, err)
        values.append(json.loads(out))
    lines = asker.execute("verify", root, "--format", "jsonl", "--progress", "json")
    values += [json.loads(x) for of in lines[1:] for x in of.splitlines() if x.startswith("{")]
    watch = "--once --settle 0s --state-dir state --on-good true --on-bad true --seal"
    lines = asker.execute("watch", root := plain(tmp_path / "watched"), *watch.split())
    shutil.rmtree(root / "iter_0000010")
    broken(root, 20)
    asker.execute("hook", root, "--allow=fresh")
    again = asker.execute("watch", root, *watch.split())
    values += map(json.loads, (lines[1] + again[1]).splitlines())
    assert {check(value) for value in values} == {*NAMES}
    known = {key for value in values for key in field_names(value)}
    lists = ("explain", "formats", "layouts", "show")
    told = [*NASTY, *(v for v in values if v.get("schema", "/").split("/")[1] in lists)]
    assert {key for value in told for key in field_names(value)} <= set(re.findall(r"`([a-z_]+)`", PAGE))
    known |= {value["type"] for value in values if "type" in value}  # what watch says has a row of its own
    assert known >= {"gone", "hook", "pass", "started", "stopped"}
    known |= {"problem", "restart"}  # tests/cli/test_watch.py sees each of these
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", PAGE, re.MULTILINE)
    names = set(re.findall(r"`([a-z_]+)`", " ".join(rows)))
    assert names and not names - known, names - known


def test_the_nastiest_results_and_every_error_are_valid() -> None:
    for answer in NASTY:
        check(answer)
    for code, kind in BY_EXIT_CODE.items():
        for plan in (None, sample.plan(checkpoint=None)):
            check(json.loads(as_json.render(Failure("plan", "x-y", "m", kind.hint, code, plan))))


def test_a_field_that_nobody_wrote_down_is_seen_and_allowed_to_others() -> None:
    answer = json.loads(as_json.render(sample.verification()))
    answer["files"][0]["colour"] = "blue"
    assert not validator("verify-v1").is_valid(answer)
    assert Draft202012Validator(published("verify-v1")).is_valid(answer)
    del answer["files"][0]["colour"], answer["files"][0]["verdict"]
    assert not Draft202012Validator(published("verify-v1")).is_valid(answer)


FAILING = (
    ("plan nowhere", 5), ("verify nowhere", 5), ("ls nowhere", 5), ("show nowhere", 5), ("diff nowhere nowhere", 5), ("seal nowhere", 5), ("repair nowhere", 5), ("quarantine run/nothing", 3),
    ("prune nowhere --keep-last 1", 5), ("pin run/nothing", 3), ("undo nowhere", 5), ("explain nonsense", 2), ("formats --color x", 2), ("layouts run", 2), ("launchers --color x", 2),
    ("verify --jobs no", 2), ("plan run --no-such", 2), ("plan run", 4), ("latest run --rank 0", 4), ("hook run --plan-dir plans --job j", 4), ("plan run --no-fallback", 6), ("report nowhere", 5),
    ("prune run", 2), ("prune run --damaged", 2), ("prune run --keep 0", 2), ("prune run --keep-kind what", 2), ("prune run --keep 1 --damaged --apply", 4),
    ("repair run --accept-odds 2", 2), ("repair notes", 3), ("seal run --digest crc8", 2),
)  # fmt: skip


@pytest.mark.slow
def test_all_commands_fail_in_one_shape(asker: Asker, tmp_path: Path) -> None:
    """So does a decision that failed, which is a plan too."""
    lost(tmp_path)
    (tmp_path / "notes").mkdir()
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
    bodies = [json.loads(path.read_text()) for path in (tmp_path / "plans").rglob("*.json")]
    assert "plan-v1" in {check(body) for body in bodies if body.get("schema") == "ckpt-tools/plan/v1"}


@pytest.mark.slow
def test_the_page_says_how_to_have_one(tmp_path: Path) -> None:
    page = (DOCS / "json.md").read_text().partition("## Schemas")[2]
    block = page.partition("```sh\n")[2].partition("```")[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**CLEAN, "PATH": path, "PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run(["sh", "-euc", block], cwd=tmp_path, env=env, check=True)
    assert json.loads((tmp_path / "plan-v1.json").read_text()) == published("plan-v1")


@pytest.fixture
def asker(asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asker]:
    """With a place for packages."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    plugins.forget()
    yield asker
    monkeypatch.undo()
    for name in ("own_parts", "own_other"):
        sys.modules.pop(name, None)
    plugins.switch(None)
    plugins.forget()


def nothing(tmp: Path) -> None:
    (tmp / "run").mkdir()
    (tmp / "run/notes.txt").write_text("x")


def stale(tmp: Path) -> None:
    tracker = plain(tmp) / "latest_checkpointed_iteration.txt"
    tracker.write_text("10")
    os.utime(tracker, (1_000_000_000, 1_000_000_000))  # before the saves: a later one is a question


def cut(tmp: Path) -> None:
    broken(plain(tmp), 20)


def broken_plugin(tmp: Path) -> None:
    """A package is installed whose layout cannot be used."""
    install(Path(sys.path[0]), source="import no_such_package")
    plain(tmp)


def two_plugins(tmp: Path) -> None:
    """Two packages add the same."""
    install(Path(sys.path[0]))
    install(Path(sys.path[0]), name="other-parts", module="own_other")
    plain(tmp)


PROMISES: list[tuple[Callable[[Path], object], str, int]] = [
    (plain, "verify run", 0), (cut, "verify run", 1), (stale, "verify run", 0), (stale, "verify run --strict", 1), (plain, "verify", 0), (nothing, "verify run", 3),
    (plain, "report run -o r.html", 0), (cut, "report run -o r.html", 1), (nothing, "report run -o r.html", 3), (nothing, "report none -o r.html", 5), (plain, "report run -o none/r.html", 5),
    (stale, "verify run --fail-on warning", 1), (stale, "verify run --fail-on error", 0), (plain, "verify run --fail-on warning", 0), (plain, "verify run none --fail-on warning", 5), (plain, "verify run --fail-on note", 2),
    (cut, "plan run --fail-on warning", 1), (cut, "plan run --fail-on error", 0), (plain, "plan run --fail-on warning", 0), (stale, "plan run --fail-on warning", 1), (lost, "plan run --fail-on warning", 4),
    (nothing, "verify none", 5), (encrypted, "verify run", 0), (encrypted, "verify run --level values --strict", 5), (plain, "verify run notes", 5), (plain, "verify run --sample 1/9 --strict", 0),
    (plain, "plan run", 0), (nothing, "plan run", 3), (nothing, "plan run --allow none", 0), (nothing, "plan none --allow none", 5),
    (nothing, "plan none --allow none,missing", 0), (nothing, "plan none --allow missing", 5), (plain, "plan run --world-size 3", 2), (cut, "plan run", 0),
    (cut, "plan run --no-fallback", 6), (lost, "plan run --allow none", 4), (lost, "plan run --allow fresh", 0), (plain, "plan run --max-step 5", 4),
    (plain, "plan run --kind best", 4), (started_before, "plan run --plan-dir log", 4), (started_before, "plan run --plan-dir log --allow none", 4),
    (started_before, "plan run --plan-dir log --allow fresh", 0), (plain, f"plan run/{FILE}.txt", 5), (plain, "plan run --run b", 2),
    (plain, "plan run --run b --allow none,missing", 0), (plain, "plan run --no-cache --budget 0s --strict", 5),
    (plain, "ls run", 0), (nothing, "ls run", 3), (plain, "ls run --kind best", 3), (nothing, "ls none", 5),
    (plain, f"show run/{FILE}", 0), (cut, f"show run/{FILE}", 1), (nothing, "show run/notes.txt", 3), (nothing, "show none", 5),
    (plain, "diff run run", 0), (plain, "diff run/iter_0000010 run/iter_0000020", 1), (cut, "diff run run", 1), (plain, "diff run none", 5),
    (encrypted, "diff run run --level structure", 0), (encrypted, "diff run run --level structure --strict", 5),
    (nothing, "explain truncated", 0), (nothing, "explain nonsense", 2), (nothing, "formats", 0), (nothing, "formats --format nonsense", 2), (nothing, "launchers", 0),
    (broken_plugin, "verify run", 0), (broken_plugin, "verify run --strict", 1), (broken_plugin, "plan run", 0), (broken_plugin, "plan run --strict", 5),
    (broken_plugin, "plan run --run b --allow none,missing", 5), (broken_plugin, "ls run --kind best", 5), (broken_plugin, "prune run --keep-last 1", 5),
    (broken_plugin, "verify run --strict --no-plugins", 0), (two_plugins, "plan run", 2), (two_plugins, "formats", 2),
    (nothing, "layouts", 0), (nothing, "layouts run", 2), (plain, "layouts run --check --layout dcp", 1), (nothing, "layouts none --check --layout dcp", 5),
    (nothing, "hook install", 0), (nothing, "completion bash", 0), (nothing, "completion nonsense", 2), (nothing, "hook install nonsense", 2), (plain, "run run", 2), (plain, "hook --read", 2), (nothing, "run run -- train", 3), (lost, "hook run", 4),
]  # fmt: skip
"""(what is there, command line, exit code), sentence by sentence."""


ANSWERED = ("verify", "report", "show", "diff", "ls", "layouts", "plan run --fail-on warning")
"""Commands whose answer says itself why it does not end in 0."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "line", "code"), PROMISES, ids=[f"{line}-{there.__name__}" for there, line, _ in PROMISES]
)
def test_a_promised_exit_code(
    asker: Asker, tmp_path: Path, there: Callable[[Path], object], line: str, code: int
) -> None:
    there(tmp_path)
    (tmp_path / "notes").mkdir()
    got, _, err = asker.execute(*line.split())
    assert got == code, err
    assert not code or "hint: " in err or "Usage:" in err or line.startswith(ANSWERED)


def test_every_code_is_promised_and_listed() -> None:
    page = (DOCS / "exit-codes.md").read_text()
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert listed == {0, 1, *BY_EXIT_CODE, 70, 130, 143}
    assert {code for _, _, code in PROMISES} == {0, 1, *BY_EXIT_CODE}


def test_the_example_of_a_failure_is_a_real_one(asker: Asker, tmp_path: Path) -> None:
    (tmp_path / "run-7").mkdir()
    code, out, err = asker.execute("plan", tmp_path / "run-7")
    assert (code, out) == (3, "")
    assert f"```text\n{err.replace(str(tmp_path), '/data')}```" in (DOCS / "exit-codes.md").read_text()
