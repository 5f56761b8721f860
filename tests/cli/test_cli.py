"""The command line: exit codes, which stream gets what, formats, ``-o FILE``, in which the answer is as a whole or not at
all, and ``ckpt ls``. What the stages really find is tested elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import machine_readers as read
import pytest
import sample_results as sample
from in_process import run
from msgspec.structs import replace
from one_question import Asker
from places import FIXTURES
from run_helpers import broken
from small_files import mindspore
from small_runs import FILE, lost, plain
from timed import lay

import ckpt_tools
from ckpt_tools import __version__, api, scan
from ckpt_tools.cli import console, dispatch
from ckpt_tools.cli.app import COMMANDS, command
from ckpt_tools.cli.ls import read_time
from ckpt_tools.errors import CannotLook
from ckpt_tools.findings import finding
from ckpt_tools.model.answers import Summary
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.plan import RankLoad
from ckpt_tools.output.page import FEW, View
from ckpt_tools.output.scan import draw
from ckpt_tools.storage.writes import check_writable, write_whole

PRINTING = ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("CKPT_") and k not in PRINTING}


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def answer(monkeypatch):
    """Make a function of the pipeline return what is given; what it was called with is in the list that comes back."""

    def install(name, result, **raising):
        stub = Mock(return_value=result, **raising)
        monkeypatch.setattr(api, name, stub)
        return stub.call_args_list

    return install


def ckpt(*argv, **env):
    line = [sys.executable, "-m", "ckpt_tools", *argv]
    return subprocess.run(line, capture_output=True, env=CLEAN | env, timeout=1000)


def verified(verdict=Verdict.OK, files=2, ok=2, suspect=0, broken=0, unknown=0, below=0, findings=()):
    return sample.verification(
        verdict=verdict,
        findings=findings,
        files=(),
        summary=Summary(files, 2, 2, 0.1, ok, suspect, broken, unknown, below, 0),
    )


LOST = finding("missing-rank", "rank 1 has no file", path="/data")
BLIND = finding("unreadable", "Permission denied", path="/data")
STALE = finding("stale-tracker", "names step 5", path="/data")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("result", "plain", "strict"),
    [
        (verified(), 0, 0), (verified(Verdict.SUSPECT, suspect=1), 0, 1), (verified(Verdict.BROKEN, broken=1), 1, 1),
        (verified(Verdict.UNKNOWN, unknown=1, broken=1), 5, 5), (verified(below=1), 0, 5),
        (verified(Verdict.BROKEN, broken=1, below=1), 1, 5), (verified(files=0, ok=0), 3, 3),
        (verified(Verdict.UNKNOWN, files=0, ok=0), 3, 3),
        (verified(Verdict.UNKNOWN, files=0, ok=0, findings=(BLIND,)), 5, 5), (verified(findings=(LOST,)), 1, 1),
        (verified(Verdict.SUSPECT, findings=(STALE,)), 0, 1),
    ],
)  # fmt: skip
def test_verify_exit_codes(answer, result, plain, strict):
    calls = answer("verify", result)
    for form in ((), ("--json",), ("--format", "jsonl")):
        assert run("verify", "x", *form)[::2] == (plain, "")
        assert run("verify", *form, "--strict", "--", "-x")[::2] == (strict, "")
    assert [given[0] for given, _ in calls] == [["x"], ["-x"]] * 3


NARROW = replace(sample.plan(), shared=(), by_rank=sample.plan().by_rank[:1], rejected=(), warnings=())


def test_latest_prints_the_path_and_nothing_else(answer, monkeypatch):
    calls = answer("latest", NARROW)
    assert run("latest", "/data", "--rank", "0") == (0, "/data/out/rank_0/net-3_40.ckpt\n", "")
    monkeypatch.setenv("RANK", "x")  # variables of launchers are no settings
    monkeypatch.setenv("WORLD_SIZE", "y")
    assert run("latest")[0] == 0
    assert calls[0][0][0] == "/data" and [given[1].rank for given, _ in calls] == [0, None]


def test_latest_prints_names_as_the_bytes_they_are(answer):
    answer("latest", replace(NARROW, by_rank=(RankLoad(0, (sample.load(0, path=sample.NASTY),)),)))
    assert run("latest", "--rank", "0")[1] == f"{sample.NASTY}\n"


def test_what_led_to_the_answer_goes_to_stderr(answer):
    answer("latest", sample.plan())
    _, out, err = run("latest")
    assert out.count("\n") == 2
    assert "ckpt: warning: step 160 was skipped (/data/gasp): " in err
    assert "ckpt: warning: world-size-inferred: 2 from the highest rank\nhint: " in err
    assert run("latest", "-q")[2] == ""


def test_explain():
    assert run("explain", "truncated")[1].startswith("truncated: ")
    for word, meant in (("trucated", "truncated"), ("save/missing-ranks", "save/missing-rank")):
        code, out, err = run("explain", word)
        assert (code, out) == (2, "") and f"did you mean '{meant}'?" in err
    assert "rules      save/missing-part" in run("explain", "missing-part")[1]
    page = run("explain", "save/missing-rank")[1]
    assert page.startswith("save/missing-rank\n")
    says = ("effect     reject", "--world-size N", "codes      missing-rank", "For: ")
    assert all(word in page for word in says)
    told = json.loads(run("explain", "choice/tracker-stale", "--json")[1])
    assert told["rule"]["id"] == "choice/tracker-stale"


@pytest.mark.slow
def test_version_and_help():
    """What the first page of help says: test_help.py."""
    assert ckpt("--version").stdout.decode() == f"ckpt {__version__}\n"
    bare = ckpt()
    assert (bare.returncode, bare.stdout) == (2, b"") and b"Usage: ckpt" in bare.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("verfy", "verfy"), ("ls --no-such", "--no-such"), ("show", "FILE"), ("ls --format yaml", "'yaml' is not one of table, json"),
        ("plan --json --format shell", "contradict"), ("plan --rank one", "--rank: 'one' is not a whole number"),
        ("plan --rank 4 --world-size 4", "does not exist among 4 ranks"), ("latest a b", "b"),
    ],
)  # fmt: skip
def test_usage_errors_are_2(line, says):
    code, out, err = run(*line.split())
    assert code == 2 and says in err and "Traceback" not in err
    assert out == "" or "--json" in line
    assert json.loads(run(*line.split(), "--json")[1])["error"]["exit_code"] == 2


def test_a_bug_is_70_and_never_1(answer, monkeypatch):
    answer("plan", None, side_effect=ZeroDivisionError("division\x1b[2J by zero"))
    code, out, err = run("plan")
    assert (code, out) == (70, "") and "this is a bug in ckpt" in err and "Traceback" not in err
    assert "ckpt: internal error: ZeroDivisionError: division\\x1b[2J by zero\n" in err
    assert json.loads(run("plan", "--json")[1])["error"]["code"] == "bug"
    monkeypatch.setenv("CKPT_DEBUG", "1")
    assert "Traceback" in run("plan")[2]


@pytest.mark.slow
def test_arguments_need_not_be_text():
    """Typer alone refuses them: file names are bytes. Values stay as they were typed; ``settings`` reads them."""
    done = ckpt("show", b"no\xffsuch.pt")
    assert done.returncode == 5 and b"there is no file" in done.stderr
    for name in COMMANDS:
        for p in command(name).params:
            assert p.type_descriptor.annotation in (str, bool, list[str]), f"{name} {p.name}"


@pytest.mark.slow
def test_a_closed_pipe_is_quiet_and_an_answer_that_cannot_be_written_is_5():
    def piped(script):
        words = ["bash", "-c", f"set -o pipefail; {script}"]
        return subprocess.run(words, capture_output=True, env={**CLEAN, "PY": sys.executable}, timeout=1000)

    done = piped('"$PY" -m ckpt_tools formats --json | true; echo "${PIPESTATUS[0]}"')
    assert (done.stdout.strip(), done.stderr) == (b"0", b"")
    done = piped('"$PY" -m ckpt_tools formats > /dev/full')
    assert done.returncode == 5 and b"could not be written" in done.stderr and b"Traceback" not in done.stderr
    assert piped('"$PY" -m ckpt_tools formats >&-').returncode == 5


@pytest.mark.slow
def test_a_poor_locale_changes_no_answer():
    done = ckpt("explain", "truncated", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0 and done.stdout.startswith(b"truncated: ")


@pytest.mark.parametrize(
    ("choice", "env", "terminal", "colored"),
    [
        (None, {}, True, True), (None, {}, False, False), (None, {"TERM": "dumb"}, True, False),
        (None, {"NO_COLOR": ""}, True, True), (None, {"FORCE_COLOR": "1"}, False, True),
        (None, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False), ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)  # fmt: skip
def test_colour(monkeypatch, choice, env, terminal, colored):
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert console.is_colored(choice, SimpleNamespace(isatty=lambda: terminal)) is colored


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plan --json", (True, None, None)), ("nosuch --format=shell", (False, "shell", None)), ("plan --format", (False, None, None)),
        ("verify -- --json", (False, None, None)), ("plan -world 8 --json", (True, None, None)),
        *((f"verify --nosuch {output}", (False, None, "x")) for output in ("-o x", "-ox", "--output x", "--output=x")),
    ],
)  # fmt: skip
def test_of_a_mistyped_line_it_is_known_how_to_answer_and_where(line, said):
    """A flag of which -o is a part names no file."""
    flags = dispatch.read_answer_flags(line.split())
    assert (flags["json"], flags["format"], flags["output_file"]) == said


HEAVY = "rich sqlite3 torch numpy fsspec safetensors cryptography pydantic"
OTHERS = " ".join(f"ckpt_tools.cli.{name}" for name in COMMANDS if name != "latest")
MACHINES = "junit sarif github markdown csv observed"
OUTPUTS = " ".join(f"ckpt_tools.output.{name}" for name in MACHINES.split())
JOINED = "from ckpt_tools.integrations"
NEVER = {
    "import ckpt_tools": f"dataclasses inspect {HEAVY} ckpt_tools.*", "latest run --rank 0": OUTPUTS, "plan run --format shell": OUTPUTS,
    "plan run --json": f"{OUTPUTS} ckpt_tools.job.starts", "latest empty --rank 0 --allow=none": f"{HEAVY} {OTHERS}",
    "from ckpt_tools.elastic import ExceptionCheckpoint": "torch numpy typer rich",
    f"{JOINED} import agreement, dcp, transformers; assert agreement.find_group() is None": "torch transformers",
}  # fmt: skip
"""What is run -> the modules that it does not load: hooks run commands on every rank, and training imports us."""
LOADED = """
import sys
before = set(sys.modules)
{}
print(*set(sys.modules) - before, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "code", [*NEVER][:4] + [pytest.param(code, marks=pytest.mark.slow) for code in [*NEVER][4:]]
)
def test_only_what_is_needed_is_loaded(tmp_path, code):
    broken(plain(tmp_path), 20)
    (tmp_path / "empty").mkdir()
    line = code if "import" in code else f"from ckpt_tools import cli; assert not cli.execute({code.split()})"
    words = [sys.executable, "-c", LOADED.format(line)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=CLEAN)
    assert done.returncode == 0, done.stderr
    loaded = done.stderr.splitlines()[-1].split()
    assert "ckpt_tools" in loaded
    assert not [name for name in loaded if any(fnmatchcase(name, never) for never in NEVER[code].split())]


