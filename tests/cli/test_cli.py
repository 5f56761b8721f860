"""The command line: exit codes, which stream gets what, and formats. What the stages really find is tested
elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import pytest
import sample_results as sample
from msgspec.structs import replace
from run_helpers import broken
from small_runs import plain

import ckpt_tools
from ckpt_tools import __version__, api, cli
from ckpt_tools.cli import console, dispatch
from ckpt_tools.cli.app import COMMANDS, command
from ckpt_tools.errors import CannotLook, NoCheckpoint, NoneUsable, NotNewest, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.model.answers import Summary
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.plan import RankLoad

PRINTING = ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("CKPT_") and k not in PRINTING}


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def answer(monkeypatch):
    """Make a function of the pipeline return, or raise, what is given; what it was called with is in the list
    that comes back.
    """

    def install(name, result):
        calls = []

        def stub(*args, **kwargs):
            calls.append((args, kwargs))
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr(api, name, stub)
        return calls

    return install


def run(capfd, *argv):
    """(exit code, stdout, stderr) of one command in this process."""
    capfd.readouterr()
    return cli.execute(argv), *capfd.readouterr()


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
def test_verify_exit_codes(answer, capfd, result, plain, strict):
    calls = answer("verify", result)
    for form in ((), ("--json",), ("--format", "jsonl")):
        assert run(capfd, "verify", "x", *form)[::2] == (plain, "")
        assert run(capfd, "verify", *form, "--strict", "--", "-x")[::2] == (strict, "")
    assert [given[0] for given, _ in calls] == [["x"], ["-x"]] * 3


NARROW = replace(sample.plan(), shared=(), by_rank=sample.plan().by_rank[:1], rejected=(), warnings=())


def test_latest_prints_the_path_and_nothing_else(answer, capfd, monkeypatch):
    calls = answer("latest", NARROW)
    assert run(capfd, "latest", "/data", "--rank", "0") == (0, "/data/out/rank_0/net-3_40.ckpt\n", "")
    monkeypatch.setenv("RANK", "x")  # variables of launchers are no settings
    monkeypatch.setenv("WORLD_SIZE", "y")
    assert run(capfd, "latest")[0] == 0
    assert calls[0][0][0] == "/data" and [given[1].rank for given, _ in calls] == [0, None]


def test_latest_prints_names_as_the_bytes_they_are(answer, capfdbinary):
    answer("latest", replace(NARROW, by_rank=(RankLoad(0, (sample.load(0, path=sample.NASTY),)),)))
    assert run(capfdbinary, "latest", "--rank", "0")[1] == os.fsencode(sample.NASTY) + b"\n"


def test_allow_none_is_an_empty_answer(answer, capfd):
    calls = answer("latest", sample.empty_plan())
    assert run(capfd, "latest", "--allow=none") == (0, "", "")
    assert calls[0][0][1].allow_none
    assert json.loads(run(capfd, "latest", "--allow=none", "--json")[1])["checkpoint"] is None
    assert "CKPT_RESUME=0" in run(capfd, "latest", "--allow=none", "--format", "shell")[1]


def test_what_led_to_the_answer_goes_to_stderr(answer, capfd):
    answer("latest", sample.plan())
    _, out, err = run(capfd, "latest")
    assert out.count("\n") == 2
    assert "ckpt: warning: step 160 was skipped (/data/gasp): " in err
    assert "ckpt: warning: world-size-inferred: 2 from the highest rank\nhint: " in err
    assert run(capfd, "latest", "-q")[2] == ""


@pytest.mark.parametrize("command", ["latest", "plan"])
@pytest.mark.parametrize(
    ("error", "code"), [(UsageError, 2), (NoCheckpoint, 3), (NoneUsable, 4), (CannotLook, 5), (NotNewest, 6)]
)
def test_errors_are_exit_codes(answer, capfd, command, error, code):
    answer(command, error("what happened"))
    assert run(capfd, command) == (code, "", f"ckpt: error: what happened\nhint: {error.hint}\n")
    got, out, err = run(capfd, command, "--json")
    value = json.loads(out)
    assert got == code == value["error"]["exit_code"] and err
    assert (value["schema"], value["error"]["message"]) == ("ckpt-tools/error/v1", "what happened")
    assert run(capfd, command, "--format=shell")[:2] == (code, f"(exit {code})\n")


def test_explain(capfd):
    assert run(capfd, "explain", "truncated")[1].startswith("truncated: ")
    for word, meant in (("trucated", "truncated"), ("save/missing-ranks", "save/missing-rank")):
        code, out, err = run(capfd, "explain", word)
        assert (code, out) == (2, "") and f"did you mean '{meant}'?" in err
    assert "rules: save/missing-part" in run(capfd, "explain", "missing-part")[1]
    page = run(capfd, "explain", "save/missing-rank")[1]
    assert page.startswith("save/missing-rank\n")
    assert all(word in page for word in ("effect: reject", "--world-size N", "codes: missing-rank", "For: "))
    told = json.loads(run(capfd, "explain", "choice/tracker-stale", "--json")[1])
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
        ("ls --no-such", "--no-such"), ("show", "FILE"), ("ls --format yaml", "'yaml' is not one of table, json"),
        ("plan --json --format shell", "contradict"), ("plan --rank one", "--rank: 'one' is not a whole number"),
        ("plan --rank 4 --world-size 4", "does not exist among 4 ranks"), ("latest a b", "b"),
    ],
)  # fmt: skip
def test_usage_errors_are_2(capfd, line, says):
    code, out, err = run(capfd, *line.split())
    assert code == 2 and says in err and "Traceback" not in err
    assert out == "" or "--json" in line
    assert json.loads(run(capfd, *line.split(), "--json")[1])["error"]["exit_code"] == 2


def test_a_bug_is_70_and_never_1(answer, capfd, monkeypatch):
    answer("plan", ZeroDivisionError("division\x1b[2J by zero"))
    code, out, err = run(capfd, "plan")
    assert (code, out) == (70, "") and "this is a bug in ckpt" in err and "Traceback" not in err
    assert "ckpt: internal error: ZeroDivisionError: division\\x1b[2J by zero\n" in err
    assert json.loads(run(capfd, "plan", "--json")[1])["error"]["code"] == "bug"
    monkeypatch.setenv("CKPT_DEBUG", "1")
    assert "Traceback" in run(capfd, "plan")[2]


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


@pytest.mark.slow
def test_colour_of_a_command(answer, capfd):
    answer("verify", sample.verification())
    assert "\x1b[" not in run(capfd, "verify", "x")[1]
    assert "\x1b[" in run(capfd, "verify", "x", "--color", "always")[1]


@pytest.mark.parametrize(
    ("line", "requested"),
    [
        ("plan --json", "json"), ("plan --format shell", "shell"), ("plan --nosuch x --json", "json"),
        ("nosuch --format=shell", "shell"), ("plan --format", ""), ("verify -- --json", ""), ("", ""),
    ],
)  # fmt: skip
def test_requested_format(line, requested):
    said = dispatch.read_answer_flags(line.split())
    assert ("json" if said["json"] else said["format"] or "") == requested


def test_a_mistyped_flag_names_no_file():
    assert dispatch.read_answer_flags(["plan", "-world", "8", "--json"])["output_file"] is None
    for words in (["-o", "x"], ["-ox"], ["--output", "x"], ["--output=x"]):
        assert dispatch.read_answer_flags(["verify", "--nosuch", *words])["output_file"] == "x"


HEAVY = "rich sqlite3 torch numpy fsspec safetensors cryptography pydantic"
OTHERS = " ".join(f"ckpt_tools.cli.{name}" for name in COMMANDS if name != "latest")
MACHINES = "junit sarif github markdown csv prometheus observed"
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
