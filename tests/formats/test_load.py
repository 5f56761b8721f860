"""The load level: the real loaders in a real child process, within limits, and no code of the file's."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from places import FORMAT_FILES

from ckpt_tools.api import verify
from ckpt_tools.inspection import check as loading
from ckpt_tools.inspection.check import inspect, load
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # some start a process that imports torch


def codes(path: Path, loader: str = "torch") -> tuple[bool, list[str]]:
    done, found = load(loader, str(path), path.stat().st_size)
    return done, [f.code for f in found]


@pytest.fixture(params=["here", pytest.param("alone", marks=pytest.mark.exhaustive)])
def torch_there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the child would run, by day in this process, which has torch already: importing it is all that a child
    of its own costs. What a good file needs of one is seen below.
    """

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        monkeypatch.setattr(sys, "argv", words[2:])
        with redirect_stdout(io.StringIO()) as out:
            exec(words[2], {"__name__": "__main__"})
        return subprocess.CompletedProcess(words, 0, out.getvalue().encode(), b"")

    if request.param == "here":
        monkeypatch.setattr(loading.subprocess, "run", run)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["torch_zip/good/tiny.pt", "torch_legacy/good/tiny.pt"])
def test_what_torch_loads_is_loaded(name: str) -> None:
    assert codes(FORMAT_FILES / name) == (True, [])


@pytest.mark.exhaustive
def test_safetensors_are_loaded_by_their_own_reader() -> None:
    assert codes(FORMAT_FILES / "safetensors/good/tiny.safetensors", "safetensors") == (True, [])


@pytest.mark.exhaustive
def test_a_refused_class_is_no_damage() -> None:
    report, _ = inspect(str(FORMAT_FILES / "torch_zip/good/namespace.pt"), Level.LOAD)
    assert (report.verdict, report.level) == (Verdict.UNKNOWN, Level.VALUES)
    said = next(f for f in report.findings if f.code == "not-loaded")
    assert "argparse.Namespace" in said.message and "\x1b" not in said.message


@pytest.mark.usefixtures("torch_there")
def test_what_torch_cannot_load_is_broken(tmp_path: Path) -> None:
    data = (FORMAT_FILES / "torch_zip/good/tiny.pt").read_bytes()
    (path := tmp_path / "a.pt").write_bytes(data[:-10])
    assert codes(path) == (True, ["load-failed"])


@pytest.mark.usefixtures("torch_there")
def test_nothing_of_the_file_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> object:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"a": Evil()}, tmp_path / "evil.pt")
    assert codes(tmp_path / "evil.pt") == (False, ["not-loaded"])
    assert not (tmp_path / "ran").exists()


@pytest.mark.exhaustive
def test_a_module_beside_the_file_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert codes(FORMAT_FILES / "torch_zip/good/tiny.pt") == (True, [])


def test_the_loader_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        loading, "_loader_script", lambda: f"open({str(tmp_path / 'written')!r}, 'w').write('x' * 9)"
    )
    assert codes(FORMAT_FILES / "torch_zip/good/tiny.pt")[1] in (["load-failed"], ["not-loaded"])
    assert not (tmp_path / "written").exists() or not (tmp_path / "written").stat().st_size


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("while True: pass", (False, ["not-loaded"])),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", (True, ["load-failed"])),
        ("bytearray(1 << 44)", (False, ["not-loaded"])),
        ("print('no json')", (False, ["not-loaded"])),
        ("print('[]')", (False, ["not-loaded"])),
        (f"print({json.dumps({'outcome': 'missing', 'message': 'x'})!r})", (False, ["needs-extra"])),
    ],
)
def test_a_loader_that_misbehaves(text: str, answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_loader_script", lambda: text)
    monkeypatch.setattr(loading, "_SECONDS", 2)
    assert codes(FORMAT_FILES / "torch_zip/good/tiny.pt") == answer


def test_a_loader_that_is_not_installed_is_a_note_and_the_level_is_not_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = """print('{"outcome": "missing", "message": "No module named torch"}')"""
    monkeypatch.setattr(loading, "_loader_script", lambda: missing)
    seen = verify([str(FORMAT_FILES / "torch_zip/good/tiny.pt")], Level.LOAD)
    report = seen.files[0].report
    assert (report.verdict, report.level, seen.summary.below_level) == (Verdict.OK, Level.VALUES, 1)
    hints = [f.hint for f in report.findings if f.code == "needs-extra"]
    assert hints == ["pip install 'ckpt-tools[torch]'"]
