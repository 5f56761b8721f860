"""Runs ``ckpt`` commands in this process, which has the shim of injected_errors.c preloaded: one line of JSON
in (words, fault), one out.

Many cases cost one start of the interpreter. The system calls are real, and so are their errors.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import sys
from typing import Any, NoReturn


class Started(BaseException):
    """The command of ``ckpt run`` would have been started."""


def become(words: list[str], env: dict[str, str]) -> NoReturn:
    told = {name: env.get(f"CKPT_{name.upper()}") for name in ("step", "path", "resume")}
    sys.stdout.write(json.dumps(told))
    raise Started


def by_engine(root: str) -> int:
    """``ckpt verify --scheduler`` with workers that are threads of this process."""
    from concurrent.futures import ThreadPoolExecutor

    from ckpt_tools import api
    from ckpt_tools.cli.verify import exit_code
    from ckpt_tools.errors import CkptError
    from ckpt_tools.output import json as emit
    from ckpt_tools.reading.engines import Engine

    try:
        with ThreadPoolExecutor(2) as pool:
            result = api.verify([root], engine=Engine(pool, "threads"))
    except CkptError as e:
        sys.stderr.write(f"{e}\n")
        return e.exit_code
    sys.stdout.write(emit.render(result))
    return exit_code(result, strict=False)


def command(words: list[str]) -> int:
    if words[0] == "by-engine":
        return by_engine(words[1])
    from ckpt_tools.cli import execute

    try:
        return execute(words)
    except Started:
        return 0


def main() -> None:
    shim = ctypes.CDLL(None)
    shim.injected_errors_set.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_long]
    shim.injected_errors_count.restype = ctypes.c_long
    from ckpt_tools.job import command as starting
    from ckpt_tools.storage import stalls

    starting.become = become  # type: ignore[assignment]
    # How long it waits between two attempts is no part of an answer, and was two thirds of the time.
    stalls.pause = lambda _: None
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        out, err = io.StringIO(), io.StringIO()
        sys.argv = ["ckpt", *asked["words"]]
        fault = asked["fault"]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            shim.injected_errors_untyped(int(asked["untyped"]))
            if fault:
                path, call, number, times = fault
                shim.injected_errors_set(os.fsencode(path), call.encode(), number, times)
            try:
                code = command(asked["words"])
            finally:
                injected = shim.injected_errors_count() if fault else 0
                shim.injected_errors_set(b"", b"", 0, 0)
        reply = {"code": code, "out": out.getvalue(), "err": err.getvalue(), "injected": injected}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
