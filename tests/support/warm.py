"""Commands as processes of their own that start at once: forked from a process that has their modules loaded.

Loading them is most of what a short command costs, and the tests start a thousand. What is forked has the
words, environment, directory and streams that it is given, no signal handler of Python's but the usual one,
and this server as its parent, as commands of one job have one shell. Tests of the start itself (imports,
signals, streams that are closed) start a real one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from places import FIXTURES, ROOT
from warm_client import SIZE

_ONE_STARTS = threading.Lock()
_AT_THE_START = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_")


def completed(
    words: Sequence[str], env: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run([sys.executable, "-m", "ckpt_tools", *words], capture_output=True, text=True)``."""
    odd = [name for name in env if name.startswith(_AT_THE_START) and env[name] != os.environ.get(name)]
    assert not odd, f"{odd} would mean something to a new interpreter only: start one"
    asked = json.dumps({"words": list(words), "env": dict(env), "cwd": str(cwd or os.getcwd())}).encode()
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(_server("ckpt").place)
        (out, out_there), (err, err_there) = os.pipe(), os.pipe()
        with open(out, "rb") as stdout, open(err, "rb") as stderr, open(os.devnull, "rb") as stdin:
            socket.send_fds(ours, [len(asked).to_bytes(SIZE, "big")], [stdin.fileno(), out_there, err_there])
            os.close(out_there)
            os.close(err_there)
            ours.sendall(asked)
            said = _both(stdout, stderr)
        status = os.waitstatus_to_exitcode(int.from_bytes(_exactly(ours, SIZE), "big"))
    return subprocess.CompletedProcess(list(words), status, *said)


def _both(*streams: IO[bytes]) -> list[str]:
    """What comes out of all of them until they end."""
    found: dict[Any, list[bytes]] = {stream: [] for stream in streams}
    with selectors.DefaultSelector() as waiting:
        for stream in streams:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                part = os.read(key.fd, 1 << 16)
                found[key.fileobj].append(part)
                if not part:
                    waiting.unregister(key.fileobj)
    return [b"".join(parts).decode().replace("\r\n", "\n") for parts in found.values()]


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise EOFError("the other side has gone")
        parts += part
    return parts


class _Server:
    """It ends when its stdin does, and so when this process ends."""

    def __init__(self, what: str) -> None:
        self.home = tempfile.mkdtemp(prefix="ckpt-warm-", dir="/tmp")  # a socket's name may have 107 bytes
        self.place = os.path.join(self.home, "socket")
        line = [sys.executable, __file__, self.place, what]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        assert self.process.stdout and self.process.stdout.readline() == b"ready\n"

    def stop(self) -> None:
        with self.process as process:
            assert process.stdin
            process.stdin.close()
        shutil.rmtree(self.home, ignore_errors=True)


_started: dict[str, _Server] = {}


def _server(what: str) -> _Server:
    with _ONE_STARTS:
        if what not in _started:
            _started[what] = _Server(what)
        return _started[what]


def torchrun() -> str:
    """A directory for PATH with a torchrun that starts at once: torch's own, forked as what it starts is, since
    loading torch once more is most of what these tests cost.
    """
    return _on_path("torchrun", "python-torch", "-c", "from torch.distributed.run import main; main()")


def commands() -> str:
    """A directory for PATH with a ckpt that starts at once."""
    return _on_path("ckpt")


def python_with_torch() -> str:
    """An interpreter that has torch loaded, for ``-c CODE``, ``-m MODULE`` and scripts; ``-u`` before them is
    passed over.
    """
    return os.path.join(_on_path("python-torch"), "python-torch")


def python_with_signing() -> str:
    """The same with the command of OpenSSF model signing, and ours."""
    return os.path.join(_on_path("python-signing"), "python-signing")


def _on_path(name: str, what: str = "", *first: str) -> str:
    """A directory with a command: what a server, of its name or another one, makes of ``first`` and its words."""
    server = _server(what or name)
    script = Path(server.home, "bin", name)
    if not script.exists():
        script.parent.mkdir(exist_ok=True)
        here = str(Path(__file__).parent)
        script.write_text(
            f"#!{sys.executable} -IS\nimport sys\nsys.path.append({here!r})\nfrom warm_client import"
            f" main\nmain({server.place!r}, {first!r})\n"
        )
        script.chmod(0o755)
    return str(script.parent)


def stop() -> None:
    """End the servers, if there are any; tests/conftest.py calls it when all tests have ended."""
    for server in _started.values():
        server.stop()
    _started.clear()


