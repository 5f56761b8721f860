"""Which process is which: pids are given again, a pid with its start time is not."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import cache

from msgspec import Struct


class Process(Struct, frozen=True):
    """``host`` is this boot of this machine; ``identity`` and ``parent``, who started us, are pid and start
    time, so that each means one process only.
    """

    host: str
    pid: int
    parent: str
    identity: str

    @staticmethod
    @cache
    def here() -> Process:
        boot = space = ""
        with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            boot = f.read().strip()
        with suppress(OSError):  # containers of one machine share the boot id and not their pids
            space = os.readlink("/proc/self/ns/pid")
        host = f"{socket.gethostname()}/{boot}/{space}"
        return Process(host, os.getpid(), _identity(os.getppid()), _identity(os.getpid()))

    @staticmethod
    def alive(identity: str) -> bool:
        """Whether the process of that identity still runs on this host."""
        pid = identity.partition(".")[0]
        return pid.isdigit() and _identity(int(pid)) == identity


def _identity(pid: int) -> str:
    """``pid.starttime``, in clock ticks since boot (proc(5), stat field 22); the pid alone where there is no
    /proc; "" for a process that is not there.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f"{pid}.{f.read().rpartition(')')[2].split()[19]}"
    except OSError:
        pass
    if os.path.isdir("/proc/self"):
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass  # somebody else's, and so it runs
    return str(pid)
