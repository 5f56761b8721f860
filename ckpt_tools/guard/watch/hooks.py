"""Calls commands with facts in variables: one at a time, for a bounded time, at the lowest CPU priority."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct

_TAIL = 2000  # last bytes of a command's output that are kept
_GRACE = 5.0  # seconds between SIGTERM and SIGKILL


class CommandResult(Struct, frozen=True):
    """How a command ended: its exit code (minus the signal), None if it could not be started; ``in_time`` is
    False if it was stopped at the timeout. ``output`` is the end of what it printed.
    """

    exit_code: int | None
    in_time: bool
    seconds: float
    output: str


def run_command(command: str, variables: Mapping[str, str], timeout: float) -> CommandResult:
    """Run a shell command to its end, or stop it after ``timeout`` seconds. Names found in a tree go into
    variables and never into the command, so no name can be a command. If this process is ended meanwhile, the
    command is stopped as well.
    """
    started, tail, in_time = time.monotonic(), b"", True
    try:
        process = subprocess.Popen(  # noqa: S603 - the words of whoever started this process
            ["/bin/sh", "-c", command],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as e:
        return CommandResult(None, True, 0.0, str(e))

    def read() -> None:
        nonlocal tail
        assert process.stdout is not None  # noqa: S101 - for the type checker: it was asked for
        with process.stdout as stream:
            while data := stream.read(1 << 16):
                tail = (tail + data)[-_TAIL:]

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        in_time = False
        _end(process)
    except BaseException:
        _end(process)
        raise
    reader.join(1.0)  # no longer: a process that the command left running may hold the pipe open for ever
    seconds = round(time.monotonic() - started, 6)
    return CommandResult(process.returncode, in_time, seconds, tail.decode("utf-8", "replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and all processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
            return


def give_way() -> None:
    """Give this process and its children the lowest priority, for CPUs and so for disks (ioprio_set(2))."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)  # whatever its priority was
