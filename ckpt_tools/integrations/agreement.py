"""One answer for all ranks: the first rank decides, and all get its decision, or the reason for having none.

If this process was started with a decision of ``ckpt run`` or ``ckpt hook`` (CKPT_PLAN), that decision
counts. Ranks that are joined in a process group (``Group``) receive it from each other; ranks that a launcher
has started find it as ``ckpt run --worker`` does; any other process is taken to be the only one.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ckpt_tools import api, job, launchers
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.job.command import ProcessDecision
from ckpt_tools.job.decider import digest_selection
from ckpt_tools.job.decision import Body, Decision, Failed, body_of, read
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.output.sentence import explain_rejection
from ckpt_tools.storage.paths import Path, one

BUDGET = 60.0
"""Seconds for which contents are read by default: all ranks wait, and their process group may give up."""
OTHER_QUESTION = "asks with other arguments, or other plug-ins, than rank 0"
log = logging.getLogger("ckpt_tools")


class Resumed(Struct, frozen=True):
    """The checkpoint that all ranks agreed on, and what this rank loads of it.

    ``path`` is what the framework is given: a directory, a prefix, or the one file that this rank loads; None
    if the rank loads several files and no directory holds only them. ``files`` are all files that it loads,
    verified. ``arguments`` and ``variables`` are for the framework's own scripts.
    """

    path: str | None
    files: tuple[str, ...]
    layout: str
    step: int | None = None
    epoch: int | None = None
    step_in_epoch: int | None = None
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] | None = None


class Group(Struct, frozen=True):
    """The process group of a job's ranks. Both calls are made by all ranks, or by none."""

    rank: int
    size: int
    broadcast: Callable[[str], str]
    """Return the text of the first rank on all ranks; the others' texts do not count."""
    gather: Callable[[str], list[str]]
    """Return the texts of all ranks, by rank, on all ranks."""


def find_group() -> Group | None:
    """Return the process group of this process, None if it is alone or in no group. Nothing is imported for
    it: a process with a group has imported torch.distributed already.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None

    def broadcast(text: str) -> str:
        box = [text]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(text: str) -> list[str]:
        texts = [""] * dist.get_world_size()
        dist.all_gather_object(texts, text)
        return texts

    return Group(dist.get_rank(), dist.get_world_size(), broadcast, gather)


def resume(
    root: Path, *, allow_none: bool = False, plan_dir: str | None = None, **asked: Any
) -> Resumed | None:
    """Return what this rank resumes from: verified, and of the same checkpoint as on all other ranks.

    The result is None only if no checkpoint exists and ``allow_none`` permits that. ``asked`` are fields of
    ``ckpt_tools.Selection``. ``plan_dir`` is a directory that all nodes see, for ranks on several nodes that
    are not joined yet.

    Raises as ``ckpt_tools.plan`` does, on all ranks alike; also CannotLook if a rank does not see the files.
    """
    allowed = {*Selection.__struct_fields__} - {"rank"}
    if unknown := sorted(asked.keys() - allowed):
        hint = f"known: {', '.join(sorted(allowed))}"
        raise UsageError(f"{unknown[0]!r} is not an argument of this function", hint)
    given = {"budget": BUDGET, "cache": True, **asked}
    selection = Selection(**given, allow_none=allow_none, plan_dir=plan_dir)
    root, group = os.path.abspath(one(root)), find_group()
    taken = _take_in_group(group, root, selection) if group else _take_without_group(root, selection)
    chosen, framework = taken.decision.document.checkpoint, taken.decision.resume
    if chosen is None:
        return None
    return Resumed(
        path=taken.path,
        files=tuple(dict.fromkeys(taken.links)),
        layout=chosen.layout,
        step=taken.decision.step,
        epoch=chosen.epoch,
        step_in_epoch=chosen.step_in_epoch,
        arguments=framework.args or (),
        variables=dict(framework.env or {}),
    )


# ---- ranks that are joined


def _take_in_group(group: Group, root: str, selection: Selection) -> ProcessDecision:
    """Return the first rank's decision, once all ranks have seen its files. Raises the same error on all."""
    error: Exception | None = None
    message: Body = {}
    if group.rank == 0:
        try:
            asked = selection
            if selection.world_size is None:
                provenance = "the ranks that are joined"
                asked = replace(selection, world_size=group.size, world_from=provenance)
            earlier = _read_earlier_decision(root, asked)
            body = body_of(_plan(root, asked)) if earlier is None else dict(earlier.body)
            message = {"decided": body, "asked": digest_selection(asked)}
        except Exception as e:  # the other ranks wait for an answer in any case
            why = CannotLook(f"rank 0 failed: {type(e).__name__}: {e}", "its own traceback says more")
            told = e if isinstance(e, CkptError) else why
            error, message = e, {"error": to_builtins(Failed(str(told), told.hint, told.exit_code))}
    message = json.loads(group.broadcast(json.dumps(message)))
    if error is not None:
        raise error
    if "error" in message:
        raise Failed(**message["error"]).as_error()
    decision = Decision("", message["decided"], selection.trust)
    problem = "" if message["asked"] == digest_selection(selection) else OTHER_QUESTION
    _require_visible_files(group, decision, problem)
    return ProcessDecision(decision, group.rank)


