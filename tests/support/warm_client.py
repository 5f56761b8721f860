"""Stands on PATH as a command that a server of warm.py forks: it hands over its words, environment, directory
and streams, and ends as that process does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

SIZE = 4


def main(place: str, first: tuple[str, ...] = ()) -> None:
    asked = json.dumps(
        {"words": [*first, *sys.argv[1:]], "env": dict(os.environ), "cwd": os.getcwd()}
    ).encode()
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(place)
        socket.send_fds(ours, [len(asked).to_bytes(SIZE, "big")], [0, 1, 2])
        ours.sendall(asked)
        signal.signal(signal.SIGTERM, lambda *_: ours.shutdown(socket.SHUT_WR))  # the server passes it on
        status = os.waitstatus_to_exitcode(int.from_bytes(ours.recv(SIZE, socket.MSG_WAITALL), "big"))
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)
