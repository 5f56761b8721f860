"""Pages that tell a story in shell: their blocks, run one after the other in a directory as the page says, and what
the page shows of the answers.

A page makes its tree itself, by ``cp -a fixtures/layouts/megatron/tp/tree run`` in a clone, whose files are all as old;
or begins with what lies there, ``<!-- run: megatron/tp -->``: a copy of that case, called ``run``. Before a block may stand ``<!-- exit: 1 -->``; a block of text behind one of shell is what it printed, where …
stands for anything. A line of a crontab is run as well. A block of another language behind ``<!-- file: resume.py -->`` is written to that file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import fixture_trees
import run_helpers
import warm
from places import DOCS, LAYOUT_TREES, ROOT

BIN = Path(sys.executable).parent
TRAIN = "import os, sys\nos.write(1, ' '.join(['train.py', *sys.argv[1:]]).encode() + b'\\n')\n"
"""In one call, so that the lines of two ranks stay lines."""
_TREE = re.compile(r"^<!-- ([\w/-]+): ([\w-]+/[\w-]+) -->$", re.MULTILINE)
_CLONED = re.compile(r"^cp -a (fixtures/layouts/[\w-]+/[\w-]+/tree) ", re.MULTILINE)
_CLONED_AT = 1_750_000_000
_BLOCK = re.compile(
    r"(?:<!-- (exit|file): ([\w.-]+) -->\n)?```(\w+)\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL
)


class Block(NamedTuple):
    language: str
    text: str
    code: int
    file: str
    shown: str


def pages() -> list[Path]:
    """Those that tell stories."""
    rooms = (p for room in ("start", "launchers", "cookbook") for p in sorted((DOCS / room).glob("*.md")))
    return [DOCS / "index.md", DOCS / "did-not-resume.md", DOCS / "comparison.md", *rooms]


def blocks(page: str) -> Iterator[Block]:
    for key, value, language, text, shown in _BLOCK.findall(page):
        yield Block(language, text, int(value) if key == "exit" else 0, value if key == "file" else "", shown)


def prepare(page: str, home: Path) -> dict[str, str]:
    """What lies in the directory of a page, and the environment of its blocks."""
    (home / "train.py").write_text(TRAIN)
    for name, case in _TREE.findall(page):
        (home / name).parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as made:
            case_tree = fixture_trees.materialise(LAYOUT_TREES / case / "expected.json", Path(made))
            case_tree.rename(home / name)
    for tree in _CLONED.findall(page):
        shutil.copytree(ROOT / tree, home / tree, symlinks=True)
        for path in (home / tree).rglob("*"):
            os.utime(path, (_CLONED_AT, _CLONED_AT), follow_symlinks=False)
    kept = {name: os.environ[name] for name in ("XDG_STATE_HOME",) if name in os.environ}
    path = f"{warm.commands()}:{BIN}:{os.environ['PATH']}"
    own = {"PATH": path, "HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**run_helpers.CLEAN, **kept, **own}


def run(block: Block, home: Path, env: dict[str, str]) -> None:
    """Run or write one block."""
    if block.file:
        (home / block.file).write_text(block.text)
        return
    assert block.language in ("sh", "crontab"), f"who runs {block.text}?"
    script = block.text if block.language == "sh" else block.text.split(maxsplit=5)[5]
    words = ["bash", "-eo", "pipefail", "-c", script]
    done = subprocess.run(words, cwd=home, env=env, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == block.code, f"{block.text}\n{printed}"
    missing = unseen(block.shown, printed)
    assert not missing, f"{block.text}\nshould print\n{missing}\nand prints\n{printed}"


def unseen(shown: str, printed: str) -> str:
    """The first line of what is shown that does not follow in what was printed; "" when all do."""
    lines = iter(printed.splitlines())
    for line in filter(None, map(str.strip, shown.splitlines())):
        pattern = ".*".join(map(re.escape, line.split("…")))
        if line != "…" and not any(re.fullmatch(pattern, there.strip()) for there in lines):
            return line
    return ""
