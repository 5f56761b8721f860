"""Once per job: who decides, where the decision is written, and how every process of the job gets the same one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ckpt_tools import launchers, pipeline
from ckpt_tools.cache import Note
from ckpt_tools.errors import CannotLook, NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.job import torchrun_line
from ckpt_tools.job.decision import Body, Decision, Decisions, body_of, state_dir
from ckpt_tools.job.meeting import Board, Files, Meeting, Store, meeting
from ckpt_tools.job.party import Party, of_node, of_worker
from ckpt_tools.model import LoadPlan
from ckpt_tools.pipeline.session import Progress
from ckpt_tools.question import Selection

Say = Callable[[LoadPlan], None]
"""Called with a plan that was made here, for its warnings to be shown once per job."""


@dataclass(frozen=True)
class Terms:
    """How a job comes to its one decision; the defaults are the command's. ``timeout`` in seconds; ``plan_dir`` None: this user's own, on this machine."""

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


@dataclass(frozen=True)
class Taken:
    """A decision and whose it is: ``rank`` is None for a launcher, which starts them all."""

    decision: Decision
    rank: int | None

    @property
    def paths(self) -> list[str]:
        """The files that this rank loads; of a set that all load what the framework is given; nothing when there is no checkpoint."""
        decision = self.decision
        checkpoint, told = decision.body.get("checkpoint"), (decision.body.get("resume") or {}).get("path")
        if checkpoint and told and decision.body.get("shared") and not decision.body.get("ranks"):
            path = (decision.body.get("view") or {}).get("checkpoint") or checkpoint["path"]
            return [path if path.startswith(f"{told}/") else told]
        return list(dict.fromkeys(decision.links(self.rank)))

    @property
    def body(self) -> Body:
        """The JSON of the decision, narrowed to this rank."""
        body = dict(self.decision.body)
        if self.rank is not None and body.get("ranks"):
            body["ranks"] = [r for r in body["ranks"] if r["rank"] == self.rank]
            if view := body.get("view"):
                body["view"] = {**view, "ranks": {str(self.rank): view["ranks"][str(self.rank)]}} if str(self.rank) in view["ranks"] else view
        return body


def taken(decision: Decision, rank: int | None, *, needed: bool = True) -> Taken:
    """A decision that was made before, for ``rank`` or the rank that the launcher gave this process. Raises CannotLook when it is not true any more.

    Raises UsageError when the rank is unknown, ``needed``, and ranks load different files.
    """
    if rank is None:
        started = launchers.detect(os.environ)
        rank = started.rank.value if started and started.rank else None
    ranks = decision.body.get("ranks") or []
    if needed and rank is None and len({tuple(decision.links(r["rank"])) for r in ranks}) > 1:
        raise UsageError(f"{len(ranks)} ranks load different files, and which rank is asking is unknown", "pass --rank N, or set CKPT_RANK")
    if rank is not None and ranks and all(r["rank"] != rank for r in ranks):
        raise UsageError(f"rank {rank} is outside the world of {len(ranks)} ranks that the decision {decision.path} is for", "start the job anew")
    decision.check(None if rank is None else [rank])
    return Taken(decision, rank)


def decide(
    root: str, selection: Selection, terms: Terms, command: Sequence[str] = (), env: Mapping[str, str] | None = None,
    *, say: Say | None = None, progress: Progress | None = None, note: Note | None = None,
) -> Taken:  # fmt: skip
    """This start's decision: made here, or by the process of the job that was first. Raises CkptError subclasses, the same ones in every process."""
    env = os.environ if env is None else env
    line = torchrun_line.parse(command, env)
    party = _party(selection, terms, line, env)
    if line and not terms.worker:
        if line.nodes and line.per_node and selection.world_size is None and not line.elastic:
            selection = replace(selection, world_size=line.nodes * line.per_node, world_from="torchrun's command line")
    if party.nodes > 1 and not terms.agree and terms.plan_dir is None:
        raise UsageError(
            f"the job has {party.nodes} nodes, and each would decide alone",
            "say --plan-dir DIR on a file system that all of them see, or --agree when each has its own disk",
        )
    if terms.require_mount:
        _require_mount(root)
    decisions = Decisions(terms.plan_dir or state_dir(env), root)
    maker = Maker(root, replace(selection, rank=None), terms, party, decisions, env, say, progress, note, line, _world(env))
    about = {**(party.about or {}), "nodes": party.nodes, "asked": asked(selection)}
    # Of those who share a directory and a key the first decides for all; those who meet have a key each, or one would wait for the lock of the other.
    key = f"{party.key}.node-{party.node}" if terms.agree or not party.key else party.key
    decision = decisions.once(key, party.member, unique=party.unique and bool(party.key), timeout=terms.timeout, make=maker.make, about=about)
    if decision.about.get("asked") != about["asked"]:
        raise UsageError(
            f"the processes of this job ask different questions: the decision {decision.path} was made with other options",
            "start all with the same options",
        )
    decision.check([party.rank] if party.rank is not None else party.ranks if terms.agree else None)
    return Taken(decision, party.rank)


def _party(selection: Selection, terms: Terms, line: torchrun_line.TorchrunLine | None, env: Mapping[str, str]) -> Party:
    started = launchers.detect(env)
    if terms.worker:
        return of_worker(started, env, job=terms.job, rank=selection.rank)
    if line and (line.restarts or line.elastic):
        why = f"restarts its workers up to {line.restarts} times" if line.restarts else "starts its workers again when nodes come and go"
        raise Restarting(f"torchrun {why} on its own, and they would all get today's decision", line)
    world = selection.world_size if selection.world_size is not None else started.world_size.value if started and started.world_size else None
    return of_node(started, line, env, job=terms.job, node=terms.node, nodes=terms.nodes, world=world)


def _world(env: Mapping[str, str]) -> int | None:
    started = launchers.detect(env)
    return started.world_size.value if started and started.world_size else None


class Restarting(UsageError):
    """The outer form around a launcher that restarts in place; ``line`` is that launcher's, so that the caller can say what to write instead."""

    def __init__(self, message: str, line: torchrun_line.TorchrunLine) -> None:
        super().__init__(message, "put 'ckpt run --worker' between torchrun and the workers")
        self.line = line


def asked(selection: Selection) -> str:
    """A digest of the question, without what differs from rank to rank."""
    import xxhash

    same = replace(selection, rank=None, jobs=0, world_size=None, world_from="", fault_ranks=frozenset(), cache=False, max_age=0)
    return xxhash.xxh3_64_hexdigest(f"{same} {sorted(selection.fault_ranks)}".encode("utf-8", "surrogatepass"))


def _require_mount(root: str) -> None:
    try:
        mounted = os.stat(root).st_dev != os.stat("/").st_dev
    except OSError as e:
        raise CannotLook(f"{root} cannot be looked at: {e.strerror}", "check that its file system is mounted, then start again") from e
    if not mounted:
        raise CannotLook(f"{root} lies on the root file system: nothing is mounted there", "mount it, then start again, or drop --require-mount")


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
        return _first_host(nodes), 20000 + int(job) % 20000, first
    raise UsageError(
        "where the nodes meet is unknown", "say --rendezvous HOST:PORT with a free port of the first node, or --plan-dir DIR that all share"
    )


def _first_host(nodes: str) -> str:
    """The first of Slurm's ``node[03-05,9],other`` (scontrol(1) show hostnames)."""
    m = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    return f"{m[1]}{m[2] or ''}{m[3] or ''}" if m else nodes