def test_no_module_has_the_name_of_a_public_function():
    """Importing it would hide the function behind the module of that name."""
    rooms = {p.stem for p in Path(ckpt_tools.__file__).parent.iterdir()}
    assert rooms & set(ckpt_tools.__all__) == {"elastic", "errors", "integrations"}


HOUR = 3600.0


@pytest.fixture
def demo(tmp_path):
    """The four-rank job: step 10 was saved two days ago, step 20 half an hour ago."""
    root = Path(shutil.copytree(FIXTURES / "demo", tmp_path / "demo"))
    for step, age in ((10, 48 * HOUR), (20, HOUR / 2)):
        for f in (root / f"iter_00000{step}").rglob("*.pt"):
            os.utime(f, (time.time() - age,) * 2)
    return root


def ls(*argv):
    return run("ls", *map(str, argv))


def listed(*argv):
    """The document that it prints."""
    return json.loads(ls(*argv, "--json")[1])


def steps(*argv):
    return [c["step"] for c in listed(*argv)["checkpoints"]]


TREE = """\
checkpoint                           what       ranks            size     age
.                                    megatron                 992 KiB
  step 20                            –          4/4           463 KiB  30 min
    mp_rank_00/model_optim_rng_0.pt  model      rank 0 tp=0   132 KiB  30 min
    mp_rank_01/model_optim_rng_1.pt  model      rank 1 tp=1   132 KiB  30 min
    mp_rank_00/model_optim_rng_2.pt  model      rank 2 tp=0   132 KiB  30 min
    mp_rank_01/model_optim_rng_3.pt  model      rank 3 tp=1  66.1 KiB  30 min
  step 10                            resumable  4/4           529 KiB     2 d
    mp_rank_00/model_optim_rng_0.pt  model      rank 0 tp=0   132 KiB     2 d
    mp_rank_01/model_optim_rng_1.pt  model      rank 1 tp=1   132 KiB     2 d
    mp_rank_00/model_optim_rng_2.pt  model      rank 2 tp=0   132 KiB     2 d
    mp_rank_01/model_optim_rng_3.pt  model      rank 3 tp=1   132 KiB     2 d

2 checkpoints
"""


