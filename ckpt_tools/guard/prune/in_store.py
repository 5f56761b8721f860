"""Checkpoints deleted in a store, which renames nothing and takes nothing back: in which order, so that what
is left is no checkpoint whenever it ends, and a note on this machine by which the next command goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from msgspec import Struct, to_builtins

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.guard.prune.looked_at import Entry
from ckpt_tools.guard.prune.protected import is_of_seal
from ckpt_tools.model.part import Part
from ckpt_tools.planning.decision_log import place
from ckpt_tools.reading.session import Session
from ckpt_tools.settings import checked_json, directories
from ckpt_tools.storage import trust
from ckpt_tools.storage.stores.mounts import refresh, store_of, tree_of
from ckpt_tools.storage.stores.refresh import object_of, refresh_objects
from ckpt_tools.storage.stores.store import Object
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import split
from ckpt_tools.storage.writes import hold_lock, replace_file

NOTE, LOCK = "pruning.json", "prune.lock"
_MARKS = frozenset({"commit", "item_commit", "metadata", "tree", "manifest", "index"})
"""Roles of files that say of others that they are a checkpoint. Others end with such a word."""
_STAGES = 4


class Doomed(Struct, frozen=True, array_like=True):
    """An object that is to be deleted, as it was verified; those of an earlier ``stage`` go first."""

    key: str
    size: int
    mtime_ns: int
    etag: str
    stage: int

    def is_now(self, of: Object | None) -> bool:
        """Whether it is this object that is there."""
        same = self.size, self.mtime_ns, self.etag
        return of is not None and (of.size, of.mtime_ns, of.etag) == same


class Deletion(Struct, frozen=True):
    """A checkpoint that is to be deleted: ``paths`` are the directories and the files that it consists of."""

    label: str
    paths: tuple[str, ...]
    objects: tuple[Doomed, ...]


class _Note(Struct, frozen=True):
    """What an interrupted command leaves for the next one."""

    schema: Literal["ckpt-tools/pruning/v1"]
    root: str
    checkpoints: list[Deletion]


def doomed(s: Session, entry: Entry) -> Deletion:
    """What there is of a checkpoint, each object with its stage. Raises OSError."""
    stage = stages(s, entry)
    objects = [
        Doomed(of.key, of.size, of.mtime_ns, of.etag, stage(url))
        for url, of in sorted(_objects(entry.group.paths).items())
    ]
    return Deletion(entry.group.label, entry.group.paths, tuple(objects))


def stages(s: Session, entry: Entry) -> Callable[[str], int]:
    """When a file of a checkpoint goes: 0 what says of others that they are one, and a file that it cannot do
    without, with those that could stand in for it; 1 what is like that; 2 all else. Seals go last: until then
    they tell that something is missing.
    """
    out, needed = dict[str, int](), list[Part]()
    for part in s.members(entry.checkpoint).parts:
        marks = part.role in _MARKS or part.role.endswith(("_index", "_metadata"))
        out[part.path] = 0 if marks else 1 if "model" in part.role else 2
        if out[part.path] == 1 and s.layouts.piece_of(part).required:
            needed.append(part)
    if first := min(needed, key=lambda part: part.path, default=None):
        alike = (part for part in needed if (part.role, part.coords) == (first.role, first.coords))
        out |= {part.path: 0 for part in alike}
    return lambda path: out.get(path, 3 if is_of_seal(path) else 2)


def _objects(paths: Sequence[str]) -> dict[str, Object]:
    """URL -> object of all that lies at and below some paths, as it was listed. Raises OSError."""
    out = dict[str, Object]()
    for path in paths:
        tree, key = tree_of(path)
        if not tree.is_directory(key):
            out[path] = object_of(path)
            continue
        left = [path]
        while left:
            for e in tree.entries(tree_of(left.pop())[1]):
                if e.is_dir():
                    left.append(e.path)
                else:
                    out[e.path] = object_of(e.path)
    return out


# ---- before anything goes


def require_same(deletions: Sequence[Deletion]) -> None:
    """Whether exactly what was verified is there now. Raises UsageError where it is not, and CannotLook."""
    for deletion in deletions:
        now = _now(deletion)
        wrong = [d.key for d in deletion.objects if not d.is_now(now.get(d.key))]
        wrong += sorted(now.keys() - {d.key for d in deletion.objects})
        if wrong:
            text = f"{wrong[0]} is not what it was when it was verified: somebody else writes there"
            raise UsageError(text, "nothing is removed: end that, then run it again")


def _now(deletion: Deletion) -> dict[str, Object]:
    """Key -> object of all that lies at and below its paths at this moment; nothing of what is gone. Raises
    CannotLook.
    """
    known, found = {o.key for o in deletion.objects}, dict[str, Object]()
    try:
        for path in deletion.paths:
            if split(path)[1] not in known:
                refresh(path)
            elif failed := refresh_objects([path]):
                raise failed[path]
            with suppress(FileNotFoundError):
                found |= {split(url)[1]: of for url, of in _objects([path]).items()}
    except OSError as e:
        raise CannotLook(f"cannot look at {e.filename} again: {e.strerror}: nothing is removed") from e
    return found


# ---- the note, and who may delete


class Deleter(Struct, frozen=True):
    """Deletes below one root, whose only process for that it is. ``directory`` holds its note."""

    root: str
    directory: str
    trusted: Trust = OURS

    def delete(self, deletions: Sequence[Deletion]) -> list[OSError]:
        """Stage by stage; of a checkpoint of which something of one stage is left, nothing of the next goes.
        Why what is left could not be deleted. Raises CannotLook where the note cannot be written.
        """
        self._note(deletions)
        (store, _), failed = store_of(self.root), dict[str, OSError]()
        for stage in range(_STAGES):
            whole = (d for d in deletions if not any(o.key in failed for o in d.objects))
            if keys := [o.key for d in whole for o in d.objects if o.stage == stage]:
                failed |= store.delete(keys)
        self._note([d for d in deletions if any(o.key in failed for o in d.objects)])
        return list(failed.values())

    def finish(self) -> list[Deletion]:
        """Go on with what an interrupted command has begun to delete: what of it is gone already is no
        checkpoint any more. What was not begun, or was written anew, is left alone. Raises CannotLook.
        """
        noted = self._noted()
        begun = [d for d in noted if _is_begun(d)]
        if noted:
            self._note(begun)
        if begun and (problems := self.delete(begun)):
            raise not_deleted(problems)
        return begun

    def _noted(self) -> list[Deletion]:
        path = os.path.join(self.directory, NOTE)
        try:
            data = trust.read(path, checked_json.MOST, self.trusted)
            note = checked_json.checked(checked_json.parsed(data), _Note)
            if note.root != self.root:
                raise checked_json.Invalid(f"it is about {note.root}")
            return note.checkpoints
        except FileNotFoundError:
            return []
        except OSError as e:
            raise CannotLook(f"{path} cannot be read: {e.strerror}") from e
        except (checked_json.NoJson, checked_json.Invalid) as e:
            hint = "see with 'ckpt verify' what is left of checkpoints, then remove that file"
            raise CannotLook(f"{path}, which says what was being deleted, is damaged: {e}", hint) from e

    def _note(self, deletions: Sequence[Deletion]) -> None:
        told = _Note("ckpt-tools/pruning/v1", self.root, list(deletions))
        body = json.dumps(to_builtins(told)).encode("ascii")
        try:
            replace_file(self.directory, NOTE, body, self.trusted)
        except OSError as e:
            hint = "nothing is removed: name a directory that can be written with CKPT_STATE_DIR"
            raise CannotLook(f"{self.directory} cannot be written: {e.strerror}", hint) from e


def not_deleted(problems: Sequence[OSError]) -> CannotLook:
    """The error for objects that are left."""
    first = problems[0]
    text = f"{len(problems):,} objects cannot be deleted: {first.filename}: {first.strerror}"
    return CannotLook(text, "the next 'ckpt prune --apply' goes on with them; it needs the right to delete")


def _is_begun(deletion: Deletion) -> bool:
    """Whether a part of it is gone, and the rest is as it was verified."""
    now = _now(deletion)
    known = {o.key for o in deletion.objects}
    left = [o for o in deletion.objects if o.key in now]
    first_gone = any(o.stage == 0 and o.key not in now for o in deletion.objects)
    return bool(left) and first_gone and not now.keys() - known and all(o.is_now(now[o.key]) for o in left)


@contextmanager
def opened(root: str, state_dir: str | None, trusted: Trust = OURS) -> Iterator[Deleter]:
    """The only process of this machine that deletes below a root; what an interrupted one has begun is
    finished first. Raises CannotLook, and Untrusted.
    """
    directory = place(state_dir or directories.pruned(), root)
    why = f"{root}: another process of this machine removes checkpoints there"
    with hold_lock(directory, LOCK, trusted, lambda _: CannotLook(why, "wait until it has ended")):
        yield Deleter(root, directory, trusted)
