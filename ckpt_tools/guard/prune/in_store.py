"""Deletes checkpoints in a store, which renames nothing and takes nothing back: in an order in which what is
left at any time is no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckpt_tools.errors import CannotLook, UsageError, explain_refusal
from ckpt_tools.findings import finding
from ckpt_tools.guard.prune.entries import Entry, identify_files
from ckpt_tools.guard.prune.protected import find_stages
from ckpt_tools.model.finding import Finding
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.retry import is_directory
from ckpt_tools.storage.stores.mounts import refresh, refresh_objects, store_of, tree_of
from ckpt_tools.storage.urls import split

_STAGES = 4


def delete_objects(s: Session, going: Sequence[Entry], require_same_plans: Callable[[], object]) -> None:
    """Delete checkpoints if, after ``require_same_plans``, exactly the verified objects are there. If one
    cannot be deleted, the later stages of its checkpoint stay. Raises UsageError if other objects are there,
    and CannotLook.
    """
    require_same_plans()
    stages_of = list[dict[str, int]]()  # key of an object -> its stage, for each checkpoint
    for e in going:
        _require_unchanged(e)
        find_stage = find_stages(s, e)
        urls = [f"{e.group.paths[number]}{below}" for number, below, _ in e.seen]
        stages_of.append({split(url)[1]: find_stage(url) for url in urls})
    store, failed = store_of(s.root)[0], dict[str, OSError]()
    for stage in range(_STAGES):
        whole = [stages for stages in stages_of if failed.keys().isdisjoint(stages)]
        keys = [key for stages in whole for key, its_stage in stages.items() if its_stage == stage]
        failed |= store.delete(keys) if keys else {}
    for first in failed.values():
        text = f"{len(failed):,} objects cannot be deleted: {first.filename}: {first.strerror}"
        hint = "what is left of their checkpoints is none: 'ckpt prune --damaged', with the right to delete"
        raise CannotLook(text, hint)


def _require_unchanged(e: Entry) -> None:
    """List a checkpoint anew. Raises UsageError if it is not as it was verified, and CannotLook."""
    with explain_refusal(f"cannot look at {e.group.path} again, and nothing is removed"):
        for path in e.group.paths:
            if is_directory(path):
                refresh(path)
            elif failures := refresh_objects([path]):
                raise failures[path]
    if identify_files(e.group.paths) != e.seen:
        text = f"{e.group.path} is not what it was when it was verified: somebody else writes there"
        raise UsageError(text, "nothing is removed: end that, then run it again")


def warn_of_versions(root: str) -> tuple[Finding, ...]:
    """Return a finding if the store keeps versions, because then deleted objects still take room."""
    text = "the store keeps versions: what is deleted gets a delete marker, and its bytes stay"
    return (finding("versions-kept", text, path=root),) if tree_of(root)[0].versioned else ()
