"""Once per job: who decides, where the decision is written, and how every process of the job gets the same
one.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ckpt_tools import launchers
from ckpt_tools.cache.verdicts import Note
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job import torchrun_line
from ckpt_tools.job.decider import Decider, Say, asked
from ckpt_tools.job.decision import Body, Decision
from ckpt_tools.job.decisions import Decisions
from ckpt_tools.job.membership import Membership, of_node, of_worker
from ckpt_tools.job.options import Options
from ckpt_tools.job.rendezvous import Rendezvous
from ckpt_tools.model.frozen import frozen
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.session import Progress
from ckpt_tools.settings import directories

__all__ = ["Options", "Taken", "decide", "taken"]


@frozen
class Taken:
    """A decision and whose it is: ``rank`` is None for a launcher, which starts them all."""

    decision: Decision
    rank: int | None

    @property
    def paths(self) -> list[str]:
        """The files that this rank loads; of a set that all load what the framework is given; nothing when
        there is no checkpoint.
        """
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
                body["view"] = (
                    {**view, "ranks": {str(self.rank): view["ranks"][str(self.rank)]}}
                    if str(self.rank) in view["ranks"]
                    else view
                )
        return body


def taken(decision: Decision, rank: int | None, *, needed: bool = True) -> Taken:
    """A decision that was made before, for ``rank`` or the rank that the launcher gave this process. Raises
    CannotLook when it is not true any more.

    Raises UsageError when the rank is unknown, ``needed``, and ranks load different files.
    """
    if rank is None:
        started = launchers.detect(os.environ)
        rank = started.rank.value if started and started.rank else None
    ranks = decision.body.get("ranks") or []
    if needed and rank is None and len({tuple(decision.links(r["rank"])) for r in ranks}) > 1:
        raise UsageError(
            f"{len(ranks)} ranks load different files, and which rank is asking is unknown",
            "pass --rank N, or set CKPT_RANK",
        )
    _within(decision, rank)
    decision.check(None if rank is None else [rank])
    return Taken(decision, rank)


def _within(decision: Decision, rank: int | None) -> None:
    """Raise UsageError for a rank that the decision has no files for: it would start from nothing beside the
    others.
    """
    ranks = decision.body.get("ranks") or []
    if rank is not None and ranks and all(r["rank"] != rank for r in ranks):
        raise UsageError(
            f"rank {rank} is outside the world of {len(ranks)} ranks that the decision {decision.path}"
            " is for",
            "start the job anew, with --world-size N",
        )


def decide(
    root: str,
    selection: Selection,
    options: Options,
    command: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    say: Say | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
) -> Taken:
    """This start's decision: made here, or by the process of the job that was first. Raises CkptError
    subclasses, the same ones in every process.
    """
    env = os.environ if env is None else env
    options = replace(options, trust=selection.trust)
    line = torchrun_line.parse(command, env)
    membership = _membership(selection, options, line, env)
    if line and not options.worker and line.nodes and line.per_node and selection.world_size is None:
        selection = replace(
            selection, world_size=line.nodes * line.per_node, world_from="torchrun's command line"
        )
    if membership.nodes > 1 and not options.agree and options.plan_dir is None:
        raise UsageError(
            f"the job has {membership.nodes} nodes, and each would decide alone",
            "say --plan-dir DIR on a file system that all of them see, or --agree when each has its own disk",
        )
    selection = replace(selection, plan_dir=options.plan_dir or directories.decisions(env))
    about = {**(membership.about or {}), "nodes": membership.nodes, "asked": asked(selection)}
    # Of those who share a directory and a key the first decides for all; those who meet have a key each, or
    # one would wait for the lock of the other.
    key = (
        f"{membership.key}.node-{membership.node}" if options.agree or not membership.key else membership.key
    )
    mine = [membership.rank] if membership.rank is not None else membership.ranks if options.agree else None
    with Rendezvous(membership, options, line, env) as rendezvous:
        with rendezvous.told():
            if options.require_mount:
                _require_mount(root)
            decisions = Decisions(
                options.plan_dir or directories.decisions(env), root, trusted=selection.trust
            )
        decider = Decider(
            root,
            replace(selection, rank=None),
            options,
            membership,
            decisions,
            rendezvous,
            say,
            progress,
            note,
            _world(env),
        )
        unique = membership.unique and bool(membership.key)
        decision = decisions.once(
            key,
            membership.member,
            unique=unique,
            timeout=options.timeout,
            make=decider.make,
            about=about,
            peers=rendezvous,
        )
    if decision.about.get("asked") != about["asked"]:
        raise UsageError(
            f"the processes of this job ask different questions: the decision {decision.path} was made with"
            " other options",
            "start all with the same options",
        )
    _within(decision, membership.rank)
    decision.check(mine)
    return Taken(decision, membership.rank)


def _membership(
    selection: Selection, options: Options, line: torchrun_line.TorchrunLine | None, env: Mapping[str, str]
) -> Membership:
    started = launchers.detect(env)
    if options.worker:
        return of_worker(started, env, job=options.job, rank=selection.rank)
    if line and (line.restarts or line.elastic):
        why = (
            f"restarts its workers up to {line.restarts} times"
            if line.restarts
            else "starts its workers again when nodes come and go"
        )
        inside = shlex.join(line.inside([*options.words, "--worker"]))
        raise UsageError(
            f"torchrun {why} on its own, and they would all get today's decision",
            f"every restart decides anew with: {inside}",
        )
    world = (
        selection.world_size
        if selection.world_size is not None
        else started.world_size.value
        if started and started.world_size
        else None
    )
    return of_node(started, line, env, job=options.job, node=options.node, nodes=options.nodes, world=world)


def _world(env: Mapping[str, str]) -> int | None:
    started = launchers.detect(env)
    return started.world_size.value if started and started.world_size else None


def _require_mount(root: str) -> None:
    try:
        mounted = os.stat(root).st_dev != os.stat("/").st_dev
    except OSError as e:
        raise CannotLook(
            f"{root} cannot be looked at: {e.strerror}",
            "check that its file system is mounted, then start again",
        ) from e
    if not mounted:
        raise CannotLook(
            f"{root} lies on the root file system: nothing is mounted there",
            "mount it, then start again, or drop --require-mount",
        )
