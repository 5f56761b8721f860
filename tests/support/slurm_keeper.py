"""Starts munged, slurmctld and two slurmds as two nodes, on free ports of loopback and below one directory; a
process of its own, for slurm_cluster.py.

Ends them, everything that they started, and the directory, as soon as stdin closes: also when the tests that
want them are killed.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NODES = ("n1", "n2")
# cred_expire is how long a requeued job waits before it starts again (slurm.conf(5)), and the longest that
# starting a task may take; 120 s otherwise.
CONF = """\
ClusterName=ckpt
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket,cred_expire=10
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


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports


def keep(home: Path) -> None:
    """Start the daemons, say "ready" or what is wrong, and end them when stdin ends. Whatever they leave
    comes to us as its new parent, and ends as well.
    """
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
    # job scripts make port numbers of it, and other clusters may run beside this one
    first = 1 + secrets.randbelow(50000)
    user = pwd.getpwuid(os.geteuid()).pw_name
    conf = CONF.format(home=home, host=host, ports=free_ports(3), user=user, first=first)
    (home / "slurm.conf").write_text(conf)
    os.environ["SLURM_CONF"] = f"{home}/slurm.conf"
    files = [f"--{what}-file={munge}/{what}" for what in ("key", "pid", "log", "seed")]
    as_munge: dict[str, Any] = {"user": "munge", "group": "munge", "extra_groups": []} if root else {}
    log = (home / "start.log").open("ab")
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    daemons = [subprocess.Popen(["munged", "-F", f"--socket={munge}/socket", *files], **quiet, **as_munge)]
    _until((munge / "socket").exists, daemons, home)
    slurm = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in NODES)]
    daemons += [subprocess.Popen(words, **quiet) for words in slurm]

    def idle() -> bool:
        states = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True).stdout
        return states.split() == ["idle"] * len(NODES)

    _until(idle, daemons, home)


def _until(
    done: Callable[[], bool], daemons: Sequence[subprocess.Popen[bytes]], home: Path, timeout: float = 1000
) -> None:
    end = time.monotonic() + timeout
    while not done():
        if time.monotonic() > end or any(d.poll() is not None for d in daemons):
            ended = [f"{d.args!r} ended with {d.returncode}" for d in daemons if d.poll() is not None]
            logs = (p for p in sorted([*home.glob("*.log"), home / "munge/log"]) if p.exists())
            raise RuntimeError("\n".join([*ended, *(p.read_text()[-2000:] for p in logs)]))
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