@pytest.mark.slow
def test_tree(demo):
    newest = max(c.mtime_ns for c in scan(str(demo)).checkpoints)
    assert draw(scan(str(demo)), View(now=newest / 1e9 + HOUR / 2)) == TREE
    code, out, err = ls(demo, "--tree")
    begins = [[line.split("  ")[0] for line in text.splitlines()] for text in (out, TREE)]
    assert (code, err) == (0, "") and begins[0] == begins[1]
    root = FIXTURES / "layouts/mindspore/pangu/tree"
    out = ls(root, "--tree")[1]  # of all runs each file
    assert all(out.count(f"{p.name} ") == 1 for p in root.rglob("*.ckpt")) and "dying-gasp" in out


def table(root):
    """The header and the first row of ``ckpt ls``, cell by cell."""
    return [re.split(r"  +", line.strip()) for line in ls(root, "-q")[1].splitlines()[:2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "label"), [("tensorflow/manager", "step 40, save 40"), ("accelerate/auto", "save 2")]
)
def test_a_count_of_saves_is_no_count_of_restarts(case, label):
    root = FIXTURES / "layouts" / case / "tree"
    header, _ = table(root)
    assert header[-2:] == ["save", "path"] and "restart" not in header
    saves = {line.split()[-2] for line in ls(root, "-q")[1].splitlines()[1:-2]}
    assert saves == {str(c["generation"]) for c in listed(root)["checkpoints"]}
    drawn = ls(root, "--tree")[1]
    assert f"  {label} " in drawn and "restart" not in drawn and "unknown" not in drawn


