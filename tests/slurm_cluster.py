"""A real Slurm of its own on this machine: munged, slurmctld and two slurmds as two nodes, on free ports of loopback and below one temporary directory.

They are children of a keeper (this file, run as a script), which ends them and everything that they started as soon as its stdin closes: also when the tests
that started it are killed. Tried with Slurm 22.05.8 and munge 0.5.15 of Debian 12, as root and as an ordinary user.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

PACKAGES = "slurm-wlm munge openmpi-bin"
NODES = ("n1", "n2")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
"""Where the daemons are: an ordinary user's PATH lacks these two on Debian."""
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE", "PREEMPTED")
# cred_expire is how long a requeued job waits before it starts again (slurm.conf(5)), and the longest that starting a task may take; 120 s otherwise.
_CONF = """\
ClusterName=ckpt
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket,cred_expire=15
SlurmUser={user}
SlurmdUser={user}
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
PlugStackConfig=/dev/null
ReturnToService=2
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/%n.log
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=2
FirstJobId={first}
JobRequeue=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:8
"""


def needs(*commands: str) -> None:
    """Fail, not skip: without them nobody has seen that it works."""
    missing = [name for name in commands if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.fail(f"not installed: {', '.join(missing)}. These tests run the real ones: apt-get install {PACKAGES}", pytrace=False)


class Slurm:
    """The cluster, as a user meets it: ``sbatch``, ``srun`` and ``scontrol``."""

    def __init__(self) -> None:
        needs("munged", "slurmctld", "slurmd", "slurmstepd", "sbatch", "srun", "scontrol", "sinfo")
        # A socket's name may have 107 bytes, and user munge must come through: so not below the directories of pytest.
        self.home = Path(tempfile.mkdtemp(prefix="ckpt-slurm-"))
        self.home.chmod(0o711)
        self.keeper = subprocess.Popen(
            [sys.executable, __file__, self.home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "PATH": PATH}
        )  # fmt: skip
        assert self.keeper.stdout
        if (said := self.keeper.stdout.readline()) != "ready\n":
            said += self.keeper.stdout.read()
            self.stop()
            pytest.fail(f"Slurm does not start: {said}", pytrace=False)

    def stop(self) -> None:
        assert self.keeper.stdin
        self.keeper.stdin.close()
        self.keeper.wait(60)
        assert self.keeper.stdout
        self.keeper.stdout.close()

    def env(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**env, "SLURM_CONF": f"{self.home}/slurm.conf"}

    def run(self, *words: object, env: Mapping[str, str] = os.environ) -> str:
        """What a command of Slurm's prints."""
        done = subprocess.run([str(w) for w in words], env=self.env(env), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def submit(self, script: str, cwd: Path, env: Mapping[str, str], options: Sequence[str] = ("-N1", "-n2")) -> Batch:
        """Hand a batch script to sbatch, as a file in ``cwd``."""
        file = cwd / f"{secrets.token_hex(4)}.sbatch"
        file.write_text(script if script.startswith("#!") else f"#!/bin/bash\n{script}")
        out = file.with_suffix(".out")
        number = self.run("sbatch", "--parsable", f"--chdir={cwd}", f"--output={out}", "--open-mode=append", *options, file, env=env).strip()
        return Batch(self, number, out)


class Batch:
    """One job of sbatch."""

    def __init__(self, slurm: Slurm, number: str, out: Path) -> None:
        self.slurm, self.number, self.out = slurm, number, out

    def show(self) -> dict[str, str]:
        """``scontrol show job``: it knows a job that has ended for five minutes (MinJobAge), without accounting."""
        return dict(re.findall(r"(\w+)=(\S*)", self.slurm.run("scontrol", "-o", "show", "job", self.number)))

    def wait(self, timeout: float = 90, until: Path | None = None) -> str:
        """The job's exit code when it has ended, as Slurm writes it: "4:0" is exit code 4 and no signal. Or "" as soon as a file is there."""
        end = time.monotonic() + timeout
        while True:
            if until and until.exists():
                return ""
            seen = self.show()
            if seen["JobState"] in _ENDED:
                assert until is None, f"{until} did not appear\n{self.said}"
                return seen["ExitCode"]
            late = f"the job is still {seen['JobState']} ({seen.get('Reason')}) after {timeout:g} s\n{self.said}{self.slurm_logs}"
            assert time.monotonic() < end, late
            time.sleep(0.2)

    @property
    def said(self) -> str:
        """Its stdout and stderr, those of its tasks too."""
        return self.out.read_text() if self.out.exists() else ""

    @property
    def slurm_logs(self) -> str:
        return "".join(f"\n{p.name}: {p.read_text()[-1500:]}" for p in sorted(self.slurm.home.glob("*.log")))


# ---- the keeper


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports


def keep(home: Path) -> None:
    """Start the daemons, say "ready" or what is wrong, and end them when stdin ends. Whatever they leave comes to us as its new parent, and ends as well."""
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for attempt in range(3):  # a port that was free may be taken by now
            try:
                _start(home)
                break
            except RuntimeError:
                if attempt == 2:
                    raise
                _end_all()
        _say("ready\n")
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            _reap()  # proctrack/pgid takes a process group for alive as long as a zombie is in it
    except RuntimeError as e:
        _say(f"{e}\n")
    finally:
        _end_all()
        shutil.rmtree(home, ignore_errors=True)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _start(home: Path) -> None:
    root = os.geteuid() == 0
    munge = home / "munge"
    munge.mkdir(mode=0o711, exist_ok=True)
    for name in ("key", "socket"):
        (munge / name).unlink(missing_ok=True)
    (munge / "key").write_bytes(secrets.token_bytes(128))
    (munge / "key").chmod(0o400)
    if root:  # munged wants a user of its own, to whom all this belongs
        for path in (munge, munge / "key"):
            shutil.chown(path, "munge", "munge")
    for name in ("state", *NODES):
        (home / name).mkdir(exist_ok=True)
    host = socket.gethostname().partition(".")[0]
    user = "root" if root else os.environ.get("USER") or str(os.getuid())
    first = 1 + secrets.randbelow(50000)  # job scripts make port numbers of it, and other clusters may run beside this one
    (home / "slurm.conf").write_text(_CONF.format(home=home, host=host, ports=free_ports(3), user=user, first=first))
    os.environ["SLURM_CONF"] = f"{home}/slurm.conf"
    files = [f"--{what}-file={munge}/{what}" for what in ("key", "pid", "log", "seed")]
    as_munge = {"user": "munge", "group": "munge", "extra_groups": []} if root else {}
    log = (home / "start.log").open("ab")
    daemons = [subprocess.Popen(["munged", "-F", f"--socket={munge}/socket", *files], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **as_munge)]  # type: ignore[call-overload]
    _until((munge / "socket").exists, daemons, home)
    slurm = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in NODES)]
    daemons += [subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log) for words in slurm]

    def idle() -> bool:
        return subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True).stdout.split() == ["idle"] * len(NODES)

    _until(idle, daemons, home)


def _until(done: object, daemons: Sequence[subprocess.Popen[bytes]], home: Path, timeout: float = 60) -> None:
    assert callable(done)
    end = time.monotonic() + timeout
    while not done():
        if time.monotonic() > end or any(d.poll() is not None for d in daemons):
            ended = [f"{d.args[0]} ended with {d.returncode}" for d in daemons if d.poll() is not None]  # type: ignore[index]
            raise RuntimeError("\n".join([*ended, *(p.read_text()[-2000:] for p in sorted([*home.glob("*.log"), home / "munge/log"]) if p.exists())]))
        time.sleep(0.1)


def _reap() -> bool:
    """Whether there are still children, after those that have ended are gone."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _end_all() -> None:
    """Kill our children until there are none: those of a killed one become ours."""
    while _reap():
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
