"""Runs ``ckpt`` commands in copies of this process, which has the shim of kill_points.c preloaded: one line of
JSON in (words, directory, n-th call, errno), one out. Many cases cost one start of the interpreter.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from typing import Any, NoReturn

WARM = (
    "api", "cli.changes", "cli.seal", "cli.stage", "formats.torch.torch_zip",
    "guard.quarantine", "guard.repair", "guard.sealing", "job.staging", "output.changes", "output.staging",
    "planning.first_launch", "planning.planner", "planning.verification",
)  # fmt: skip


def main() -> None:
    shim = ctypes.CDLL(None)
    shim.kill_points_set.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    for name in WARM:  # each copy has them already
        importlib.import_module(f"ckpt_tools.{name}")
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        with ExitStack() as opened:
            out, err, log = (opened.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
            pid = os.fork()
            if not pid:
                become(shim, asked, out.fileno(), err.fileno(), log.fileno())
            _, status = os.waitpid(pid, 0)
            texts = []
            for file in (out, err, log):
                file.seek(0)
                texts.append(file.read())
        reply = dict(zip(("out", "err", "calls"), (*texts[:2], texts[2].splitlines()), strict=True))
        sys.stdout.write(json.dumps({**reply, "code": os.waitstatus_to_exitcode(status)}) + "\n")
        sys.stdout.flush()


def run(words: list[str]) -> int:
    """A command, or with ``-c`` Python: what only the API does."""
    from ckpt_tools.cli import execute

    if words[0] != "-c":
        return execute(words)
    exec(words[1], {"words": words[2:]})
    return 0


def become(shim: ctypes.CDLL, asked: dict[str, Any], out: int, err: int, log: int) -> NoReturn:
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.argv = ["ckpt", *asked["words"]]
    shim.kill_points_set(os.fsencode(asked["directory"]), asked["nth"], asked["errno"], log)
    code = 70
    try:
        code = run(asked["words"])
    finally:
        shim.kill_points_set(b"", 0, 0, -1)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