def test_restarts_are_called_so(tmp_path):
    """MindSpore's K: at the same epoch and step it tells two attempts apart."""
    lay(tmp_path, dict.fromkeys(("net-1_5.ckpt", "net_1-1_10.ckpt", "net_1-1_15.ckpt"), b"x"))
    header, row = table(tmp_path)
    assert header[-2:] == ["restart", "path"] and "save" not in header and row[-2] in "–1"
    assert "  epoch 1 step 10, restart 1 " in ls(tmp_path, "--tree")[1]


RANKS = {
    "2": ("deepspeed/zero1", "deepspeed/pipeline", "megatron/distopt_old", "hf-trainer/fsdp"), "4": ("megatron/pp",),
    "4/4": ("megatron/ascend", "dcp/four"), "2/2": ("mindspore/resnet",),
    "–": ("deepspeed-universal/converted", "tensorflow/sharded", "orbax/ocdbt", "sharded-safetensors/transformers"),
}  # fmt: skip
"""Of zero1 one file of model states, one of optimizer states for each of two data parallel ranks; of fsdp random
numbers of two ranks: a job of any number may load it.
"""


def test_ranks_are_those_that_names_tell():
    for ranks, cases in RANKS.items():
        for case in cases:
            header, row = table(FIXTURES / "layouts" / case / "tree")
            said = row[header.index("ranks")] if "ranks" in header else "–"
            assert said == ranks, (case, "what says nothing is left out")


@pytest.mark.parametrize("case", ["ocdbt", "cut"])
def test_the_size_of_an_orbax_checkpoint_is_that_of_its_directory(case):
    answer = listed(FIXTURES / "layouts/orbax" / case / "tree")
    assert answer["checkpoints"] and answer["bare"] == answer["unrecognised"] == 0
    for c in answer["checkpoints"]:
        mine = [p for p in Path(c["path"]).rglob("*") if p.is_file()]
        assert (c["files"], c["size"]) == (len(mine), sum(p.stat().st_size for p in mine))


