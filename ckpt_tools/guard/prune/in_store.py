"""Deletes checkpoints in a store, which renames nothing and takes nothing back: in an order in which what is
left at any time is no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.guard.prune.entries import Entry, list_below
from ckpt_tools.guard.prune.protected import find_stages
from ckpt_tools.model.finding import Finding
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.retry import is_directory
from ckpt_tools.storage.stores.mounts import object_of, refresh, refresh_objects, store_of, tree_of
from ckpt_tools.storage.stores.store import Object

_STAGES = 4


def delete_objects(s: Session, going: Sequence[Entry], require_same_plans: Callable[[], object]) -> None:
    """Delete checkpoints if, after ``require_same_plans``, exactly the verified objects are there. If one
    cannot be deleted, the later stages of its checkpoint stay. Raises UsageError if other objects are there,
    and CannotLook.
    """
    found = [_list_objects(e, now=False) for e in going]
    require_same_plans()
    for e, objects in zip(going, found, strict=True):
        if _list_objects(e, now=True) != objects:
            text = f"{e.group.path} is not what it was when it was verified: somebody else writes there"
            raise UsageError(text, "nothing is removed: end that, then run it again")
    store, failed = store_of(s.root)[0], dict[str, OSError]()
    plans = [(objects, find_stages(s, e)) for e, objects in zip(going, found, strict=True)]
    for stage in range(_STAGES):
        whole = [plan for plan in plans if not any(o.key in failed for o in plan[0].values())]
        keys = [o.key for objects, find in whole for url, o in objects.items() if find(url) == stage]
        failed |= store.delete(keys) if keys else {}
    for first in failed.values():
        text = f"{len(failed):,} objects cannot be deleted: {first.filename}: {first.strerror}"
        hint = "what is left of their checkpoints is none: 'ckpt prune --damaged', with the right to delete"
        raise CannotLook(text, hint)


def _list_objects(e: Entry, *, now: bool) -> dict[str, Object]:
    """Return URL -> object, without its version, for all that lies at and below a checkpoint's URLs, as it
    was listed, or ``now``. Raises CannotLook.
    """
    urls = list[str]()
    try:
        for path in e.group.paths:
            is_home = is_directory(path)
            if now and is_home:
                refresh(path)
            elif now and (failed := refresh_objects([path])):
                raise failed[path]
            urls += list_below(path) if is_home else [path]
        return {url: object_of(url)._replace(version="") for url in urls}  # which no list tells
    except OSError as error:
        text = f"cannot look at {error.filename}: {error.strerror}: nothing is removed"
        raise CannotLook(text) from error


def warn_of_versions(root: str) -> tuple[Finding, ...]:
    """Return a finding if the store keeps versions, because then deleted objects still take room."""
    text = "the store keeps versions: what is deleted gets a delete marker, and its bytes stay"
    return (finding("versions-kept", text, path=root),) if tree_of(root)[0].versioned else ()
