"""What people see on a terminal, and wrappers of progress: nothing is wider than it but what must be copied whole, how much
there is to read is known before it is read, and nothing is said where nobody watches.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
import small_files
import warm
from fixture_trees import CASES, FIRST, materialise, tree_of
from progress_lines import FIELDS
from run_helpers import CKPT, CLEAN, broken, broken_body, ckpt, megatron, sparse
from safetensors_writer import beginning
from timed import lay, put

from ckpt_tools import Level
from ckpt_tools.api import plan, scan, show, verify
from ckpt_tools.cli import progress as progress_module
from ckpt_tools.cli.output import Output
from ckpt_tools.cli.progress import INTERVAL, Lines, Meter, progress
from ckpt_tools.errors import CkptError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.selection import Selection
from ckpt_tools.output import contents
from ckpt_tools.output import plan as plan_page
from ckpt_tools.output import scan as scan_page
from ckpt_tools.output import verification as verify_page
from ckpt_tools.output.page import Page, View
from ckpt_tools.output.words import wrap_line
from ckpt_tools.storage import Identity

pytestmark = pytest.mark.slow

NARROW = View(width=80)
WHOLE = re.compile(r"^  (path|arguments|environment): |^(error|warning|note): ")


def read_all(fd: int) -> bytes:
    """What comes until the other end is closed, which is an error of a terminal."""
    seen = b""
    with suppress(OSError):
        while data := os.read(fd, 1 << 16):
            seen += data
    os.close(fd)
    return seen


def terminal(
    *words: str, width: int = 80, cwd: Path | None = None, stream: str = "stdout"
) -> tuple[int, list[str]]:
    """A command of which a stream is a real terminal: its exit code, and its lines."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    env = {k: v for k, v in CLEAN.items() if k not in ("COLUMNS", "LINES")}  # those of whoever runs the tests
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: its}
    line = [f"{warm.commands()}/ckpt", *words]
    process = subprocess.Popen(line, **streams, env={**env, "NO_COLOR": "1"}, cwd=cwd)
    os.close(its)
    seen = read_all(ours)
    return process.wait(), seen.decode().replace("\r\n", "\n").splitlines()


def too_wide(text: str, width: int) -> list[str]:
    """Lines that could have been broken between two words or commands, and are wider all the same."""
    lines = [line for line in text.splitlines() if not WHOLE.match(line)]
    return [line for line in lines if len(line) > width and len(wrap_line(line.strip(), 1)) > 1]


def pages(root: Path, view: View) -> list[str]:
    out = [scan_page.render(scan(root), view), verify_page.render(verify(root), view)]
    try:
        return [*out, plan_page.render(plan(root, Selection(settle=0)), view)]
    except CkptError as e:
        return [*out, plan_page.render(e.plan, view)] if e.plan else out


def harmed(lines: list[str]) -> list[str]:
    """Lines that are wider than the terminal although a word could go to the next, or that lost their place
    below their row. A command to copy has its path on a line of its own, where that is long.
    """
    below = (line for before, line in pairwise(lines) if not before.endswith("ckpt plan"))
    return [*too_wide("\n".join(lines), 80), *(line for line in below if re.match(r"\S+/\S*[^;]$", line))]


