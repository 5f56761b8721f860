"""Makes a job's decision in the process that is the one to make it: plan, build the view, or meet the other nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ckpt_tools import pipeline
from ckpt_tools.cache import Note
from ckpt_tools.errors import NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.job import torchrun_line
from ckpt_tools.job.decision import Body, body_of
from ckpt_tools.job.decisions import Decisions
from ckpt_tools.job.meeting import Board, Files, Meeting, Store, meeting
from ckpt_tools.job.party import Party
from ckpt_tools.model import LoadPlan
from ckpt_tools.pipeline.session import Progress
from ckpt_tools.question import Selection

Say = Callable[[LoadPlan], None]
"""Called with a plan that was made here, for its warnings to be shown once per job."""


@dataclass(frozen=True)
class Terms:
    """How a job comes to its one decision; the defaults are the command's. ``timeout`` in seconds; ``plan_dir`` None: this user's own, on this machine. ``words`` are what starts us, for messages."""

    words: Sequence[str] = ("ckpt", "run")
    worker: bool = False
    plan_dir: str | None = None
    job: str = ""
    node: int | None = None
    nodes: int | None = None
    timeout: float = 600.0
    allow_fresh: bool = False
    require_mount: bool = False
    agree: bool = False
    rendezvous: str = ""
    transfer: str = ""
    view: str = ""


def asked(selection: Selection) -> str:
    """A digest of the question, without what differs from rank to rank."""
    import xxhash

    same = replace(
        selection, rank=None, jobs=0, io="auto", limit_rate=None, world_size=None, world_from="", fault_ranks=frozenset(), cache=False, max_age=0
    )
    return xxhash.xxh3_64_hexdigest(f"{same} {sorted(selection.fault_ranks)}".encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class Maker:
    """Makes the decision where this process is the one to make it."""

    root: str
    selection: Selection
    terms: Terms
    party: Party
    decisions: Decisions
    env: Mapping[str, str]
    say: Say | None
    progress: Progress | None
    note: Note | None = None
    line: torchrun_line.TorchrunLine | None = None
    world: int | None = None

    @property
    def asked(self) -> str:
        return asked(self.selection)

    def make(self) -> Body:
        """The body of the decision. Raises CkptError when there is nothing to decide for; with several nodes then all of them do."""
        party = self.party
        if self.terms.agree:
            from ckpt_tools.job.agree import agree

            return self._body(agree(self))
        if party.nodes == 1 or (party.unique and party.key):
            return self._body(self.plan())
        with self.meeting() as m:
            body = m.exchange({}, lambda _: self._body(self.plan()))
            return m.exchange(body, lambda _: body)  # nobody starts before all have it

    def plan(self) -> LoadPlan:
        """The plan for the whole job; one without a checkpoint where that is allowed."""
        selection = self.selection
        try:
            plan = pipeline.plan(self.root, selection, progress=self.progress, note=self.note)
        except (NoCheckpoint, NoneUsable) as error:
            if not self.terms.allow_fresh or error.plan is None:
                raise
            plan = error.plan
        return self.first_launch(plan)

    def first_launch(self, plan: LoadPlan) -> LoadPlan:
        """The plan, unless it would start from nothing where an earlier start had something: a file system that is not mounted looks like that."""
        before = self.decisions.last() if plan.checkpoint is None else None
        if before and not self.terms.allow_fresh:
            raise NoneUsable(
                f"there is no checkpoint in {self.root}, but an earlier start resumed from step {before.get('step')} ({before.get('path')})",
                "is the file system mounted? To start from nothing all the same say --allow-fresh",
                plan=plan,
            )
        return plan

    def _body(self, plan: LoadPlan) -> Body:
        if self.say:
            self.say(plan)
        if self.terms.view and plan.checkpoint:
            from ckpt_tools.job.view import build

            return {**body_of(plan), **build(plan, self.terms.view)}
        return body_of(plan)

    @contextmanager
    def meeting(self) -> Iterator[Meeting]:
        """The nodes of the job, all there. Raises UsageError when it is not known who they are, and where they meet."""
        party, terms = self.party, self.terms
        if party.node is None or party.node >= party.nodes:
            raise UsageError(f"which of the {party.nodes} nodes this is is unknown", "say --node N, from 0 (torchrun --node-rank tells it as well)")
        with meeting(self._board(), party.node, party.nodes, terms.timeout) as m:
            yield m

    def _board(self) -> Board:
        party, terms = self.party, self.terms
        if terms.plan_dir is not None:
            if not party.place:
                raise UsageError(
                    "nothing names this job, so its nodes cannot find each other", "give torchrun --rdzv-id, or say --job ID, the same on every node"
                )
            return Files(os.path.join(terms.plan_dir, f"{party.place}.meeting"))  # not below the root's own: nodes may mount it elsewhere
        host, port, keeper = endpoint(party, terms, self.line, self.env)
        return Store(host, port, keeper, terms.timeout, party.place or "job")


def endpoint(party: Party, terms: Terms, line: torchrun_line.TorchrunLine | None, env: Mapping[str, str]) -> tuple[str, int, bool]:
    """(host, port, whether this node keeps the store) of the agreement. Raises UsageError when nothing tells."""
    first = party.node == 0
    if terms.rendezvous:
        host, _, port = terms.rendezvous.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"--rendezvous {terms.rendezvous!r} is not HOST:PORT", "name a free port of the first node")
        return host, int(port), first
    address, number = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if terms.worker and address and number.isdigit() and env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return address, int(number), False  # torchrun keeps one for its workers (torch/distributed/rendezvous.py)
    if line and line.endpoint:
        host, _, port = line.endpoint.partition(":")
        return host, int(port) + 1 if port.isdigit() else int(line.options.get("master-port", "29500")) + 1, first
    nodes, job = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", ""), env.get("SLURM_JOB_ID", "")
    if nodes and job.isdigit():
        return first_host(nodes), 20000 + int(job) % 20000, first
    raise UsageError(
        "where the nodes meet is unknown", "say --rendezvous HOST:PORT with a free port of the first node, or --plan-dir DIR that all share"
    )


def first_host(nodes: str) -> str:
    """The first of Slurm's ``node[03-05,9],other`` (scontrol(1) show hostnames)."""
    first = re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes)  # the first number of every bracket: a name may have several
    return first.partition(",")[0]