@pytest.mark.slow
def test_only_a_checkpoint_owns_what_lies_below_its_number(tmp_path):
    """Data is told by its place alone: a number without a checkpoint, and the files of other layouts and
    trackers inside one, are none of it, and are what they are elsewhere.
    """
    shutil.copytree(FIXTURES / "layouts/orbax/ocdbt/tree/ck", tmp_path, dirs_exist_ok=True)
    before = listed(tmp_path)
    names = ("99/notes/a.txt", "99/notes/b/c", "20/default/net-graph.meta", "20/default/d/x.tmp", "20/hf/latest", "20/hf/model.safetensors.index.json", "20/hf/model-00001-of-00002.safetensors")  # fmt: skip
    lay(tmp_path, {**dict.fromkeys(names, b"x"), "20/own/net-1_7.ckpt": mindspore(True, 0, step_num=7)})
    after = listed(tmp_path)
    sizes = [
        {c["path"]: (c["files"], c["size"]) for c in answer["checkpoints"] if c["layout"] == "orbax"}
        for answer in (before, after)
    ]
    assert sizes[0] == sizes[1] and len(sizes[0]) == 2
    others = {(c["path"], c["step"]) for c in after["checkpoints"] if c["layout"] != "orbax"}
    assert others == {(f"{tmp_path}/20/hf", None), (f"{tmp_path}/20/own/net-1_7.ckpt", 7)}
    (found,) = after["findings"]
    assert (after["unrecognised"], found["path"]) == (2, str(tmp_path / "20/default/d/x.tmp"))


def test_data_does_not_date_a_checkpoint(tmp_path):
    """Its time is that of the files that verify and plan know by name, as in a plan."""
    shutil.copytree(FIXTURES / "layouts/orbax/cut/tree", tmp_path, dirs_exist_ok=True)
    for p in tmp_path.rglob("*"):
        os.utime(p, (1_700_000_000 + 1000 * (p.parent.name == "d"),) * 2)
    answer = listed(tmp_path)["checkpoints"]
    assert {c["unfinished"] for c in answer} == {True, False}
    assert {c["mtime"] for c in answer} == {1_700_000_000}


@pytest.mark.slow
def test_long_checkpoints_are_cut_unless_verbose(tmp_path):
    source = FIXTURES / "layouts/mindspore/pangu/tree/rank_0/pangu0-1_4.ckpt"
    ranks = FEW + 10
    lay(tmp_path, {f"rank_{rank}/net-1_4.ckpt": source.read_bytes() for rank in range(ranks)})
    out = ls(tmp_path, "--tree")[1]
    assert out.count("net-1_4.ckpt") == FEW - 1
    assert f"    {ranks - FEW + 1} more files (--verbose lists them)" in out
    assert ls(tmp_path, "--tree", "-v")[1].count("net-1_4.ckpt") == ranks


SINCE = {0: "10m 2999-01-01", 1: "1h 1h30m 1d", 2: "3d 2000-01-01 2000-01-01T08:00:00Z"}


@pytest.mark.parametrize(
    ("count", "since"), [(n, word) for n, words in SINCE.items() for word in words.split()]
)
def test_since(demo, since, count):
    left = [20, 10][:count]
    assert ls(demo, "--since", since)[0] == (0 if left else 3)
    assert sorted(steps(demo, "--since", since), reverse=True) == left
    assert ls(demo, "--since", since, "--tree")[1].count("step ") == len(left)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1h", 1e9 - 3600), ("90s", 1e9 - 90), (" 2d", 1e9 - 172800), ("2001-09-09T01:46:40Z", 1e9),
        ("2001-09-09T03:46:40+02:00", 1e9), ("2024-05-01T12:00", time.mktime((2024, 5, 1, 12, 0, 0, 0, 0, -1))),
    ],
)  # fmt: skip
def test_moments(text, wanted):
    assert read_time(text, 1e9) == wanted


@pytest.mark.parametrize(
    "text", ["", "yesterday", "20", "2h ago", "-2h", "2 weeks", "2024-13-01", "1e9", "nan", "9" * 400 + "d"]
)
def test_what_is_no_time(text, tmp_path):
    code, out, err = ls(tmp_path, f"--since={text}")
    assert (code, out) == (2, "") and "use 90m, 2h, 3d" in err


def test_filters_work_together_and_tree_is_for_people(demo):
    code, _, err = ls(demo, "--tree", "--json")
    assert code == 2 and "leave one of them out" in err
    shutil.copytree(demo / "iter_0000020", demo.parent / "other/iter_0000030")
    out = ls(demo.parent, "--run", "demo", "--tree", "--since", "1h")[1]
    assert re.findall(r"step \d+", out) == ["step 20"] and "other" not in out


