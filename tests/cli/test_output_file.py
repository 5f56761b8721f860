"""``-o FILE``: the answer is in the file as a whole or not at all, and a file that cannot be written is said before
anything is read.
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
from pathlib import Path

import machine_readers as read
import pytest
from one_question import Asker
from run_helpers import CLEAN, ckpt
from small_runs import FILE, lost, plain

from ckpt_tools.cli import console
from ckpt_tools.cli.app import COMMANDS, command
from ckpt_tools.errors import CannotLook
from ckpt_tools.storage.writes import check_writable, write_whole


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
            assert asker.execute(*line.split(), "--format", name, "-o", "answer")[:2] == (code, "")
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
