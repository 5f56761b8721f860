"""Once per job: which process decides, and how every process of the job gets the same decision."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ckpt_tools import launchers
from ckpt_tools.errors import UsageError
from ckpt_tools.job.command import ProcessDecision
from ckpt_tools.job.decider import SILENT, Decider, Listener, digest_selection
from ckpt_tools.job.decision import Decision
from ckpt_tools.job.membership import Membership, Options, make_node_membership, make_worker_membership
from ckpt_tools.launchers import LaunchLine
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings import resolve
from ckpt_tools.storage.urls import is_url

__all__ = ["Listener", "Options", "ProcessDecision", "decide", "take"]


def take(
    decision: Decision, rank: int | None, resume_args: Sequence[str] = (), *, require_rank: bool = True
) -> ProcessDecision:
    """Return an earlier decision for ``rank`` (None: the rank that the launcher gave this process). Raise
    CannotLook if files have changed since, UsageError for a rank without files, and with ``require_rank`` for
    an unknown rank if ranks load different files.
    """
    if rank is None:
        started = launchers.find_current()
        rank = started.rank.value if started and started.rank else None
    ranks = decision.ranks
    if require_rank and rank is None and len({tuple(decision.links(r)) for r in ranks}) > 1:
        text = f"{len(ranks)} ranks load different files, and which rank is asking is unknown"
        raise UsageError(text, "pass --rank N, or set CKPT_RANK")
    _require_files_for(rank, decision)
    decision.check(None if rank is None else [rank])
    return ProcessDecision(decision, rank, resume_args)


def _require_files_for(rank: int | None, decision: Decision) -> None:
    """Raise UsageError for a rank that the decision has no files for: it would start from nothing."""
    if rank is not None and decision.ranks and rank not in decision.ranks:
        text = f"rank {rank} is not among the {len(decision.ranks)} ranks that {decision.path} is for"
        raise UsageError(text, "start the job again, with --world-size N")


def decide(
    root: str,
    selection: Selection,
    options: Options,
    command: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    listener: Listener = SILENT,
) -> ProcessDecision:
    """Return this start's decision, made here or by the first process. Raise CkptError, the same in all."""
    env = os.environ if env is None else env
    _require_fitting_root(root, options)
    options = replace(options, stage=os.path.abspath(options.stage) if options.stage else "")
    line = launchers.read_launch_line(command, env)
    membership = _find_membership(selection, options, line, env)
    _require_common_root(root, membership.rank)
    if membership.nodes > 1 and not options.agree and options.plan_dir is None:
        raise UsageError(
            f"the job has {membership.nodes} nodes, and each would decide alone",
            "add --plan-dir DIR on a file system that all of them see, or --agree when each has its own disk",
        )
    selection = replace(selection, plan_dir=options.plan_dir or resolve.decisions(env))
    if not options.worker and selection.world_size is None and line and line.nodes and line.per_node:
        known_from = f"{line.launcher}'s command line"
        selection = replace(selection, world_size=line.nodes * line.per_node, world_from=known_from)
    asked = digest_selection(selection, options.stage)

    def attempt(question: Selection) -> ProcessDecision:
        decision = Decider(root, question, membership, options, line, env, listener, asked).decide()
        if decision.origin.asked != asked:
            raise UsageError(
                f"the decision {decision.path} was made with other options or plug-ins than this process has",
                "start all processes of the job with the same options, and install the same plug-ins for all",
            )
        rank, ranks = membership.rank, membership.ranks
        _require_files_for(selection.rank if rank is None else rank, decision)
        staged = None
        if options.stage and decision.has_checkpoint:
            from ckpt_tools.job.staging import bring

            staged = bring(decision, selection, ranks=ranks, keep=options.keep, progress=listener.progress)
        checked_ranks = ranks if options.agree or options.stage else None
        decision.check(checked_ranks if rank is None else [rank])
        return ProcessDecision(decision, rank, options.resume_args, staged)

    if not options.stage:
        return attempt(selection)
    from ckpt_tools.job.staging import retry_if_damaged

    return retry_if_damaged(attempt, selection, listener, "deciding", alone=membership.nodes == 1)


def _find_membership(
    selection: Selection, options: Options, line: LaunchLine | None, env: Mapping[str, str]
) -> Membership:
    """Return this process's membership. Raise UsageError if its launcher restarts workers by itself."""
    started = launchers.detect(env)
    if options.worker:
        return make_worker_membership(started, env, job=options.job, rank=selection.rank)
    if line and (line.restarts or line.elastic):
        what = "starts its workers again when nodes come and go"
        if line.restarts:
            what = f"restarts its workers up to {line.restarts} times"
        better = shlex.join(line.inside([*options.words, "--worker"]))
        text = f"{line.launcher} {what} on its own, and all restarts would get the first decision"
        raise UsageError(text, f"every restart makes a new decision with: {better}")
    membership = make_node_membership(started, line, env, options, selection.world_size)
    alone = membership.nodes == 1 and not (line or options.job or options.nodes)
    rank = started.rank if started else None
    if alone and rank and rank.value > 0:  # rank 0 may decide for all, as in scripts that ask for their rank
        text = f"this is rank {rank.value}, as {rank.provenance} says, and each rank would decide alone"
        hint = "start it with 'ckpt run --worker'; set CKPT_NODES=1 if this process starts a job of its own"
        raise UsageError(text, hint)
    return membership


def _require_common_root(root: str, rank: int | None) -> None:
    """Raise UsageError if ``root`` is one rank's own directory, such as rank_3; rank 0 may decide for all."""
    name = os.path.basename(root.rstrip("/"))
    rank_in_name = re.fullmatch(r"rank[-_=]?0*([0-9]+)", name, re.IGNORECASE)
    if rank and rank_in_name and int(rank_in_name[1]) == rank:
        text = f"{root} is named after rank {rank}: each rank would decide for itself, in its own directory"
        hint = "give all ranks the directory above it: 'ckpt plan' shows what each loads from there"
        raise UsageError(text, hint)


def _require_fitting_root(root: str, options: Options) -> None:
    """Raise UsageError for options that contradict each other, or that a ROOT in a store does not allow."""
    if options.stage and (options.agree or options.view):
        other = "--agree" if options.agree else "--view"
        raise UsageError(f"--stage and {other} contradict each other", "use one of them")
    if is_url(root) and options.view:
        text = f"--view builds links, and {root} lies in a store"
        raise UsageError(text, "use --stage DIR instead: it brings the files to this machine")
    if is_url(root) and options.require_mount:
        text = f"{root} lies in a store: nothing is mounted there"
        raise UsageError(text, "leave out --require-mount: a store that does not answer is exit 5")
