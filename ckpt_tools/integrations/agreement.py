"""One answer for all ranks: the first one decides, and all receive its decision, or the reason why there is
none.

If this process was started with a decision of ``ckpt run`` or ``ckpt hook`` (CKPT_PLAN), that decision
counts. Ranks that are joined in a process group (``group``) receive it from each other; ranks that a launcher
has started find it as ``ckpt run --worker`` does; else this process is the only one.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools import api, errors, job, launchers
from ckpt_tools.errors import CannotLook, CkptError, UsageError
from ckpt_tools.integrations.resumed import Resumed, resumed_by
from ckpt_tools.job import decision as decisions
from ckpt_tools.job.decider import digest
from ckpt_tools.job.decision import Body, Decision
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.storage.paths import Path, one

# ---- The processes that train together, where their framework has joined them: what one says, all hear.
#
# Nothing is imported for it: a process whose group exists has it imported already.


class Group(Struct, frozen=True):
    """All ranks of a job. Both calls are made by all of them, or none."""

    rank: int
    size: int
    broadcast: Callable[[str], str]
    """What the first rank says, to all; what others say does not count."""
    gather: Callable[[str], list[str]]
    """What each says, to all, by rank."""


def joined() -> Group | None:
    """The group of this process, None where it is alone or nobody has joined it to others."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None

    def broadcast(text: str) -> str:
        box = [text]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(text: str) -> list[str]:
        said = [""] * dist.get_world_size()
        dist.all_gather_object(said, text)
        return said

    return Group(dist.get_rank(), dist.get_world_size(), broadcast, gather)


BUDGET = 60.0
"""Seconds for which contents are read, unless the caller says otherwise: all ranks wait, and what joins them
gives up at some time.
"""
_VALUES = {"budget": BUDGET, "cache": True}
OTHER_QUESTION = "asks with other arguments, or other plug-ins, than rank 0"
log = logging.getLogger("ckpt_tools")


def resume(
    root: Path, *, allow_none: bool = False, plan_dir: str | None = None, **asked: Any
) -> Resumed | None:
    """Return what this rank resumes from: verified, and of the same checkpoint as on all other ranks.

    The result is None only if no checkpoint exists and ``allow_none`` permits that. ``asked`` are fields of
    ``ckpt_tools.Selection``. ``plan_dir`` is a directory that all nodes see, for ranks on several nodes that
    are not joined yet.

    Raises as ``ckpt_tools.plan`` does, on all ranks alike; also CannotLook when a rank does not see the files
    that the first one has verified.
    """
    root = os.path.abspath(one(root))
    selection = _selection(allow_none, plan_dir, asked)
    group = joined()
    if group is not None:
        decision = _among(group, root, selection)
        return resumed_by(decision, group.rank)
    found, rank = _without_group(root, selection)
    return resumed_by(found, rank)


def _selection(allow_none: bool, plan_dir: str | None, asked: dict[str, Any]) -> Selection:
    if unknown := sorted(asked.keys() - set(Selection.__match_args__) | asked.keys() & {"rank"}):
        hint = f"known: {', '.join(sorted({*Selection.__match_args__} - {'rank'}))}"
        raise UsageError(f"{unknown[0]!r} is not an argument of this function", hint)
    return Selection(**{**_VALUES, **asked, "allow_none": allow_none, "plan_dir": plan_dir})


# ---- ranks that are joined


def _among(group: Group, root: str, selection: Selection) -> Decision:
    """The first rank's decision, once every rank has seen its files. Raises the same on all ranks."""
    failed: Exception | None = None
    said = ""
    if group.rank == 0:
        try:
            said = json.dumps(_decided(root, _of_world(selection, group)))
        except CkptError as e:
            failed, said = e, json.dumps({"raised": type(e).__name__, **decisions.failed(e)})
        except Exception as e:  # the others wait for an answer, whatever happened
            failed, said = e, json.dumps({"raised": "", "error": f"{type(e).__name__}: {e}"})
    body: Body = json.loads(group.broadcast(said))
    if failed is not None:
        raise failed
    if "raised" in body:
        raise _raised(body)
    decision = Decision("", body["decided"], selection.trust)
    _seen_by_all(group, decision, "" if body["asked"] == digest(selection) else OTHER_QUESTION)
    return decision