def _require_visible_files(group: Group, decision: Decision, problem: str) -> None:
    """Raise CannotLook on all ranks if one does not see its files, UsageError if one asks otherwise."""
    try:
        decision.check([group.rank])
    except Exception as e:  # the other ranks wait, as above
        problem = problem or (str(e) if isinstance(e, CkptError) else f"{type(e).__name__}: {e}")
    wrong = {rank: text for rank, text in enumerate(group.gather(problem)) if text}
    if wrong:
        first = min(wrong)
        if OTHER_QUESTION in wrong.values():
            text = f"rank {first} {wrong[first]}"
            hint = "call it with the same arguments, and install the same plug-ins for all ranks"
            raise UsageError(text, hint)
        more = f" (and {len(wrong) - 1} more ranks)" if len(wrong) > 1 else ""
        hint = "every rank must see the files under the same path: is the file system mounted on all nodes?"
        raise CannotLook(f"rank {first}{more}: {wrong[first]}", hint)


# ---- ranks that are not


def _take_without_group(root: str, selection: Selection) -> ProcessDecision:
    """Return a decision for this process; its rank is None if it is the only one."""
    started = launchers.find_current()
    rank = started.rank.value if started and started.rank else None
    if (earlier := _read_earlier_decision(root, selection)) is not None:
        return job.take(earlier, rank, require_rank=False)
    world = started.world_size.value if started and started.world_size else 1
    if started and (world > 1 or started.unclear):
        options = job.Options(words=("ckpt", "run"), worker=True, plan_dir=selection.plan_dir)
        listener = job.Listener(made=_log_warnings)
        return job.decide(root, replace(selection, plan_dir=None), options, listener=listener)
    decision = Decision("", body_of(_plan(root, selection)))
    decision.check()
    return ProcessDecision(decision, None if rank is None else 0)


def _read_earlier_decision(root: str, selection: Selection) -> Decision | None:
    """Return the decision that this process was started with (CKPT_PLAN), None if it is of another root."""
    path = os.environ.get("CKPT_PLAN")
    if not path:
        return None
    decision = read(path, selection.trust)
    return decision if os.path.realpath(root) == os.path.realpath(decision.origin.root) else None


def _plan(root: str, selection: Selection) -> LoadPlan:
    """Return the load plan, after its warnings are logged."""
    plan = api.plan(root, selection)
    _log_warnings(plan)
    return plan


def _log_warnings(plan: LoadPlan) -> None:
    for rejected in plan.rejected:
        log.warning("%s was skipped: %s", rejected.checkpoint.path, explain_rejection(rejected))
    for finding in plan.warnings:
        log.warning("%s: %s: %s", finding.path or plan.root, finding.code, finding.message)


def path_for(call: str, *layouts: str) -> Callable[..., str | None]:
    """Return the function that finds the path that ``call`` of a framework is given."""

    def checkpoint(root: Path, **asked: Any) -> str | None:
        found = resume_fitting(root, layouts, call, asked)
        if found is not None and found.path is None:
            text = f"this rank loads {len(found.files)} files, and no one path names them alone"
            hint = "build one tree of them with 'ckpt run --view DIR'; resume() lists the files"
            raise UsageError(text, hint)
        return None if found is None else found.path

    checkpoint.__doc__ = f"""Return what {call} resumes from. ``asked`` is as in ``integrations.resume``; the
    result is None only with ``allow_none``, when there is no checkpoint.
    """
    return checkpoint


def resume_fitting(root: Path, layouts: tuple[str, ...], call: str, asked: dict[str, Any]) -> Resumed | None:
    """Return what ``resume`` does, of one of ``layouts``, which ``call`` can load. Raises UsageError else."""
    found = resume(root, **asked)
    if found is not None and found.layout not in layouts:
        text = f"the checkpoint to resume from is of layout {found.layout}, which {call} does not load"
        known = " or ".join(layouts)
        hint = f"name the directory of its own checkpoints ({known}), or pass layout={layouts[0]!r}"
        raise UsageError(text, hint)
    return found
