"""A server in a process of its own, which says in its log where it listens."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

ADDRESS = re.compile(r"http://127\.0\.0\.1:[1-9]\d*")
# The kernel ends the server with whoever started it, also where that one is killed: PR_SET_PDEATHSIG is 1.
BOUND = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


def program(name: str, folders: Sequence[str | Path] = (), *, install: str) -> str:
    """The path of a command; missing is a failure of the tests that need it, with what to do."""
    path = os.pathsep.join([*map(str, folders), os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed, and these tests run it for real: {install}")
    return found


@contextmanager
def server(command: Sequence[str], log: Path) -> Iterator[str]:
    """The address that the process says it listens at, once it answers there. Its log is the message of the
    failure if it ends before.
    """
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", BOUND, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        yield answering(child, log)
    finally:
        child.kill()
        child.wait()


def answering(child: subprocess.Popen[bytes], log: Path) -> str:
    """Ask until there is an answer, or until the process has ended."""
    while child.poll() is None:
        said = ADDRESS.search(log.read_text(errors="replace"))
        if said is not None and listens(said.group()):
            return said.group()
        time.sleep(0.02)
    raise RuntimeError(f"the server ended with {child.returncode}:\n{log.read_text(errors='replace')}")


def listens(address: str) -> bool:
    to = urlsplit(address)
    try:
        socket.create_connection((to.hostname, to.port or 80)).close()
    except OSError:
        return False
    return True
