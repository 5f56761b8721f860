"""Nothing is imported from the working directory, by ckpt or by what it starts; docs and snippets do not
invite it; the training is not told how to import.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import DOCS, ROOT
from run_helpers import CKPT, CLEAN, megatron

from ckpt_tools.inspection.check import load

pytestmark = pytest.mark.slow  # an interpreter for each

MODULES = "json typer torch mindspore safetensors numpy zstandard xxhash isal sqlite3 subprocess struct tomllib rich"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A directory of modules that leave a mark when they are imported."""
    place = tmp_path / "hostile"
    place.mkdir()
    for name in MODULES.split():
        (place / f"{name}.py").write_text(
            f"open({str(tmp_path / 'mark')!r}, 'a').write({name!r} + ' ')\nraise ImportError('planted')\n"
        )
    return place


def planted(hostile: Path) -> str:
    mark = hostile.parent / "mark"
    return mark.read_text() if mark.exists() else ""


def test_the_mark_is_made_where_somebody_imports(hostile: Path) -> None:
    subprocess.run([sys.executable, "-c", "import torch"], cwd=hostile, capture_output=True)
    assert planted(hostile) == "torch "


@pytest.mark.parametrize(
    "words",
    [("verify", "demo"), ("plan", "demo", "--order", "step", "--json"), ("explain", "truncated")],
    ids=" ".join,
)
def test_python_m_imports_nothing_from_where_it_was_started(hostile: Path, words: tuple[str, ...]) -> None:
    """What -m itself imports before any line of ours is a limit that SECURITY.md names; whatever ckpt imports
    is not.
    """
    made = [str(ROOT / "fixtures/demo") if word == "demo" else word for word in words]
    done = subprocess.run([*CKPT, *made], cwd=hostile, env=CLEAN, capture_output=True, text=True)
    assert (planted(hostile), done.returncode) == ("", 1 if words[0] == "verify" else 0), done.stderr


def test_python_m_keeps_other_places(tmp_path: Path) -> None:
    """Only the first place is taken away, which -m has put there: PYTHONPATH is the user's."""
    begin = "import sys; sys.path[:0] = ['first']; import ckpt_tools.__main__; "
    words = [sys.executable, "-c", f"{begin}print(sys.path[0], {str(tmp_path)!r} in sys.path)"]
    env = {**CLEAN, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, cwd="/", env=env, capture_output=True, text=True)
    assert done.stdout == "first True\n", done.stderr


def test_the_load_child_imports_nothing_from_the_working_directory(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    heard, found = load("mindspore", "model.ckpt", 1)
    assert planted(hostile) == "" and not heard and found[0].code in ("needs-extra", "not-loaded")


def test_the_training_is_not_told_how_to_import(tmp_path: Path) -> None:
    """PYTHONSAFEPATH is meant for ckpt: with it `python train.py` would not find the modules beside train.py."""
    root = megatron(tmp_path / "runs")
    names = "('PYTHONSAFEPATH', 'PYTHONUNBUFFERED')"
    show = [sys.executable, "-c", f"import os; print(*map(os.environ.get, {names}))"]
    env = {**CLEAN, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(tmp_path / "state")}
    for before, seen in (([], "None 1"), (["env", "PYTHONSAFEPATH=1"], "1 1")):
        words = [*CKPT, "run", str(root), "--", *before, *show]
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        assert done.stdout == f"{seen}\n", done.stderr


PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.glob("*.md"))]
PAGES += sorted((ROOT / "ckpt_tools/cli/snippets").iterdir())


INVITES = re.compile(r"python3? (?!-P)[^`|\n]*-m (?:mpi4py\.futures -m )?ckpt_tools")


@pytest.mark.parametrize("page", [p for p in PAGES if p.is_file()], ids=lambda p: p.name)
def test_pages_start_ckpt_where_nobody_can_plant_a_module(page: Path) -> None:
    lines = [line for line in page.read_text().splitlines() if "ckpt_tools" in line and "limit" not in line]
    assert not [line for line in lines if INVITES.search(line)]


def test_the_search_finds_what_it_should() -> None:
    for flag, found in ((" ", True), (" -P ", False)):
        for line in (
            f"msrun -- python{flag}-m ckpt_tools run",
            f"python{flag}-m mpi4py.futures -m ckpt_tools",
        ):
            assert bool(INVITES.search(line)) is found