@pytest.mark.slow
def test_steps_are_filtered_as_a_plan_filters_them_and_ordered_by_time(demo):
    assert (steps(demo), steps(demo, "--max-step", "19")) == ([20, 10], [10])
    assert ls(demo, "--max-step", "9")[0] == 3
    for f in (demo / "iter_0000010").rglob("*.pt"):
        os.utime(f)
    for flags, order in (((), [10, 20]), (("--order", "mtime"), [10, 20]), (("--order", "step"), [20, 10])):
        assert steps(demo, *flags) == order


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["periodic", "dying-gasp", "best"])
def test_only_one_kind(kind):
    root = FIXTURES / "layouts/mindspore/pangu/tree"
    kinds = [c["kind"] for c in listed(root)["checkpoints"]]
    assert {"periodic", "dying-gasp"} == set(kinds)
    assert [c["kind"] for c in listed(root, "--kind", kind)["checkpoints"]] == [k for k in kinds if k == kind]
    assert ls(root, "--kind", kind)[0] == (0 if kind in kinds else 3)


def test_a_step_that_only_contents_tell_is_filtered_too(tmp_path):
    """A name without a global step (MindSpore's epoch and step in it): a plan reads it in the file, and so
    does --max-step.
    """
    for epoch, done in ((1, 5), (2, 10)):
        (tmp_path / f"net-{epoch}_5.ckpt").write_bytes(mindspore(True, 0, step_num=done, epoch_num=epoch))
    for most, epochs in {4: [], 5: [1], 9: [1], 10: [2, 1]}.items():
        found = listed(tmp_path, "--max-step", most)["checkpoints"]
        assert [c["epoch"] for c in found] == epochs


@pytest.fixture
def asker(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Asker:
    monkeypatch.setenv("CKPT_NO_CACHE", "1")
    return asker


LINES = (
    "verify run", "verify run --json", "plan run", "plan run --explain", "plan run --format shell", "latest run --rank 0", "latest run --rank 0 --json", "ls run", "ls run --tree",
    "ls run --quarantine", "diff run/iter_0000010 run/iter_0000020", f"show run/{FILE}", "seal run --dry-run --json", "repair run", "quarantine run/iter_0000020",
    "prune run --keep-last 1 --settle 0s --json", "pin run/iter_0000020 --dry-run", "undo run --json", "explain truncated", "formats", "layouts", "layouts run --check --layout megatron",
    "launchers --json", "hook run --plan-dir plans --job j --json",
)  # fmt: skip


def still(text: str) -> str:
    text = re.sub(r'"(seconds|decided_at|pid|agent|host)": ?[^,}\n]+', r'"\1": 0', text)
    return re.sub(r"\d+\.json|read in [\d.]+ s( \([^)]*/s\))?", "", text)


@pytest.mark.share(3)
@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_the_file_holds_what_stdout_would(asker: Asker, tmp_path: Path, line: str) -> None:
    plain(tmp_path)
    code, out, _ = asker.execute(*line.split())
    for words, into in ((["-o", "answer"], True), (["--output=answer"], True), (["-o", "-"], False)):
        (tmp_path / "answer").unlink(missing_ok=True)
        shutil.rmtree(tmp_path / "plans", ignore_errors=True)
        got, printed, _ = asker.execute(*line.split(), *words)
        assert got == code
        said = (tmp_path / "answer").read_text() if into else printed
        assert still(said) == still(out) and (printed == "") is into
    assert (tmp_path / "answer").exists() is False


def test_every_command_with_a_format_has_it() -> None:
    """But run, whose answer is the command that it becomes."""
    for name in {*COMMANDS} - {"run"}:
        flags = {flag for param in command(name).params for flag in param.opts}
        assert ("--format" in flags) == ("--output" in flags), name


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_said_before_anything_is_read(
    asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(tmp_path)
    (tmp_path / "file").write_text("x")
    for name in ("verify", "plan", "scan", "show"):
        monkeypatch.setattr(f"ckpt_tools.api.{name}", lambda *_, **__: pytest.fail("it was read"))
    for place in ("missing/answer", "file/answer", "run", ".", "/proc/answer", "a" * 300):
        for line in ("verify run", "plan run --json", "ls run", f"show run/{FILE}"):
            code, out, err = asker.execute(*line.split(), "-o", place)
            assert code == 5 and out == "" and f"{place} cannot be written: " in err and "hint: " in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "run"]


@pytest.mark.slow
def test_a_disk_that_is_full_leaves_the_old_answer(tmp_path: Path) -> None:
    """The limit of a file's size stands for it: nothing more than 2 KiB can be written."""
    plain(tmp_path)
    (tmp_path / "answer").write_text("old")
    # -B: the limit would cut compiled modules as well, for everybody
    words = [sys.executable, "-B", "-m", "ckpt_tools", "verify", "run", "--json", "-o", "answer"]
    done = subprocess.run(
        words, cwd=tmp_path, env={**CLEAN, "CKPT_NO_CACHE": "1"}, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )  # fmt: skip
    assert done.returncode == 5 and "answer cannot be written: " in done.stderr
    assert (tmp_path / "answer").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["answer", "run"]


@pytest.mark.slow
def test_a_failure_is_in_the_file_where_the_format_can_say_it(asker: Asker, tmp_path: Path) -> None:
    """Else a CI server would read the good answer of yesterday."""
    lost(tmp_path)
    answer = tmp_path / "answer"
    for line, code in {"plan run": 4, "verify nowhere": 5, "verify run --no-such-flag": 2}.items():
        for name, reader in (("json", json.loads), ("junit", read.junit), ("sarif", read.sarif)):
            answer.write_text("of yesterday")
            ended = 2 if (name, line) == ("junit", "plan run") else code
            assert asker.execute(*line.split(), "--format", name, "-o", "answer")[:2] == (ended, "")
            assert reader(answer.read_text()) is not None
        answer.write_text("of yesterday")
        assert asker.execute(*line.split(), "-oanswer")[:2] == (code, "")
        assert answer.read_text() == "of yesterday"
    assert asker.execute("plan", "run", "--format", "shell", "-o", "answer")[0] == 4
    assert answer.read_text() == "(exit 4)\n"


def test_modes_and_links(tmp_path: Path) -> None:
    new, link, secret = (tmp_path / name for name in ("new", "link", "secret"))
    before = os.umask(0o027)
    try:
        write_whole(str(new), b"1")
        secret.touch(0o600)
        link.symlink_to("secret")
        check_writable(str(link))
        write_whole(str(link), b"2")
    finally:
        os.umask(before)
    assert link.is_symlink() and secret.read_bytes() == b"2"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (new, secret)] == [0o640, 0o600]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "new", "secret"]


