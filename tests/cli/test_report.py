"""``ckpt report``: what its document says, that its file is whole or not there, and that nothing in it is run or fetched
which is not its own. Lists of ranks, places, files and runs are told in full, in text and in JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sample_results as sample
import synthetic_reports
from examples import examples
from fixture_trees import overwrite, tree_of
from hypothesis import given
from hypothesis import strategies as st
from in_process import started
from msgspec.structs import replace
from one_question import Asker
from places import FIXTURES, PACKAGE
from run_helpers import broken, megatron

from ckpt_tools.api import plan, verify
from ckpt_tools.discovery import completeness
from ckpt_tools.findings import finding
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.layouts.common.saved_by import Topology
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import LoadPlan, Rejected, Resume
from ckpt_tools.model.report import Guard, Region, Stats
from ckpt_tools.model.selection import Selection
from ckpt_tools.output import json as emit_json
from ckpt_tools.output import plan as table
from ckpt_tools.output.page import View
from ckpt_tools.output.report import data, page
from ckpt_tools.output.report.advice import Gathered, Start
from ckpt_tools.planning.assign import Groups, assign
from ckpt_tools.planning.engine import find_gaps
from ckpt_tools.planning.facts import Evidence, Tensors

HOME = PACKAGE / "output/report"
MEGABYTES = 1_000_000


def report(asker: Asker, *words: object) -> dict[str, Any]:
    return dict(json.loads(asker.execute("report", *words, "--json")[1]))


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, text: str) -> None:
        if self.found and self.found[-1][1].get("id") == "data" and not self.data:
            self.data = text

    @property
    def policy(self) -> str:
        metas = (attrs for tag, attrs in self.found if tag == "meta")
        return next(str(m["content"]) for m in metas if m.get("http-equiv") == "Content-Security-Policy")


@pytest.mark.slow
def test_it_says_what_verify_and_plan_say(asker: Asker) -> None:
    demo = FIXTURES / "demo"
    verified = json.loads(asker.execute("verify", demo, "--json", "--no-cache")[1])
    planned = json.loads(asker.execute("plan", demo, "--json", "--order", "step")[1])
    said = report(asker, demo, "--order", "step", "--no-cache")
    assert said["exit_code"] == 1 and said["verdict"] == verified["verdict"]
    assert said["files"]["path"] == [f["path"] for f in verified["files"]]
    assert said["files"]["verdict"] == [f["verdict"] for f in verified["files"]]
    start = said["starts"][0]
    assert start["resume_step"] == planned["resume_step"] and start["arguments"] == planned["resume"]["args"]
    by_step = {c["step"]: c for c in said["checkpoints"]}
    assert by_step[10]["outcome"] == "chosen" and by_step[20]["outcome"] == "rejected"
    assert said["next"]["sentence"].startswith("Resume from step 10. Step 20 was skipped: ")
    assert {f["code"] for f in by_step[20]["findings"]} == {"crc-mismatch", "truncated"}


@pytest.mark.slow
def test_of_two_copies_the_one_that_is_loaded_is_named(asker: Asker, tmp_path: Path) -> None:
    root = tree_of("lightning/steps", tmp_path)
    broken, whole = root / "epoch=1-step=16.ckpt", root / "last.ckpt"
    overwrite(broken, broken.read_bytes()[:-200], 0)
    made = report(asker, root)
    (start,) = made["starts"]
    assert start["path"] == made["checkpoints"][start["checkpoint"]]["path"] == str(whole)
    assert "(last.ckpt)" in start["sentence"] == made["next"]["sentence"]


def test_a_tracker_and_its_truth(asker: Asker, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    for says, codes in ((30, []), (20, ["stale-tracker"]), (999, ["dangling-tracker"])):
        (root / "latest_checkpointed_iteration.txt").write_text(f"{says}")
        (told,) = report(asker, root)["trackers"]
        assert told["says"] == says and [f["code"] for f in told["findings"]] == codes
        assert (told["checkpoint"] is None) is (says == 999)


@pytest.mark.slow
def test_each_run_has_an_answer(asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    for name in ("a", "b"):
        megatron(runs / name)
    for step in (10, 20):
        broken(runs / "b", step)
    said = report(asker, runs)
    starts = [(s["run"], s["resume_step"], s["verdict"]) for s in said["starts"]]
    assert starts == [("a", 20, "ok"), ("b", None, "broken")] and said["starts_omitted"] == 0
    assert said["next"]["verdict"] == "broken"
    assert said["next"]["sentence"].startswith("1 of 2 runs can resume. Look at b")
    for command in said["next"]["commands"]:
        assert asker.execute(*command["command"].split()[1:])[0] in (0, 1, 4)
    monkeypatch.setattr("ckpt_tools.cli.report.RUNS", 1)
    said = report(asker, runs)  # those that nobody asked about are counted
    assert ([s["run"] for s in said["starts"]], said["starts_omitted"]) == (["a"], 1)


@pytest.mark.slow
def test_rollbacks_and_gaps(asker: Asker, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30, 40, 50, 60), tracker=False)
    when = {10: 0, 20: 100, 40: 200, 30: 300, 50: 400, 60: 1400}
    for step, at in when.items():
        for path in root.rglob(f"iter_{step:07d}/*/*.pt"):
            os.utime(path, (1_700_000_000 + at,) * 2)
    said = report(asker, root)
    steps = [c["step"] for c in said["checkpoints"]]
    (back,), (gap,) = said["timeline"]["rollbacks"], said["timeline"]["gaps"]
    assert (steps[back["from"]], steps[back["to"]], back["steps"]) == (40, 30, 10)
    assert (steps[gap["from"]], steps[gap["to"]], gap["seconds"]) == (50, 60, 1000)


@pytest.mark.slow
def test_a_report_of_nothing_is_a_whole_one(asker: Asker, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for name in ("none.html", "unknown.html"):
        assert asker.execute("report", "notes", "-o", name)[0] == 3
        text = (tmp_path / name).read_text()
        said = json.loads(Elements(text).data)
        assert text.rstrip().endswith("</html>")
        assert said["checkpoints"] == [] and said["next"]["verdict"] == "unknown"
        (tmp_path / "notes/readme.txt").write_text("x")
    assert "recognised in 1 file" in said["next"]["sentence"]


@pytest.mark.slow
def test_a_pipe_gets_it_as_it_is_and_without_jinja_it_says_what_to_install(
    asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    megatron(tmp_path / "run")
    code, out, _ = asker.execute("report", "run", "-o", "-")
    assert code == 0 and out.startswith("<!doctype html>") and out.rstrip().endswith("</html>")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    code, _, err = asker.execute("report", "run", "-o", "r.html")
    assert code == 2 and "ckpt-tools[report]" in err and not (tmp_path / "r.html").exists()
    assert asker.execute("report", "run", "--json")[0] == 0  # that needs none


@pytest.mark.slow
def test_the_worst_of_a_large_job_is_a_bounded_page() -> None:
    """Every file is damaged in many places and has many tensors."""
    good = synthetic_reports.gathered(ranks=512, saves=10, broken=())
    words, what = "archive/data/{}: CRC-32 df808ef4, stored 7111c588", "archive/data/{} of a torch archive"
    found = tuple(finding("crc-mismatch", words.format(i), offset=i) for i in range(20))
    regions = tuple(Region(i * 9_000_000, 9_000_000, what.format(i), Guard.CHECKSUM) for i in range(160))
    counts, bars = (9**9, 1, 0, 0, 0, 0, -0.12345678, 0.12345678), tuple((p, 12345) for p in range(-30, 34))
    names = [f"model.layers.{i}.mlp.dense_h_to_4h.weight" for i in range(2)]
    stats = tuple(Stats(name, "bfloat16", *counts, bars) for name in names)
    told = {"verdict": data.Verdict.BROKEN, "findings": found, "regions": regions, "stats": stats}
    assert good.verification
    entries = tuple(replace(f, report=replace(f.report, **told)) for f in good.verification.files)
    worst = replace(good.verification, files=entries, verdict=data.Verdict.BROKEN)
    said = data.document(replace(good, verification=worst))
    lengths = (len(said["findings"]), len(said["damage"]), len(said["tensors"]["listed"]))
    assert lengths == (data.FINDINGS, data.STRIPS, data.TENSORS)
    assert sum(c["count"] for c in said["codes"]) == 20 * len(entries)
    assert len(page.render(said)) < 5 * MEGABYTES - 16 * 80_000  # as much room as so many more files take


def test_a_map_of_many_ranges_is_bounded_and_tiles_the_file() -> None:
    regions = tuple(Region(i * 10, 10, f"tensor {i}", Guard.CHECKSUM) for i in range(5_000))
    joined = data._join_regions(regions, 50_000)
    assert len(joined) <= data.REGIONS
    assert [r.offset for r in joined[1:]] == [r.offset + r.length for r in joined[:-1]]
    assert joined[0].offset == 0 and joined[-1].offset + joined[-1].length == 50_000


NASTY = [
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "<!--",
    "a\nb\tc", "\u202egnp.exe", "\udcff\udc80", "{{ 7*7 }}", "'; alert(1); '", "]]>", "\u2028\x00\x1b[2J",
]  # fmt: skip


def hostile(name: str) -> Gathered:
    """A report whose every text is this name."""
    path = f"/data/{name}"
    bad = sample.report(path, data.Verdict.BROKEN, finding("truncated", name, offset=3), format="torch_zip")
    given = sample.verification(findings=(finding("missing-rank", name, path=path),))
    files = (replace(given.files[0], report=bad), replace(given.files[1], report=bad))
    error = page.UsageError(name, name)
    return Gathered((path,), 0.0, replace(given, files=files), (), (Start(path, name, None, error),))


@pytest.mark.slow
@given(st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=()), max_size=30)))
def test_no_name_is_markup(name: str) -> None:
    made = page.render(data.document(hostile(name)))
    plain = page.render(data.document(hostile("name")))
    made.encode()  # whatever the bytes of a name
    parsed, usual = Elements(made), Elements(plain)
    assert [tag for tag, _ in parsed.found] == [tag for tag, _ in usual.found]
    assert json.loads(parsed.data)["starts"][0]["run"] == name
    assert parsed.policy == usual.policy


@pytest.mark.slow
def test_only_its_own_scripts_run_and_nothing_is_fetched() -> None:
    text = page.render(data.document(synthetic_reports.gathered(ranks=4, saves=3)))
    parsed = Elements(text)
    assert "default-src 'none'" in parsed.policy
    assert "unsafe" not in parsed.policy and "http" not in parsed.policy
    bodies = re.findall(r"<(script|style)>(.*?)</\1>", text, re.DOTALL)
    assert len(bodies) == 3
    for _, body in bodies:
        assert f"'sha256-{b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" in parsed.policy
    for tag, attrs in parsed.found:
        assert not {"src", "srcset", "style", "onclick", "onload"} & set(attrs), (tag, attrs)
        assert not str(attrs.get("href") or "#").startswith(("http", "//")), (tag, attrs)


def test_the_library_is_the_one_that_was_published() -> None:
    told = json.loads((HOME / "vendor/vendored.json").read_text())
    there = {p.name for p in (HOME / "vendor").iterdir()}
    assert there == {"vendored.json", Path(told["file"]).name, *told["licence_files"]}
    body = (HOME / page.LIBRARY).read_bytes()
    assert hashlib.sha256(body).hexdigest() == told["sha256"]
    assert b"\r" not in body and b"</script" not in body.lower()
    assert f'version="{told["version"]}"'.encode() in body
    assert "Apache License" in (HOME / "vendor/LICENSE-echarts").read_text()


def test_files_take_little_room() -> None:
    of = [data.document(synthetic_reports.gathered(ranks, 10, ())) for ranks in (128, 1024)]
    few, many = (len(page.render(document).encode()) for document in of)
    assert many - few < 20 * 896 * 10  # twenty bytes for each further file


def test_notes_do_not_fill_a_report() -> None:
    note = finding("not-checksummed", "no checksum", path="/x", severity=Severity.NOTE)
    said = data.document(Gathered(("/data",), 0.0, sample.verification(findings=(note,) * 100)))
    assert all(f["severity"] != "note" for f in said["findings"])
    assert sum(c["count"] for c in said["codes"] if c["code"] == "not-checksummed") == 100


WORLD = 1024
_LIST = re.compile(r"\brank (\d+)|[\d,]+ of 1,024 ranks: ([\d–, ]*\d)|ranks ([\d–, ]*\d) \([\d,]+ of 1,024\)")


def ranks_in(text: str) -> set[int]:
    """What a person reads: all ranks that the first list of ranks in a text names."""
    m = _LIST.search(text)
    assert m is not None, text
    pairs = [piece.split("–") for piece in (m[1] or m[2] or m[3]).split(", ")]
    return {n for pair in pairs for n in range(int(pair[0]), int(pair[-1]) + 1)}


def save(ranks: set[int], step: int = 10) -> Checkpoint:
    made = partial(Part, layout="mindspore", piece="model_rank", role="model", run="run", base="/r")
    parts = [made(f"/r/rank_{r}/net-1_{step}.ckpt", step=step, rank=r) for r in sorted(ranks)]
    return Checkpoint("mindspore", "run", Kind.PERIODIC, tuple(parts), "/r", step, step)


def answers(c: Checkpoint, findings: list[Finding]) -> Iterator[set[int]]:
    """The ranks that every form of an answer tells."""
    made = LoadPlan("/r", None, Resume(None), rejected=(Rejected(c, tuple(findings)),), candidates=(c,))
    for view in (View(), View(width=200), View(verbose=True)):
        text = table.render(made, view)
        yield ranks_in(" ".join(text.partition("Skipped: ")[2].split()))
    (lost,) = json.loads(emit_json.render(made))["rejected"][0]["findings"]
    yield {n for first, last in lost["ranks"] for n in range(first, last + 1)}
    (sent,) = msgspec.json.decode(msgspec.json.encode(findings))
    assert msgspec.convert(sent, Finding) == findings[0]


COUNT = st.integers(1, WORLD - 1)
MISSING = st.one_of(
    st.sets(st.integers(0, WORLD - 1), min_size=1, max_size=WORLD - 1),
    st.builds(
        lambda a, n, step: {*range(WORLD)[a : a + n : step]}, st.integers(0, 1000), COUNT, st.integers(1, 3)
    ),
)
EXAMPLES = examples(20)


@pytest.mark.slow
@EXAMPLES
@given(MISSING)
def test_ranks_without_a_file_are_all_told(missing: set[int]) -> None:
    everyone, c = set(range(WORLD)), save(set(range(WORLD)) - missing, 20)
    findings = find_gaps(c, completeness.expect_sizes([save(everyone), c], BUILT_IN, WORLD))
    assert list(answers(c, findings)) == [missing] * 4
    silent = Evidence(lambda p: Tensors(""), lambda r, p: None)
    planned = assign(c, Groups(Topology(WORLD), Selection()), {}, silent).findings
    assert list(answers(c, planned)) == [missing] * 4


def unfolded(text: str) -> Iterator[str]:
    for name in re.findall(r"(?:[^,{ ]|\{[^}]*\})+", text):
        m = re.fullmatch(r"(.*)\{(.*)\}(.*)", name)
        if m is None:
            yield name
        for piece in m[2].split(", ") if m else ():
            first, _, last = piece.partition("–")
            width = len(first) if first.startswith("0") and first != "0" else 0
            for n in range(int(first), int(last or first) + 1):
                yield f"{m[1]}{n:0{width}}{m[3]}"


NAMES = st.one_of(
    st.from_regex(r"[a-c_]{0,2}[0-9]{0,3}[a-c.-]{0,2}[0-9]{0,3}", fullmatch=True).filter(bool),
    st.builds("__{}_{}.distcp".format, st.integers(0, 40), st.integers(0, 2)),
    st.builds("model-{:05d}-of-{:05d}.safetensors".format, st.integers(0, 40), st.integers(9, 11)),
)


@pytest.mark.slow
@examples(200)
@given(st.sets(NAMES, max_size=60))
def test_folded_names_are_the_names(names: set[str]) -> None:
    assert set(unfolded(ranges.names(names))) == names


@EXAMPLES
@given(st.sets(st.sampled_from(list(product(range(3), range(9)))), min_size=1))
def test_places_are_all_told(lost: set[tuple[int, int]]) -> None:
    read = set()
    for place in ranges.places((("tp", t), ("pp", p)) for t, p in lost).split(", "):
        m = re.fullmatch(r"tp=(\d+) pp=(.+)", place)
        assert m is not None
        pairs = [piece.split("–") for piece in m[2].split(",")]
        read |= {(int(m[1]), n) for pair in pairs for n in range(int(pair[0]), int(pair[-1]) + 1)}
    assert read == lost


def test_files_that_an_index_misses_are_all_told(tmp_path: Path) -> None:
    shards = [f"model-{i:05d}-of-00100.safetensors" for i in range(1, 101)]
    index = {"metadata": {"total_size": 0}, "weight_map": {f"w{i}": name for i, name in enumerate(shards)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = [f for r in verify(str(tmp_path)).files for f in r.report.findings]
    said = " ".join(f.message for f in found if f.code == "missing-part")
    quoted = set(re.findall(r"'(.*?)'", said))
    assert quoted | set(unfolded(said.rpartition(": ")[2])) == set(shards)


@pytest.mark.slow
def test_one_line_for_each_damaged_file_and_one_for_what_follows(tmp_path: Path) -> None:
    """And in that of ``ckpt run`` the count."""
    root = megatron(tmp_path / "run", world=8)
    for rank in (1, 2, 3, 6):
        broken(root, 20, rank)
    made = plan(str(root), Selection(order="step"))
    (lost,) = made.rejected
    # causes first, in JSON as well
    assert [f.code for f in lost.findings] == ["truncated"] * 4 + ["missing-rank"]
    lines = table.render(made).splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 4
    (follows,) = [line for line in lines if line.startswith("so ")]
    assert "ranks 1–3, 6 (4 of 8) have no good model file" in follows
    assert not any("missing-rank" in line for line in lines)
    said = started([root, "--plan-dir", tmp_path / "plans", "--order", "step"], ["train", "{ckpt.args}"]).said
    (line,) = [line for line in said.splitlines() if "step 20 was skipped (" in line]
    assert "ranks 1–3 and 6 have no good copy; " in line and "truncated" in line


def test_every_run_is_named() -> None:
    for count in (2, 17, 300):
        text = completeness.list_runs(("megatron", f"exp/run-{i}") for i in range(count))
        names = set(unfolded(text.partition(": ")[2].replace(" (layout megatron)", "")))
        assert names == {f"exp/run-{i}" for i in range(count)}
