"""A format and a layout, added as CONTRIBUTING.md says: one file each from docs/examples and one line each in
a list.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from places import DOCS, PACKAGE, ROOT

EXAMPLES = DOCS / "examples"
LINES = {
    "formats/named.py": ("NAMED = (\n", '    Named("toy", "toy", (".toy",)),\n'),
    "layouts/__init__.py": ("ORDER = (\n", '    "toy_layout",\n'),
}
"""Where each of the two lists begins, and the line that is added there: both are in CONTRIBUTING.md."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with this package and the two toys in it."""
    home = tmp_path_factory.mktemp("home")
    package = shutil.copytree(PACKAGE, home / "ckpt_tools", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "formats/toy").mkdir()
    (package / "formats/toy/__init__.py").write_text('"""Toy checkpoints."""\n')
    shutil.copy(EXAMPLES / "toy_format.py", package / "formats/toy/toy.py")
    shutil.copy(EXAMPLES / "toy_layout.py", package / "layouts/toy_layout.py")
    for name, (begin, line) in LINES.items():
        text = (package / name).read_text()
        assert text.count(begin) == 1, name
        (package / name).write_text(text.replace(begin, begin + line))
    return home


def toy(step: int, payload: bytes = b"weights") -> bytes:
    head = b"TOY1" + step.to_bytes(8, "little") + len(payload).to_bytes(8, "little")
    return head + payload + zlib.crc32(payload).to_bytes(4, "little")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two saves of two ranks each."""
    for at, step in enumerate((10, 20)):
        save = tmp_path / "run" / f"save-{step}"
        save.mkdir(parents=True)
        for rank in (0, 1):
            (save / f"rank-{rank}.toy").write_bytes(toy(step))
        (save / "DONE").touch()
        for path in save.iterdir():
            os.utime(path, (1_735_689_600 + 600 * at,) * 2)
    return tmp_path / "run"


def ckpt(home: Path, *words: str) -> tuple[int, dict]:
    env = {**os.environ, "PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    how = "-P" if sys.version_info >= (3, 11) else "-B"
    command = [sys.executable, how, "-m", "ckpt_tools", *words, "--json", "--no-cache"]
    done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_each_is_one_short_file_and_one_line() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    for name in ("toy_format.py", "toy_layout.py"):
        assert len((EXAMPLES / name).read_text().splitlines()) < 60, name
    for begin, line in LINES.values():
        assert begin.strip() in guide and line.strip() in guide


def test_a_flipped_bit_of_the_payload_is_found(home: Path, run: Path) -> None:
    path, at = run / "save-20/rank-1.toy", 22
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    code, answer = ckpt(home, "verify", str(path))
    assert code == 1
    assert [f["code"] for f in answer["files"][0]["findings"]] == ["crc-mismatch"]


def test_the_newest_whole_save_is_planned(home: Path, run: Path) -> None:
    code, answer = ckpt(home, "verify", str(run))
    assert (code, answer["verdict"]) == (0, "ok")
    assert {f["format"] for f in answer["files"]} == {"toy", None}  # DONE is a mark
    code, answer = ckpt(home, "plan", str(run), "--world-size", "2")
    assert (code, answer["checkpoint"]["step"]) == (0, 20)
    (run / "save-20/rank-1.toy").write_bytes(toy(20)[:-5])
    code, answer = ckpt(home, "plan", str(run), "--world-size", "2", "--settle", "0")
    assert answer["checkpoint"]["step"] == 10
    assert "truncated" in json.dumps(answer["rejected"])
