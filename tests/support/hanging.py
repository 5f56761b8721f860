"""The command, with a system call on one path that hangs until the process is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from injected import HANGS, Fault
from preloaded import CLEAN

SOON = """
import sys
from ckpt_tools.storage import stalls
stalls.GRACE = 1.0 - 3600
sys.argv[0] = "ckpt"
from ckpt_tools.cli import main
main()
"""
"""The command, which under a limit of one hour takes a call for stalled a second after its start, however
slow the machine is.
"""


def ckpt(
    call: str, path: Path, *words: str | Path, start: int = 0, code: str = SOON
) -> subprocess.CompletedProcess[str]:
    """With ``start`` only a read that begins there, or behind it, hangs."""
    env = {**CLEAN, **Fault(str(path), call, HANGS, start=start).environment(), "CKPT_NO_CACHE": "1"}
    line = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env=env)
