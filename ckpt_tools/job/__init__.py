"""Once per job: who decides, where the decision is written, and how every process of the job gets the same
one.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools import launchers
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.decider import SILENT, Decider, Listener, digest
from ckpt_tools.job.decision import Body, Decision
from ckpt_tools.job.decisions import Decisions
from ckpt_tools.job.membership import Membership, of_node, of_worker
from ckpt_tools.job.options import Options
from ckpt_tools.job.rendezvous import Rendezvous
from ckpt_tools.launchers import LaunchLine, Started
from ckpt_tools.model.plan import OPENED_BY_RANKS
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings import directories
from ckpt_tools.storage.urls import is_url

if TYPE_CHECKING:
    from ckpt_tools.job.staging import Staged

_GONE = {
    "CKPT_TRANSFER": "copy the files before the start (rsync, scp), and unset it",
    "CKPT_SECRET_FILE": "unset it: nodes trust the network of the job, as torch does; or say --meet DIR",
}

__all__ = ["Listener", "Options", "Taken", "decide", "taken"]


class Taken(Struct, frozen=True):
    """A decision and whose it is: ``rank`` is None for a launcher, which starts them all. ``staged`` is what
    was brought to this machine for it.
    """

    decision: Decision
    rank: int | None
    staged: Staged | None = None

    @property
    def paths(self) -> list[str]:
        """The files that this rank loads; of a set that all load what the framework is given; nothing when
        there is no checkpoint.
        """
        decision = self.decision
        checkpoint, told = decision.body.get("checkpoint"), (decision.body.get("resume") or {}).get("path")
        own = {f.get("role") for r in decision.body.get("ranks") or () for f in r["files"]}
        if checkpoint and told and decision.body.get("shared") and own <= OPENED_BY_RANKS:
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
    listener: Listener = SILENT,
) -> Taken:
    """This start's decision: made here, or by the process of the job that was first. Raises CkptError
    subclasses, the same ones in every process.
    """
    env = os.environ if env is None else env
    _require_fitting(root, options)
    place = os.path.abspath(options.stage) if options.stage else ""
    options = replace(options, trust=selection.trust, stage=place)
    line = launchers.line_of(command, env)
    membership = _membership(selection, options, line, env)
    _require_common(root, membership.rank)
    _require_nothing_gone(options, env)
    if membership.nodes > 1 and not options.agree and options.plan_dir is None:
        raise UsageError(
            f"the job has {membership.nodes} nodes, and each would decide alone",
            "say --plan-dir DIR on a file system that all of them see, or --agree when each has its own disk",
        )
    selection = replace(
        _with_world_of(line, selection, options), plan_dir=options.plan_dir or directories.decisions(env)
    )

    def decided(asked: Selection) -> Decision:
        made = _decided(root, asked, Rendezvous(membership, options, line, env), listener)
        _require_asked(made, asked, selection, options)
        _within(made, selection.rank if membership.rank is None else membership.rank)
        return made

    if options.stage:
        from ckpt_tools.job.staged_start import start

        return Taken(*start(decided, selection, membership, options, listener))
    decision = decided(selection)
    mine = membership.ranks if options.agree else None
    decision.check(mine if membership.rank is None else [membership.rank])
    return Taken(decision, membership.rank)


def _require_asked(made: Decision, asked: Selection, selection: Selection, options: Options) -> None:
    """Raises UsageError where a decision is about another question than that of this process."""
    both = {digest(asked)}
    if options.stage:  # what came damaged is decided about anew, at the level of the caller
        both.add(digest(selection))
    at = os.path.dirname((made.body.get("stage") or {}).get("root") or "")
    if made.about.get("asked") not in both or (made.found and at != options.stage):
        raise UsageError(
            f"the processes of this job ask different questions: the decision {made.path} was made with"
            " other options, or other plug-ins",
            "start all with the same options, and install the same plug-ins for all",
        )


def _decided(root: str, selection: Selection, rendezvous: Rendezvous, listener: Listener) -> Decision:
    """The decision, before it is known whether this process may follow it."""
    membership, options, env = rendezvous.membership, rendezvous.options, rendezvous.env
    with rendezvous:
        with rendezvous.reporting():
            if options.require_mount:
                _require_mount(root)
            plan_dir = options.plan_dir or directories.decisions(env)
            decisions = Decisions(plan_dir, root, trusted=selection.trust)
            decider = Decider(
                root=root,
                selection=replace(selection, rank=None),
                options=options,
                membership=membership,
                decisions=decisions,
                rendezvous=rendezvous,
                listener=listener,
                world=_world(env),
            )
            saves = "" if membership.start or not membership.unique else decider.digest_saves()
        return decisions.once(
            _key(membership, options),
            membership.member,
            unique=membership.unique and bool(membership.key),
            timeout=options.timeout,
            make=decider.make,
            about={**membership.about, "nodes": membership.nodes, "asked": digest(selection), "saves": saves},
            peers=rendezvous,
        )


def _with_world_of(line: LaunchLine | None, selection: Selection, options: Options) -> Selection:
    """The selection with the world size that the command line of a launcher tells."""
    if options.worker or selection.world_size is not None or not (line and line.nodes and line.per_node):
        return selection
    world = line.nodes * line.per_node
    return replace(selection, world_size=world, world_from=f"{line.launcher}'s command line")


def _key(membership: Membership, options: Options) -> str:
    """Of those who share a directory and a key the first decides for all; those who meet have a key each, or
    one would wait for the lock of the other.
    """
    if options.agree or not membership.key:
        return f"{membership.key}.node-{membership.node}"
    return membership.key


def _membership(
    selection: Selection, options: Options, line: LaunchLine | None, env: Mapping[str, str]
) -> Membership:
    started = launchers.detect(env)
    if options.worker:
        return of_worker(started, env, job=options.job, rank=selection.rank)
    if line and (line.restarts or line.elastic):
        raise _one_decision_for_all_restarts(line, options)
    world = _world(env) if selection.world_size is None else selection.world_size
    made = of_node(started, line, env, job=options.job, node=options.node, nodes=options.nodes, world=world)
    if made.nodes == 1 and not (line or options.job or options.nodes):
        _require_to_be_alone(started)
    return made


def _require_to_be_alone(started: Started | None) -> None:
    """Raises UsageError in one of several ranks, which would each decide for itself, and not all at one time.
    The first may decide for all, as in scripts that ask for its number.
    """
    rank = started.rank if started else None
    if rank and rank.value > 0:
        text = f"this is rank {rank.value}, as {rank.provenance} says, and each rank would decide alone"
        hint = (
            "all ranks get one decision with 'ckpt run --worker'; set CKPT_NODES=1 if this process starts"
            " a job of its own"
        )
        raise UsageError(text, hint)


def _one_decision_for_all_restarts(line: LaunchLine, options: Options) -> UsageError:
    why = "starts its workers again when nodes come and go"
    if line.restarts:
        why = f"restarts its workers up to {line.restarts} times"
    inside = shlex.join(line.inside([*options.words, "--worker"]))
    return UsageError(
        f"{line.launcher} {why} on its own, and all restarts would get the first decision",
        f"every restart makes a new decision with: {inside}",
    )


def _require_common(root: str, rank: int | None) -> None:
    """Raises UsageError where each rank of a job gives the directory of its own: they would decide apart.

    That of the first rank may be meant for all: replicas hold the same.
    """
    name = os.path.basename(root.rstrip("/"))
    own = re.fullmatch(r"rank[-_=]?0*([0-9]+)", name, re.IGNORECASE)
    if rank and own and int(own[1]) == rank:
        raise UsageError(
            f"{root} is called after rank {rank}: each rank would decide for itself, in its own directory",
            "give all ranks the directory above it: 'ckpt plan' shows what each loads from there",
        )


def _require_nothing_gone(options: Options, env: Mapping[str, str]) -> None:
    """Raises UsageError for a variable that nodes which agree would count on, and that nothing reads."""
    for name, instead in _GONE.items():
        if options.agree and env.get(name):
            raise UsageError(f"nothing reads {name} any more", instead)


def _world(env: Mapping[str, str]) -> int | None:
    started = launchers.detect(env)
    return started.world_size.value if started and started.world_size else None


def _require_fitting(root: str, options: Options) -> None:
    """Raises UsageError for what a store cannot be asked."""
    if not is_url(root):
        return
    if options.view:
        text = f"--view builds links, and {root} lies in a store"
        raise UsageError(text, "say --stage DIR, which brings the files to this machine")
    if options.require_mount:
        raise UsageError(
            f"{root} lies in a store: nothing is mounted there",
            "leave out --require-mount: a store that does not answer is exit 5",
        )


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