# ---- the server


def serve(place: str) -> list[str]:
    """Fork a process for each request; returns its words in that process, and never in this one."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as waiting:
        listening.bind(place)
        listening.listen(100)
        for stream in (listening, woken, sys.stdin):
            waiting.register(stream, selectors.EVENT_READ)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            for key, _ in waiting.select():
                if key.fileobj is listening:
                    connection, _ = listening.accept()
                    asked, streams = _request(connection)
                    if (child := os.fork()) == 0:
                        for other in (connection, *running.values()):
                            other.close()
                        return _become(asked, streams)
                    running[child] = connection
                    waiting.register(connection, selectors.EVENT_READ, child)
                    for fd in streams:
                        os.close(fd)
                elif key.fileobj is sys.stdin:
                    # also when the tests were killed
                    shutil.rmtree(os.path.dirname(place), ignore_errors=True)
                    os._exit(0)
                elif key.fileobj == woken:
                    os.read(woken, 1 << 10)
                    _reap(running, waiting)
                elif key.data in running:  # who asked has gone, or passes on a signal
                    waiting.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGTERM)


def _request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size, streams, _, _ = socket.recv_fds(connection, SIZE, 3)
    return json.loads(_exactly(connection, int.from_bytes(size, "big"))), streams


def _reap(running: dict[int, socket.socket], waiting: selectors.BaseSelector) -> None:
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with running.pop(child) as connection:
            if connection in waiting.get_map():
                waiting.unregister(connection)
            with suppress(OSError):  # it has gone
                connection.sendall(status.to_bytes(SIZE, "big"))


def _become(asked: dict[str, Any], streams: list[int]) -> list[str]:
    """Take over what was asked for: nothing of the server's is left but its modules."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.path[0] = asked["cwd"]
    # Modules that this command would not have loaded wait for the end: a process of its own has nothing to take
    # apart then, which is as much work as a short command.
    atexit._clear()
    return asked["words"]


def _load(what: str) -> None:
    if what == "python-torch":
        import torch._dynamo
        import torch.distributed.checkpoint
        import torch.distributed.run
        import torch.optim  # noqa: F401

        return
    if what == "python-signing":
        import model_signing._cli  # noqa: F401
    import ckpt_tools

    for module in pkgutil.walk_packages(ckpt_tools.__path__, "ckpt_tools."):
        if not module.name.endswith(("__main__", "_child")):
            importlib.import_module(module.name)
    _prepare()
    _prepare_for_stores()


def _prepare() -> None:
    """What each command makes for itself and keeps: its flags, and the expressions that names are compared with."""
    from ckpt_tools.cli.app import COMMANDS, command, line
    from ckpt_tools.cli.dispatch import execute

    line()
    for name in COMMANDS:
        command(name)
    demo, kept = str(FIXTURES / "demo"), [(stream, os.dup(stream)) for stream in (1, 2)]
    with open(os.devnull, "w") as nowhere:
        for stream, _ in kept:
            os.dup2(nowhere.fileno(), stream)
        for words in (["plan", demo, "--json"], ["verify", demo], ["ls", demo]):
            execute([*words, *(() if words[0] == "ls" else ("--no-cache",))])
        for stream, copy in kept:
            os.dup2(copy, stream)
            os.close(copy)


def _prepare_for_stores() -> None:
    """The clients of object stores, of which one is half a second: each command about a URL would load them.
    And what most commands, or ``report``, load late.
    """
    import sqlite3  # noqa: F401

    with suppress(ImportError):
        import jinja2  # noqa: F401
        import obstore.store  # noqa: F401
        from boto3.session import Session

        Session("a", "b", region_name="us-east-1").client("s3", endpoint_url="http://127.0.0.1:9")


def run_as_python(words: list[str]) -> None:
    """What ``python WORDS`` does, in a module that is the main one."""
    first, *rest = words[1:] if words[0] == "-u" else words
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    elif first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


def end(status: int) -> None:
    """As Python ends, but for taking apart all modules, which with torch's is half a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 255)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    place, what = sys.argv[1:]
    _load(what)
    gc.freeze()
    sys.argv = [what, *serve(place)]
    if what.startswith("python-"):
        try:
            run_as_python(sys.argv[1:])
        except SystemExit as e:
            if not isinstance(e.code, int | None):
                raise
            end(e.code or 0)
        end(0)
    from ckpt_tools.cli import main

    main()
