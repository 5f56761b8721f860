"""The pictures of the README: what commands print on a terminal, as SVG. docs/make.py writes them."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 92
COMMANDS = {
    "verify": "ckpt verify fixtures/demo",
    "plan": "ckpt plan fixtures/demo --order step",
}
_WHILE = re.compile(r" in [0-9.]+ s( \([^)]*\))?")
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def picture(name: str) -> str:
    """A command and what it prints, without what differs from run to run, nor fonts of other machines."""
    words = COMMANDS[name].split()[1:]
    env = {**os.environ, "CKPT_NO_CACHE": "1", "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm"}
    line = [sys.executable, "-c", _ON_A_TERMINAL, *words]
    with TemporaryDirectory(
        prefix="demo-", dir="/tmp"
    ) as home:  # of one length: where lines break hangs on it
        shutil.copytree(ROOT / "fixtures/demo", Path(home, "fixtures/demo"))
        done = subprocess.run(line, cwd=home, capture_output=True, text=True, env=env, check=False)
    said = _WHILE.sub("", done.stdout.replace(f"{home}/", "…/").rstrip())
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="standard"
    )
    console.print(Text.assemble(("$ ", "dim"), (COMMANDS[name], "bold")))
    console.print(Text.from_ansi(said), soft_wrap=True)
    return _FONTS.sub("", console.export_svg(title="ckpt", unique_id=f"ckpt-{name}")) + "\n"


_ON_A_TERMINAL = f"""
import sys
from ckpt_tools.cli import console, dispatch
console.width = lambda: {WIDTH}
sys.exit(dispatch.execute(sys.argv[1:]))
"""