@pytest.mark.share(2)
@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize(
    "case", CASES[::15], ids=lambda case: f"{case.parent.parent.name}/{case.parent.name}"
)
def test_every_page_fits_and_keeps_paths_whole(case: Path, width: int, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    listed = pages(root, View(width=width, verbose=width == 80, now=time.time()))
    report, anatomy = show(next(p for p in sorted(root.rglob("*")) if p.is_file()))
    for text in (*listed, contents.render(report, anatomy, {}, View(width=width))):
        assert not too_wide(text, width) and (width != 80 or not harmed(text.splitlines()))
    words = set(listed[1].split())
    for c in scan(root).checkpoints if width == 80 else ():
        assert " " in str(root) or {os.path.relpath(f.path, root) for f in c.parts} <= words


def test_an_interrupted_verify_says_what_it_has_seen(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    broken(root, 20)
    large = put(root / "iter_0000040/mp_rank_00/model_optim_rng.pt", b"")
    with zipfile.ZipFile(large, "w") as archive:
        for n in range(8):
            archive.writestr(f"archive/data/{n}", b"0" * (1 << 20))
    line = [*CKPT, "verify", str(root), "--jobs", "1", "--limit-rate", "100kB", "--progress", "json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=CLEAN) as process:
        assert process.stderr and process.stdout
        while json.loads(process.stderr.readline()).get("file") != str(large):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        seen = process.stdout.read().decode()
    assert process.returncode == 130 and seen.startswith("interrupted: 6 of 7 files were looked at, 1 of")
    assert "iter_0000020" in seen and "iter_0000010" not in seen and "ok:" not in seen


def test_findings_of_one_message_are_together() -> None:
    page = Page(NARROW)
    same = [finding("not-checksummed", "no checksum", path=f"/r/{n}.pt") for n in range(9)]
    page.findings([*same, *(finding("truncated", "cut", path=f"/r/{n}.pt") for n in range(9))], "/r")
    text = page.done()
    assert text.count("note: ") == 1 and "0.pt and 8 more" in text
    assert text.count("error: ") == 9, "damage is listed file by file"
    assert text.count("[truncated]") == text.count("hint: restore") == 1


def test_many_runs_are_a_page(tmp_path: Path) -> None:
    for n in range(20):
        megatron(tmp_path / f"run-{n:02d}", steps=(10, 20, 30), world=1)
    text = scan_page.render(scan(tmp_path), NARROW)
    rows = [line for line in text.splitlines() if "megatron" in line]
    assert len(rows) == 20 and all(re.search(r" 3 .* step 30 ", row) for row in rows) and "20 runs" in text
    assert len(scan_page.render(scan(tmp_path), View(width=80, verbose=True)).splitlines()) > 60


def test_a_path_alone_is_listed(tmp_path: Path) -> None:
    root = megatron(tmp_path / "a run")
    code, lines = terminal(str(root))
    assert code == 0 and lines[0].split()[0] == "step" and "step" not in lines[1]
    assert terminal(cwd=root)[1] == lines == terminal("ls", str(root))[1]
    (tmp_path / "empty").mkdir()
    assert [terminal(str(tmp_path / name))[0] for name in ("nothing", "empty")] == [5, 3]
    assert terminal(cwd=tmp_path / "empty")[0] == 2, "the page of help"


def test_layouts_are_a_list_with_a_page_each() -> None:
    listed = ckpt("layouts").stdout.splitlines()
    assert len(listed) == len(list(BUILT_IN)) + 3 and max(map(len, listed)) <= 80
    page = ckpt("layouts", "megatron").stdout
    assert page.startswith("megatron\n") and "latest_checkpointed_iteration.txt" in page
    wrong = ckpt("layouts", "megtron")
    assert wrong.returncode == 2 and "did you mean 'megatron'" in wrong.stderr


@pytest.mark.parametrize("width", [60, 80])
def test_differences_and_contents_fit(tmp_path: Path, width: int) -> None:
    """Names of tensors are longer than that: they stand below their rows, and below the name of their file."""
    root = tree_of("megatron/tp", tmp_path)
    a, b = (str(root / f"iter_00000{n}") for n in (10, 20))
    for words, rows in ((("diff", a, b), 2), (("show", f"{a}/mp_rank_00/model_optim_rng.pt"), 5)):
        _, lines = terminal(*words, width=width)
        assert not too_wide("\n".join(lines), width)
        assert words[0] != "diff" or re.fullmatch(r"they differ: \d+ changed of \d+ tensors", lines[0])
        name = "self_attention.linear_qkv.weight"
        long = [i for i, line in enumerate(lines) if line.strip().endswith(name)]
        assert long and all(lines[i].startswith("    ") and len(lines[i - 1].split()) >= rows for i in long)


def test_messages_fit_a_terminal_and_are_one_line_in_a_log(tmp_path: Path) -> None:
    logged = ckpt("plan", tmp_path / "nowhere").stderr.splitlines()
    assert [line.partition(" ")[0] for line in logged] == ["ckpt:", "hint:"]
    _, seen = terminal("plan", str(tmp_path / "nowhere"), width=60, stream="stderr")
    assert not too_wide("\n".join(seen), 60) and " ".join(seen).split() == " ".join(logged).split()


def test_watch_says_what_it_has_checked_and_what_it_has_not(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20))
    broken_body(root)

    def watch(*words: str) -> tuple[int, str]:
        line = ("watch", str(root), "--once", "--state-dir", str(tmp_path / "s"), *words)
        code, lines = terminal(*line, width=200)
        return code, "\n".join(lines)

    code, said = watch("--settle", "1h")
    assert code == 0 and "2 not checked yet: written less than --settle ago; a job would resume from" in said
    code, said = watch("--settle", "0s", "--on-bad", "echo no; exit 3")
    assert code == 1 and f"bad: {root}/iter_0000020 (step 20), 2 files" in said and "[crc-mismatch]" in said
    assert f"--on-bad for {root}/iter_0000020 ended with 3: no" in said and "1 good, 1 bad; a job" in said
    assert "{" not in said
    (tmp_path / "run/iter_0000020").rename(tmp_path / "away")
    assert f"gone: {root}/iter_0000020 (step 20), which was bad" in watch("--settle", "0s")[1]
    code, said = watch("--json")
    assert [json.loads(line)["type"] for line in said.splitlines()] == ["started", "pass", "stopped"]


TREES = [case.parent / "tree" for case in FIRST.values()]


def measured(ask: Callable[[Callable[[int, int], None]], object]) -> list[tuple[int, int]]:
    """What progress said, in order."""
    said: list[tuple[int, int]] = []
    with suppress(CkptError):
        ask(lambda done, total: said.append((done, total)))
    return said


@pytest.mark.parametrize("tree", TREES, ids=lambda p: p.parent.parent.name)
def test_what_is_left_is_known(tree: Path) -> None:
    """In every layout: what was read never exceeds what there is, and goes to its end."""
    asked = Selection(jobs=1, allow_none=True, order="step")
    said = measured(lambda tell: plan(str(tree), asked, progress=tell))
    assert all(done <= total for done, total in said) and [d for d, _ in said] == sorted(d for d, _ in said)
    assert not said or said[-1][0] == said[-1][1]


def test_the_total_is_that_of_the_files_to_load(root: Path) -> None:
    sizes = [p.stat().st_size for p in sorted(root.glob("iter_0000020/*/*.pt"))]
    said = measured(lambda tell: plan(str(root), Selection(jobs=1), progress=tell))
    assert said[0][1] == sum(sizes) and said[0][0] < sum(sizes)
    assert not measured(lambda tell: plan(str(root), Selection(level=Level.STRUCTURE), progress=tell))


def test_what_an_earlier_run_has_read_is_not_left(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPT_CACHE_DIR", str(tmp_path / "cache"))
    # or its files, a moment old, would be read again
    monkeypatch.setattr(Identity, "settled", lambda *_: True)
    asked = Selection(jobs=1, cache=True)
    first, again = (measured(lambda tell: plan(str(root), asked, progress=tell)) for _ in range(2))
    assert first and all(done == total for done, total in again)


def test_nothing_is_said_where_stderr_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress(Output("table")) as meter:
        assert meter is None
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """A Trainer's checkpoint whose model has 6 GiB and takes no room on the disk."""
    home, head = lay(tmp_path / "run/checkpoint-10", small_files.trainer(10)), beginning(6 << 30)
    sparse(home / "model.safetensors", head, len(head) + (6 << 30))
    return home.parent


class Heard:
    """What a watcher is told."""

    def __init__(self) -> None:
        self.listed = list[str]()
        self.listing = self.listed.append

    def __call__(self, done: int, total: int) -> None:
        return

    def file(self, path: str, total: int | None) -> None:
        return


def test_every_directory_that_is_listed_is_said(root: Path) -> None:
    """A file system that answers slowly is heard of before the first byte is read."""
    there = {str(root), *(str(path) for path in root.rglob("*") if path.is_dir())}
    for ask in (scan, verify, lambda path, progress: plan(path, progress=progress)):
        heard = Heard()
        ask(root, progress=heard)
        assert set(heard.listed) >= there and not any("model_optim" in path for path in heard.listed)


def test_a_terminal_sees_what_is_listed_and_read(capfd: pytest.CaptureFixture[str]) -> None:
    meter = Meter()
    meter.listing("/runs/at/once")
    assert not capfd.readouterr().err, "a short run shows no bar"
    meter.started = meter.reported = meter.started - 10
    meter.listing("/runs/a\x1b[2Jb")
    meter.reported -= 10
    meter.file(f"/runs/{'x' * 99}/file.pt", 3)
    meter(1 << 20, 1 << 30)
    meter.say("done")
    err = capfd.readouterr().err
    assert "listing /runs/a" in err and "\x1b[2J" not in err and "x/file.pt" in err and "x" * 50 not in err


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_terminal_sees_how_much_of_6_gib_was_read(command: str, huge: Path, tmp_path: Path) -> None:
    more = ["--plan-dir", str(tmp_path / "plans"), "--", "true"] if command == "run" else []
    ours, theirs = pty.openpty()
    env = {**CLEAN, "TERM": "xterm", "COLUMNS": "120", "CKPT_NO_CACHE": "1"}
    line = [*CKPT, command, str(huge), *more]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=theirs, env=env) as child:
        os.close(theirs)
        seen = b""
        while b"/6.0 GiB" not in seen:
            seen += os.read(ours, 1 << 16)  # raises when the command ends without having said it
        child.send_signal(signal.SIGINT)
        read_all(ours)
        assert child.wait() == 130


def lines_of(err: str) -> list[dict]:
    """The objects among what stands on stderr."""
    return [json.loads(line) for line in err.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("command", ["verify", "plan", "latest", "run", "hook", "diff", "seal"])
def test_a_wrapper_hears_of_the_first_and_the_last(command: str, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run\n\udcff{", world=2)
    subject = [root / "iter_0000010", root / "iter_0000020"] if command == "diff" else [root]
    state = ["--plan-dir", tmp_path / "plans"] if command in ("run", "hook") else []
    more = {"latest": "--rank 0 --json", "hook": "--json", "run": "--rank 0 -- true", "seal": "--dry-run"}
    words = [*state, *more.get(command, "").split()]
    for quiet in ([], ["-q"]):
        done = ckpt(command, *subject, "--progress", "json", *quiet, *words, env={"CKPT_NO_CACHE": "1"})
        first, *_, last = said = lines_of(done.stderr)
        assert done.returncode == (command == "diff"), done.stderr
        assert all(list(line) == FIELDS and line["type"] == "progress" for line in said)
        assert (first["state"], first["bytes"], last["state"]) == ("started", 0, "done")
        assert 0 < last["bytes"] <= last["bytes_total"]
        assert last["files"] >= 2 and last["file"].startswith(str(root))
        assert last["files_total"] == (last["files"] if command in ("verify", "diff", "seal") else None)


def test_a_failure_ends_in_stopped_and_the_rest_of_stderr_stays(root: Path) -> None:
    for step in (10, 20):
        broken(root, step)
    done = ckpt("plan", root, "--progress", "json")
    assert done.returncode == 4 and lines_of(done.stderr)[-1]["state"] == "stopped"
    assert "ckpt: error: " in done.stderr and "progress" not in done.stdout


def test_few_lines_in_any_case(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now)
    with progress(Output("json", progress="json")) as meter:
        assert isinstance(meter, Lines)
        for i in range(10_000):
            now += 0.001
            meter.file(f"/data/{i % 3}", 7)
            meter(i, 20_000)
    said = lines_of(capfd.readouterr().err)
    assert 30 < len(said) <= 10 / INTERVAL + 2
    assert [line["seconds"] for line in said] == sorted(line["seconds"] for line in said)
    last = {"file": "/data/0", "files": 3, "files_total": 7, "bytes": 9999, "rate": 1000, "state": "done"}
    assert last.items() <= said[-1].items()
