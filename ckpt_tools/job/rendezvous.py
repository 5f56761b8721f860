"""Where the nodes of a job meet while one decision is made for all: nobody starts before all can, and who
fails tells the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType

from msgspec import Struct, field

from ckpt_tools.errors import CkptError, UsageError
from ckpt_tools.job.decision import Decision
from ckpt_tools.job.meeting import Board, Files, Meeting, Store, failure, meeting
from ckpt_tools.job.membership import Membership, Options
from ckpt_tools.launchers import LaunchLine
from ckpt_tools.planning import decision_log
from ckpt_tools.settings.parsers import is_address

_PORTS = 1 << 16


class Rendezvous(Struct):
    """Entered for as long as the decision is made. ``joined`` is the meeting, once this process has come to
    it; None where the job needs none, or another process of this node decides.
    """

    membership: Membership
    options: Options
    line: LaunchLine | None
    env: Mapping[str, str]
    joined: Meeting | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    @property
    def needed(self) -> bool:
        """Whether the nodes of this job come together: they look at disks of their own, or no id of this
        start alone lets them share one decision.
        """
        membership = self.membership
        return self.options.agree or (membership.nodes > 1 and not (membership.unique and membership.key))

    def __enter__(self) -> Rendezvous:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)  # the meeting tells the others how this node ended

    def join(self) -> Meeting:
        """Wait until all nodes are there. Raises UsageError when it is not known who they are, and where they
        meet.
        """
        membership, options = self.membership, self.options
        if membership.node is None or membership.node >= membership.nodes:
            raise UsageError(
                f"the index of this node among {membership.nodes} nodes is unknown",
                "set CKPT_NODE=N, from 0 (torchrun --node-rank tells it as well)",
            )
        self.joined = self._open.enter_context(
            meeting(self._board(), membership.node, membership.nodes, options.timeout)
        )
        return self.joined

    def ready(self, decision: Decision) -> None:
        """Wait until every node has what it needs to start, after a last look at its files. Raises what keeps
        one of them.
        """
        if self.joined:
            decision.check(self.membership.ranks if self.options.agree else None)
            self.joined.exchange({}, lambda _: {})
            self._open.close()

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Tell the others, who wait, what keeps this node from taking part."""
        try:
            yield
        except CkptError as error:
            first = self.membership.rank is None or (
                self.membership.ranks is not None and self.membership.rank == self.membership.ranks.start
            )
            if self.needed and first and self.joined is None:
                with suppress(CkptError):  # the reason that counts is the one to be told
                    self.join().exchange(failure(error), lambda _: {})
            raise

    def _board(self) -> Board:
        membership, options = self.membership, self.options
        if is_address(options.meet or "") or (not options.meet and options.plan_dir is None):
            host, port, keeper = find_endpoint(membership, options, self.line, self.env)
            return Store(host, port, keeper, timeout=options.timeout, prefix=membership.place or "job")
        if not membership.place:
            raise UsageError(
                "nothing names this job, so its nodes cannot find each other",
                "give torchrun --rdzv-id, or add --job ID, the same on every node",
            )
        # not below the root's own place: nodes may mount it elsewhere
        place = os.path.join(options.meet or options.plan_dir or "", f"{membership.place}.meeting")
        return Files(place, options.trust, "--meet" if options.meet else decision_log.FLAG)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < _PORTS


def find_endpoint(
    membership: Membership, options: Options, line: LaunchLine | None, env: Mapping[str, str]
) -> tuple[str, int, bool]:
    """Return the host and the port of the agreement's store, and whether this node keeps it. Raises
    UsageError when nothing tells.
    """
    first, master, master_port = membership.node == 0, env.get("MASTER_ADDR"), env.get("MASTER_PORT", "")
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
