"""Results become text: valid, complete, lossless for programs and harmless for terminals."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
import sample_results as sample
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt_tools.cli import latest
from ckpt_tools.errors import UsageError
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.plan import RankLoad, Resume
from ckpt_tools.model.report import Tensor
from ckpt_tools.output import contents, jsonl, shell, verification
from ckpt_tools.output import json as emit_json
from ckpt_tools.output import plan as plan_table
from ckpt_tools.output import scan as scan_table
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.page import View
from ckpt_tools.output.words import percent, printable, size, span

UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


def test_json_keeps_every_file_name_and_numbers_that_it_has_not():
    file = json.loads(emit_json.render(sample.verification()))["files"][1]
    assert file["path"] == sample.NASTY
    assert os.fsencode(file["path"]).endswith(b"\xff\xe2\x80\xaetp.tar")
    assert file["metadata"] == {"loss": "NaN", "lr": "-Infinity", "big": hex(1 << 5000)}


def test_json_paths_are_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    value = json.loads(emit_json.render(replace(sample.plan(), root=".", resume=Resume("out"))))
    assert value["resume"]["path"] == str(tmp_path / "out") and os.path.isabs(value["root"])


def test_jsonl_ends_in_its_summary():
    lines = [json.loads(line) for line in jsonl.render(sample.verification()).splitlines()]
    assert [line["type"] for line in lines] == ["file", "file", "finding", "summary"]
    assert lines[-1]["summary"]["broken"] == 1


def test_text_refuses_a_path_that_cannot_be_read_back():
    plan = replace(sample.plan(), by_rank=(RankLoad(0, (sample.load(0, path="/data/a\nb"),)),))
    with pytest.raises(UsageError, match="line break"):
        latest.list_paths(plan)
    assert latest.list_paths(plan, terminal=True).endswith("/data/a\\x0ab\n")


def _eval(script: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-c", os.fsencode(script)], capture_output=True, check=False)


@pytest.mark.parametrize(
    "path", ["/data/a b", "/data/$(touch x)`id`", "/data/it's", "/data/a\nb", sample.NASTY]
)
def test_shell_exports_survive_eval(path):
    line = shell.render(replace(sample.plan(), resume=Resume(path)))
    told = " ".join(f'"$CKPT_{name}"' for name in ("PATH", "STEP", "EPOCH", "STEP_IN_EPOCH", "RESUME"))
    seen = _eval(f'CKPT_STEP=old; {line}printf "%s|%s|%s|%s|%s" {told}')
    assert (seen.stdout, seen.stderr) == (os.fsencode(f"{path}|120|3|40|1"), b"")


def test_shell_exports_empty_what_is_unknown():
    empty = "export CKPT_PATH= CKPT_STEP= CKPT_EPOCH= CKPT_STEP_IN_EPOCH= CKPT_RESUME=0 CKPT_ARGS=\n"
    assert shell.render(sample.empty_plan()) == empty


def test_shell_tells_the_only_path_of_a_single_rank():
    plan = replace(sample.plan(), resume=Resume(None), by_rank=sample.plan().by_rank[1:])
    assert "CKPT_PATH=/data/out/rank_0/net-3_40.ckpt " in shell.render(plan)


def test_shell_exports_only_names_that_are_names():
    plan = replace(sample.plan(), resume=Resume("/x", env={"A_1": "b c", "x; id": "1"}))
    assert shell.render(plan).endswith("CKPT_RESUME=1 CKPT_ARGS= A_1='b c'\n")


def test_shell_failure_reaches_the_caller_of_eval():
    line = shell.render(Failure("plan", "none-usable", "m", "h", 4))
    assert _eval(f"eval '{line}'").returncode == 4
    assert _eval(f"set -e; eval '{line}'; echo alive").stdout == b""


TABLES = {
    "verify": (verification.render, sample.verification()),
    "plan": (plan_table.render, sample.plan()),
    "none": (plan_table.render, sample.empty_plan()),
    "none usable": (plan_table.render, replace(sample.plan(), checkpoint=None)),
    "scan": (scan_table.render, sample.scan()),
    "nothing": (scan_table.render, sample.scan(checkpoints=(), findings=())),
}


@pytest.mark.parametrize(("render", "result"), TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("width", [None, 40, 120])
def test_tables_print_nothing_that_steers_a_terminal(render, result, width):
    out = render(result, View(width=width))
    assert not UNSAFE.search(out)
    assert out.strip()
    assert all(line == line.rstrip() for line in out.splitlines())


def test_scan_table_columns():
    lines = scan_table.render(sample.scan(), View(now=1_000_000_000.5 + 7200)).splitlines()
    assert " ".join(lines[0].split()) == "step epoch kind layout run ranks files size age restart path"
    assert " ".join(lines[1].split()) == "120 3_40 periodic mindspore out/ckpt 2/4 2 2.0 KiB 2 h 2 out"
    assert "unfinished" in lines[2]


def test_show_names_tensors_and_globals():
    tensors, named = [Tensor("w\x1b", "f32", (2, 3), 24, 64, "0")], ["os system", "collections OrderedDict"]
    anatomy = Anatomy(tensors=tensors, globals=named)
    trust = {"os system": "dangerous", "collections OrderedDict": "allowed"}
    report = sample.report("/data/x.pt", Verdict.SUSPECT, signature="ff")
    out = contents.render(report, anatomy, trust)
    assert all(words in out for words in ("w\\x1b", "2×3", "dangerous"))
    value = json.loads(emit_json.render_file(report, anatomy, trust))
    told = {"name": "w\x1b", "dtype": "f32", "shape": [2, 3], "nbytes": 24, "offset": 64, "storage": "0"}
    assert value["tensors"] == [told]
    assert value["globals"][0] == {"name": "os system", "trust": "dangerous"}


@given(st.text())
def test_printable_is_harmless_for_any_text(value):
    assert not UNSAFE.search(printable(value).replace("\n", ""))


@given(st.binary())
def test_json_strings_are_lossless_for_any_file_name(name):
    assert os.fsencode(json.loads(emit_json.line(os.fsdecode(name)))) == name


def test_words():
    sizes = "? / 0 B / 1023 B / 1.0 KiB / 150 KiB / 3.0 GiB / 4096.0 PiB"
    assert " / ".join(size(n) for n in (-1, 0, 1023, 1024, 150 * 1024, 3 << 30, 1 << 62)) == sizes
    assert [span(s) for s in (-5, 99, 600, 7200, 86400 * 9)] == ["-5 s", "99 s", "10 min", "2 h", "9 d"]
    assert [percent(f) for f in (0, 0.001, 0.5, 0.9999, 1)] == ["0 %", "<1 %", "50 %", ">99 %", "100 %"]