@pytest.mark.slow
def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    for path in ("/dev/null", "/dev/stdout"):
        assert ckpt("explain", "truncated", "-o", path).returncode == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert not list(Path("/dev").glob(".null*")) + list(Path("/dev").glob(".stdout*"))
    with pytest.raises(CannotLook, match="No space left"):
        write_whole("/dev/full", b"x" * 10_000)


@pytest.mark.slow
def test_no_colour_is_in_a_file(asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain(tmp_path)
    monkeypatch.setattr(console, "terminal", lambda stream: stream is not None)
    monkeypatch.setenv("COLUMNS", "40")
    line = "diff run/iter_0000010 run/iter_0000020 --verbose -o answer"
    asker.execute(*line.split())
    text = (tmp_path / "answer").read_text()
    assert "\x1b" not in text and FILE.partition("/")[2] in text
    asker.execute(*line.split(), "--color", "always")
    assert "\x1b" in (tmp_path / "answer").read_text()


def test_what_is_asked_about_is_never_replaced(asker: Asker, tmp_path: Path) -> None:
    root = plain(tmp_path)
    (tmp_path / "link").symlink_to(root / FILE)
    file = f"run/{FILE}"  # below what is named, too
    for line in (f"verify run {root / FILE}", f"show {file}", "verify run", f"diff {file} run", f"plan {file}", "show link"):  # fmt: skip
        for place in (file, "link"):
            code, out, err = asker.execute(*line.split(), "-o", place)
            assert (code, out) == (2, "") and "would overwrite a file of a checkpoint" in err
            for mistaken in ([], ["--nosuch"]):  # nor by the failure, for a program
                code, out, _ = asker.execute(*line.split(), f"-o{place}", "--json", *mistaken)
                assert code == 2 and json.loads(out)["error"]["code"] == "usage-error"
    assert (root / FILE).read_bytes() == (plain(tmp_path / "again") / FILE).read_bytes()
