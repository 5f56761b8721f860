"""What the attacks of attack.py happen in: a victim's runs and home, a directory that all may write, another
user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, Any

from ckpt_tools.planning import first_launch

HOME = Path(__file__).parent.parent
ATTACKER = 61_234
"""A user id that nobody has; the victim is whoever runs this."""
MARK = "PWNED"
"""Part of every path and value of the attacker's: where it is seen, orders were obeyed."""
PATIENCE = 900.0
"""Seconds after which a command counts as hanging: none of these takes a tenth of that, but machines are
busy.
"""
OLD = 1_700_000_000
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")


@dataclass(frozen=True)
class Answer:
    """How one command ended: ``code`` is negative for a signal, ``memory`` its peak in bytes, ``cpu`` its
    seconds of CPU time.
    """

    code: int
    out: str
    err: str
    memory: int = 0
    cpu: float = 0.0
    hung: bool = False

    @property
    def said(self) -> str:
        """The first line of the error message, else of what was said at all."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        return next(
            (line for line in lines if line.startswith(("ckpt: error", "ckpt: internal"))),
            lines[0] if lines else "",
        )


class NeedsRootError(Exception):
    """Nobody but root can become another user."""


class Scene:
    """A new one for every attack, below the system's directory for temporary files, where other users reach
    it.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        place.chmod(0o755)
        self.runs, self.home, self.shared, self.evil = (
            place / name for name in ("runs", "home", "shared", "evil")
        )
        for directory, mode in ((self.home, 0o700), (self.shared, 0o1777), (self.evil, 0o755)):
            directory.mkdir()
            directory.chmod(mode)
        if os.geteuid() == 0:
            os.chown(self.evil, ATTACKER, ATTACKER)

    def demo(self) -> Path:
        """Two checkpoints of Megatron-LM, of which the newer one is damaged."""
        shutil.copytree(HOME / "fixtures" / "demo", self.runs)
        for path in sorted(self.runs.rglob("*.pt")):
            when = OLD + 360 * int(path.parts[-3].removeprefix("iter_"))
            os.utime(path, (when, when))
        return self.runs

    @contextmanager
    def attacker(self) -> Iterator[None]:
        """Within, files are made and changed by the other user. Import nothing there. Raises NeedsRootError."""
        if os.geteuid() != 0:
            raise NeedsRootError
        groups = os.getgroups()
        os.setgroups([])
        os.setegid(ATTACKER)
        os.seteuid(ATTACKER)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)

    @property
    def environ(self) -> dict[str, str]:
        """Nothing of the caller's but where programs and temporary files are."""
        own = {name: os.environ[name] for name in _KEPT if name in os.environ}
        places = {
            "HOME": self.home,
            "XDG_STATE_HOME": self.home / "state",
            "XDG_CACHE_HOME": self.home / "cache",
        }
        return {**own, **{name: str(path) for name, path in places.items()}}

    def ckpt(
        self,
        *words: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        code: str = "",
        given: str | None = None,
    ) -> Answer:
        """One command of the victim's; ``code`` runs before it in the same process, ``given`` is its standard
        input.
        """
        command = Command(self, words, {**self.environ, **(env or {})}, cwd, code)
        return command.ended(given)

    def decision(self) -> tuple[Path, dict[str, Any]]:
        """Where in a plan-dir the decision of ``ckpt run --job j`` about the runs lies, and an honest one."""
        text, place = honest()
        below = Path(os.path.relpath(first_launch.name_home(str(self.home), str(self.runs)), self.home))
        return below / "j.0" / "1.json", json.loads(text.replace(place, str(self.place)))

    def feed(self, fifo: Path, data: bytes) -> subprocess.Popen[bytes]:
        """Somebody who writes into a FIFO as soon as it is opened for reading. End it with ``put_down``."""
        content = self.place / "fed"
        content.write_bytes(data)
        return subprocess.Popen(
            ["sh", "-c", 'exec cat "$1" > "$2"', "sh", str(content), str(fifo)], stderr=subprocess.DEVNULL
        )

    def put_down(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()


class Command:
    """One command of the victim's that runs."""

    def __init__(
        self, scene: Scene, words: Sequence[object], env: Mapping[str, str], cwd: Path | None, code: str = ""
    ) -> None:
        self.memory = scene.place / f"memory-{next(_NUMBERS)}"
        begin = (
            f"{_MEMORY.format(str(self.memory))}{code}\nfrom ckpt_tools.cli import main\ntry:\n   "
            " main()\nfinally:\n    _note()"
        )
        self.streams: list[IO[bytes]] = [tempfile.TemporaryFile(dir=scene.place) for _ in range(2)]  # noqa: SIM115 - ended() closes them
        self.process = subprocess.Popen(
            [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "-c", _WHERE + begin, *map(str, words)],
            env=dict(env), cwd=cwd or scene.home, stdin=subprocess.PIPE, stdout=self.streams[0], stderr=self.streams[1],
        )  # fmt: skip

    def ended(self, given: str | None = None) -> Answer:
        """Wait for its end."""
        hung = threading.Event()
        timer = threading.Timer(PATIENCE, lambda: (hung.set(), self.process.kill()))
        timer.start()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write((given or "").encode())
        _, status, used = os.wait4(self.process.pid, 0)
        timer.cancel()
        self.process.returncode = os.waitstatus_to_exitcode(status)
        out, err = (_all(stream) for stream in self.streams)
        memory = int(self.memory.read_text()) if self.memory.exists() else 0
        return Answer(self.process.returncode, out, err, memory, used.ru_utime + used.ru_stime, hung.is_set())


_WHERE = f"import sys\nsys.path[:] = [p for p in sys.path if p]\nsys.path.insert(0, {str(HOME)!r})\n"
"""The package under test, whatever the working directory holds; python -c names that one first before Python
3.11.
"""


_NUMBERS = count()
_MEMORY = """
import os
def _note(path={!r}):
    with open("/proc/self/status") as status, open(path, "w") as out:
        out.write(next(str(int(line.split()[1]) * 1024) for line in status if line.startswith("VmHWM")))
def _exit(code, end=os._exit):
    _note()
    end(code)
os._exit = _exit
"""
"""Notes the peak of the memory at the end: what wait4 tells begins with that of the process which started
this one.
"""


def _all(stream: IO[bytes]) -> str:
    with stream:
        stream.seek(0)
        return stream.read().decode(errors="replace")


@cache
def honest() -> tuple[str, str]:
    """A decision about the demo's runs, and the place that its paths begin with: made once, since it is the
    same anywhere else.
    """
    with scene() as at:
        plans = at.home / "plans"
        done = at.ckpt("run", at.demo(), "--order", "step", "--plan-dir", plans, "--job", "j", "--", "true")
        if done.code:
            raise RuntimeError(f"the honest start failed: {done.err}")
        return next(plans.rglob("1.json")).read_text(), str(at.place)


@contextmanager
def scene() -> Iterator[Scene]:
    """A scene that is removed afterwards."""
    place = Path(tempfile.mkdtemp(prefix="ckpt-attack-"))
    try:
        yield Scene(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
