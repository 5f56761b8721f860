"""Where the nodes of a job meet: in a directory that all see, or in torch's store at a known address."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ckpt_tools.errors import UsageError
from ckpt_tools.job.meeting import Board, Files, Store
from ckpt_tools.job.membership import Membership, Options
from ckpt_tools.launchers import LaunchLine
from ckpt_tools.planning import decision_log
from ckpt_tools.settings.parsers import is_address
from ckpt_tools.storage.trust import Trust

_PORTS = 1 << 16


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < _PORTS


def find_board(
    of: Membership, options: Options, line: LaunchLine | None, env: Mapping[str, str], trusted: Trust
) -> Board:
    """Return the board of the nodes of this job. Raises UsageError when nothing tells where they meet."""
    if is_address(options.meet) or (not options.meet and options.plan_dir is None):
        host, port, keeper = _find_endpoint(of, options, line, env)
        return Store(host, port, keeper, timeout=options.timeout, prefix=of.place or "job")
    if not of.place:
        raise UsageError(
            "nothing names this job, so its nodes cannot find each other",
            "give torchrun --rdzv-id, or add --job ID, the same on every node",
        )
    # not below the root's own place: nodes may mount it elsewhere
    place = os.path.join(options.meet or options.plan_dir or "", f"{of.place}.meeting")
    return Files(place, trusted, "--meet" if options.meet else decision_log.FLAG)


def _find_endpoint(
    of: Membership, options: Options, line: LaunchLine | None, env: Mapping[str, str]
) -> tuple[str, int, bool]:
    """Return the host and the port of the agreement's store, and whether this node keeps it. Raises
    UsageError when nothing tells.
    """
    first, master, master_port = of.node == 0, env.get("MASTER_ADDR"), env.get("MASTER_PORT", "")
    agents = options.worker and env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if at := options.meet or options.rendezvous:
        host, _, port = at.rpartition(":")
        if not host or not _is_port(port):
            raise UsageError(f"--meet {at!r} is not HOST:PORT", "name a free port of the first node")
        number = int(port)
    elif agents and master and _is_port(master_port):
        # the store that torchrun keeps for its workers (torch/distributed/rendezvous.py)
        host, number, first = master, int(master_port), False
    elif line and line.endpoint:
        if not _is_port(line.port) or int(line.port) == _PORTS - 1:
            raise UsageError(
                f"{line.endpoint!r}: there is no other port beside {line.port}", "add --meet HOST:PORT"
            )
        host, number = line.host, int(line.port) + 1
    elif slurm := _find_slurms(env):
        host, number = slurm
    else:
        raise UsageError(
            "the address where the nodes meet is unknown",
            "add --meet DIR that all see, or --meet HOST:PORT with a free port of the first node",
        )
    return host.removeprefix("[").removesuffix("]"), number, first


def _find_slurms(env: Mapping[str, str]) -> tuple[str, int] | None:
    nodes, job = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST"), env.get("SLURM_JOB_ID", "")
    return (first_host(nodes), 20000 + int(job) % 20000) if nodes and job.isdigit() else None


def first_host(nodes: str) -> str:
    """Return the first of Slurm's ``node[03-05,9],other`` (scontrol(1) show hostnames)."""
    # the first number of every bracket: a name may have several
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes).partition(",")[0]