def _decided(root: str, selection: Selection) -> Body:
    """What the first rank says to the others."""
    made = _made_before(root, selection)
    body = decisions.body_of(_plan(root, selection)) if made is None else dict(made.body)
    return {"decided": body, "asked": digest(selection)}


def _of_world(selection: Selection, group: Group) -> Selection:
    if selection.world_size is not None:
        return selection
    return replace(selection, world_size=group.size, world_from="the ranks that are joined")


def _raised(body: Body) -> CkptError:
    """What the first rank raised, for the others."""
    if not body["raised"]:
        return CannotLook(f"rank 0 failed: {body['error']}", "its own traceback says more")
    error, kind = body["error"], getattr(errors, body["raised"], None)
    if not (isinstance(kind, type) and issubclass(kind, CkptError)):
        kind = errors.BY_EXIT_CODE.get(error["exit_code"], CkptError)
    return kind(error["message"], error["hint"])


def _seen_by_all(group: Group, decision: Decision, why: str) -> None:
    """Raises CannotLook on all ranks where one of them does not see what it is to load, and UsageError where
    one says ``why`` it asks for something else.
    """
    try:
        decision.check([group.rank])
    except CkptError as e:
        why = why or str(e)
    except Exception as e:  # as above
        why = why or f"{type(e).__name__}: {e}"
    wrong = {rank: said for rank, said in enumerate(group.gather(why)) if said}
    if wrong:
        first = min(wrong)
        if OTHER_QUESTION in wrong.values():
            raise UsageError(
                f"rank {first} {wrong[first]}",
                "call it with the same arguments, and install the same plug-ins for all ranks",
            )
        more = f" (and {len(wrong) - 1} more ranks)" if len(wrong) > 1 else ""
        hint = "every rank must see the files under the same path: is the file system mounted on all nodes?"
        raise CannotLook(f"rank {first}{more}: {wrong[first]}", hint)


# ---- ranks that are not


def _without_group(root: str, selection: Selection) -> tuple[Decision, int | None]:
    """A decision, and the rank of this process, None where it is the only one."""
    started = launchers.current()
    rank = started.rank.value if started and started.rank else None
    if (made := _made_before(root, selection)) is not None:
        return job.taken(made, rank, needed=False).decision, rank
    world = started.world_size.value if started and started.world_size else 1
    if started and (world > 1 or started.unclear):
        options = job.Options(words=("ckpt", "run"), worker=True, plan_dir=selection.plan_dir)
        listener = job.Listener(made=_tell)
        taken = job.decide(root, replace(selection, plan_dir=None), options, listener=listener)
        return taken.decision, taken.rank
    decision = Decision("", decisions.body_of(_plan(root, selection)))
    decision.check()
    return decision, None if rank is None else 0


def _made_before(root: str, selection: Selection) -> Decision | None:
    """The decision that this process was started with, where it is about this root."""
    path = os.environ.get("CKPT_PLAN")
    if not path:
        return None
    decision = decisions.read(path, selection.trust)
    same = os.path.realpath(root) == os.path.realpath(decision.about["root"])
    return decision if same else None


def _plan(root: str, selection: Selection) -> LoadPlan:
    made = api.plan(root, selection)
    _tell(made)
    return made


def _tell(plan: LoadPlan) -> None:
    """What led to a plan, in the process that made it."""
    for rejected in plan.rejected:
        why = "; ".join(f.message for f in rejected.findings[:1])
        log.warning("%s is not usable: %s", rejected.checkpoint.path, why)
    for finding in plan.warnings:
        log.warning("%s: %s: %s", finding.path or plan.root, finding.code, finding.message)
