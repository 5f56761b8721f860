"""The formats for machines, each read by its own schema or tool, whatever files are called and findings say."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import machine_readers as read
import pytest
import sample_results as sample
import warm
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from one_question import Asker
from places import DOCS
from progress_lines import FIELDS
from run_helpers import CLEAN, megatron
from small_runs import lost, plain

from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.model.answers import FileReport, Summary, Verification
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.plan import LoadPlan, RankLoad, Rejected
from ckpt_tools.output import registry
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.page import View
from ckpt_tools.output.words import printable

MACHINES = ("junit", "sarif", "github", "markdown", "csv")
HOSTILE = (
    sample.NASTY, "/d/quote\"'`.pt", "/d/new\nline\r\n::error::x", "/d/\u202eright", "/d/=cmd|' /C calc'!A0", "/d/nul\x00\x01\x1b[31m", "/d/\udcff\udc80",
    "/d/a|b\\|c", "/d/<img src=x onerror=alert(1)>", "/d/]]></failure>&amp;", "/d/%0A,file=x:y", "/d/[x](http://e)", "/d/@someone #1 $x$ ~~y~~", "/d/\ufffe\uffff",
    "/d/\x85\u2028line", "/d/ **b** _i_ __c__ ", "/d/```", "/d/${x}`$(x)`", "/d/ends with \\", '/d/a{b="c"} 1', "/d/##[add-mask]x",
)  # fmt: skip


def shown(name: str, document: registry.Document, **view: object) -> str:
    found = registry.find(name)
    assert found
    return found.render(document, View(now=1.5e9, **view))  # type: ignore[arg-type]


def about(path: str, words: str) -> list[Finding]:
    return [
        finding("crc-mismatch", words, path=path, offset=7),
        Finding("unreadable", Severity.WARNING, words, path=path, hint=words),
        Finding("not-checksummed", Severity.NOTE, words),
    ]


def verification(path: str, words: str) -> Verification:
    """Everything that could be read is of these words."""
    reports = [
        FileReport(sample.part(0, path), sample.report(path, Verdict.BROKEN, *about("", words))),
        FileReport(None, sample.report(path + "2", Verdict.SUSPECT, *about("", words)[1:], format=None)),
        FileReport(None, sample.report(path + "3")),
        FileReport(None, sample.report(path + "4", Verdict.UNKNOWN, *about("", words)[1:])),
    ]
    return sample.verification(files=tuple(reports), findings=tuple(about(path, words)), root="/d")


def plan(path: str, words: str) -> LoadPlan:
    lost = sample.checkpoint(path=path, step=None, epoch=None)
    load = sample.load(0, path=path, reason=words, node=words, role="model", substituted=True)
    return sample.plan(
        checkpoint=sample.checkpoint(path=path),
        by_rank=(RankLoad(0, (load,)),),
        shared=(load,),
        rejected=(Rejected(lost, tuple(about(path, words))),),
        warnings=tuple(about("", words)),
        root="/d",
    )


def failure(path: str, words: str) -> Failure:
    return Failure("plan", "none-usable", words, words, 4, replace(plan(path, words), checkpoint=None))


def documents(path: str, words: str) -> list[registry.Document]:
    alone = Failure("verify", "cannot-look", words, "", 5)
    return [verification(path, words), plan(path, words), failure(path, words), alone]


def check(name: str, document: registry.Document, text: str) -> None:
    """What holds of any document; JUnit is of verify alone."""
    if name == "junit" and isinstance(document, LoadPlan):
        assert not text
        return
    assert text.endswith("\n")
    assert "\x1b" not in text and text.encode()
    reader = read.rows if name == "csv" else getattr(read, name)
    reader(text)


NAMES = st.text(st.characters(codec=None, exclude_characters="\x00"), min_size=1, max_size=30)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MACHINES)
@given(path=NAMES, words=NAMES)
@settings(max_examples=20)
def test_no_name_and_no_message_breaks_a_format(name: str, path: str, words: str) -> None:
    for document in documents(f"/d/{path}", words):
        check(name, document, shown(name, document))


@pytest.mark.share(2)
@pytest.mark.parametrize("path", HOSTILE, ids=ascii)
def test_hostile_names(path: str) -> None:
    for name in MACHINES:
        for document in documents(path, path):
            for verbose in (False, True):
                check(name, document, shown(name, document, verbose=verbose))


def test_junit_has_a_case_for_each_file_and_says_what_is_wrong() -> None:
    [good, bad, across] = read.junit(shown("junit", sample.verification()))
    assert good.get("name") == "out/rank_0/net-3_40.ckpt" and len(good) == 0
    assert bad.get("name") == printable(sample.NASTY.removeprefix("/data/"))
    assert bad[0].tag == "failure" and bad[0].get("type") == "truncated" and "at byte 12" in bad[0].text
    assert across.get("name") == "out" and across[0].get("type") == "missing-rank"
    suspect = verification("/d/x", "w")
    lax, strict = (read.junit(shown("junit", suspect, warnings_fail=fail)) for fail in (False, True))
    assert lax.findall("testcase/error[@type='unreadable']")
    assert (lax.get("failures"), strict.get("failures")) == ("1", "2")


def test_nothing_is_no_success() -> None:
    empty = Verification("/d", Verdict.OK, sample.verification().level, Summary())
    assert read.junit(shown("junit", empty)).get("errors") == "1"
    assert read.github(shown("github", empty))[0][0] == "error"


def test_what_was_not_looked_at_is_an_error_whatever_its_severity(asker: Asker, tmp_path: Path) -> None:
    plain(tmp_path)
    (tmp_path / "notes").mkdir()
    for paths, code in ((["notes"], 3), (["run", "notes"], 5)):
        got, out, _ = asker.execute("verify", *paths, "--format", "junit")
        assert got == code and read.junit(out).get("errors") == "1"
        _, out, _ = asker.execute("verify", *paths, "--format", "github")
        assert "error" in [level for level, *_ in read.github(out)]


def test_sarif_names_files_by_their_bytes_and_says_that_there_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    here = f"{tmp_path}/a b/\udcff:x.pt"
    for path in (sample.NASTY, here):
        run = read.sarif(shown("sarif", verification(path, "w")))
        home = run["originalUriBaseIds"]["%SRCROOT%"]["uri"].removeprefix("file://").rstrip("/")
        assert os.fsencode(path) in {read.file_of(r, os.fsencode(home)) for r in run["results"]}
        places = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in run["results"]]
        assert all("uriBaseId" in place for place in places) == (path == here)
    levels = [r["level"] for r in run["results"]]
    assert levels == sorted(levels) and set(levels) == {"error", "warning"}
    verbose = read.sarif(shown("sarif", verification(here, "w"), verbose=True))
    assert "note" in {r["level"] for r in verbose["results"]}
    assert run["results"][0]["properties"] == {"offset": 7}
    prints = {r["partialFingerprints"]["ckptFinding/v1"] for r in run["results"]}
    told = {(r["ruleId"], str(r["locations"]), str(r.get("properties"))) for r in run["results"]}
    assert len(prints) == len(told)
    [said] = read.sarif(shown("sarif", failure("/d/x", "why")))["invocations"]
    assert (said["executionSuccessful"], said["exitCode"]) == (False, 4)
    assert said["toolExecutionNotifications"][0]["descriptor"] == {"id": "none-usable"}


@pytest.mark.exhaustive
def test_many_findings_are_bounded_and_what_is_left_out_is_said() -> None:
    """100,000 of them: what a site refuses is not sent; what is meant for programs has all."""
    found = tuple(finding("crc-mismatch", f"m{i}", path=f"/d/{i}") for i in range(100_000))
    many = sample.verification(findings=found, files=())
    [run] = json.loads(shown("sarif", many))["runs"]
    assert len(run["results"]) == 25_000
    assert "75,000 more" in run["invocations"][0]["toolExecutionNotifications"][1]["message"]["text"]
    for name in ("github", "markdown"):
        text = shown(name, many)
        assert len(text) < 20_000 and "99,950 more findings" in text
    assert len(shown("csv", many).splitlines()) == 100_001


def test_github_annotations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands = read.github(shown("github", verification("/d/a\nb,c:d%e", "50 % off: a, b")))
    level, properties, message = commands[0]
    assert (level, properties) == ("error", {"file": "/d/a\nb,c:d%e", "title": "ckpt: crc-mismatch"})
    assert message.startswith("50 % off: a, b (at byte 7). ")
    assert {c[0] for c in commands} == {"error"}  # what is unreadable is no good news
    assert {c[0] for c in read.github(shown("github", sample.plan()))} == {"error", "warning"}
    assert "notice" in {c[0] for c in read.github(shown("github", verification("/d/a", "b"), verbose=True))}
    assert read.github(shown("github", failure("/d/x", "why")))[-1][::2] == ("error", "why. why")
    monkeypatch.chdir(tmp_path)  # paths are those of the repository
    text = shown("github", verification(f"{tmp_path}/runs/a.pt", "w"))
    assert read.github(text)[0][1]["file"] == "runs/a.pt"


def test_markdown_shows_every_name_as_it_is() -> None:
    for path in HOSTILE:
        tables = read.markdown(shown("markdown", verification(path, path)))
        cell = printable(path.removeprefix("/d/")).strip()
        assert cell in [c.replace("\u200b", "") for row in tables[0] for c in row]
        assert all(cell in row[3].replace("\u200b", "") for row in tables[0][1:])


def test_csv_comes_back_from_the_csv_module() -> None:
    for path in HOSTILE:
        [first, *_] = read.rows(shown("csv", verification(path, "=1+1")))
        told = (printable(path), "'=1+1", "7", "crc-mismatch unreadable")
        assert tuple(first[name] for name in ("path", "message", "offset", "codes")) == told
    planned = read.rows(shown("csv", sample.plan()))
    outcomes = [("", "load"), ("0", "load"), ("1", "load"), ("", "rejected")]
    assert [(r["rank"], r["outcome"]) for r in planned] == outcomes
    assert planned[2]["substituted"] == "true" and planned[3]["codes"] == "missing-rank"


@pytest.mark.parametrize("name", MACHINES)
def test_a_failure_is_told_in_the_format_that_was_asked_for(asker: Asker, tmp_path: Path, name: str) -> None:
    lost(tmp_path)
    failing = {"verify nowhere": 5, "verify run --level none": 2, "plan run": 4, "plan nowhere": 5, "verify run --jobs no": 2}  # fmt: skip
    for line, code in failing.items():
        if name == "junit" and line.startswith("plan"):
            continue
        got, out, err = asker.execute(*line.split(), "--format", name)
        assert got == code and ("hint: " in err or "Usage" in err)
        check(name, sample.verification(), out)
    assert name != "junit" or read.junit(out).get("errors") == "1"


def test_a_missing_package_is_said_before_anything_is_read() -> None:
    renders = {"plan": "nowhere.at.all:render"}
    page = registry.Output("page", "t", renders, needs="nowhere_at_all", extra="page")
    with pytest.raises(UsageError, match="needs nowhere_at_all") as e:
        page.require()
    assert e.value.hint == "pip install 'ckpt-tools[page]'"
    own = registry.Output("own", "t", {"plan": lambda d, v: f"{d.root} {v.now}\n"})
    assert own.render(sample.plan()) == "/data 0.0\n"


PAGE = (DOCS / "machines.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.share(6)
@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_the_page_runs(block: str, tmp_path: Path) -> None:
    megatron(tmp_path / "run")
    env = {"PATH": f"{warm.commands()}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": f"{tmp_path}/summary.md"}
    env |= {**CLEAN, "CKPT_CACHE_DIR": os.environ["CKPT_CACHE_DIR"]} | env
    done = subprocess.run(["sh", "-euc", block], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    readers = {
        ".xml": read.junit,
        ".sarif": read.sarif,
        ".csv": read.rows,
        ".md": read.markdown,
    }
    for made in tmp_path.iterdir():
        assert made.suffix not in readers or len(readers[made.suffix](made.read_text()))


def test_the_page_lists_the_formats() -> None:
    rows = " ".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))
    assert {o.name for o in registry.OUTPUTS} - {"table"} | set(FIELDS) == set(
        re.findall(r"`([a-z_]+)`", rows)
    )
