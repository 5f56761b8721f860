"""Deletes checkpoints in a store, which renames nothing and takes nothing back: in an order in which what is
left at any time is no checkpoint, and with a note on this machine by which the next command goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from msgspec import Struct, to_builtins

from ckpt_tools.errors import CannotLook, UsageError, explain_refusal
from ckpt_tools.guard.prune.entries import Entry, walk_below
from ckpt_tools.guard.prune.protected import find_stages
from ckpt_tools.model.answers import Change
from ckpt_tools.planning.first_launch import name_home
from ckpt_tools.reading.session import Session
from ckpt_tools.settings import checked_json, resolve
from ckpt_tools.storage import trust
from ckpt_tools.storage.retry import is_directory
from ckpt_tools.storage.stores.mounts import object_of, refresh, refresh_objects, store_of
from ckpt_tools.storage.stores.store import Object
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import split
from ckpt_tools.storage.writes import hold_lock, replace_file

NOTE, LOCK = "pruning.json", "prune.lock"
_STAGES = 4


class Deletion(Struct, frozen=True):
    """A checkpoint to be deleted: its URLs, and (object as verified, stage); lower stages go first."""

    label: str
    paths: tuple[str, ...]
    objects: tuple[tuple[Object, int], ...]

    def find_changed(self, now: Mapping[str, Object]) -> list[str]:
        """Return the keys of objects in ``now`` that have changed or are new since the verification."""
        known = {o.key: o[:4] for o, _ in self.objects}  # all but the version, which no list tells
        changed = [key for key in known if key in now and now[key][:4] != known[key]]
        return changed + sorted(now.keys() - known.keys())

    def list_present(self) -> dict[str, Object]:
        """Return key -> object for all that lies at and below its paths at this moment. Raises CannotLook."""
        known, found = {o.key for o, _ in self.objects}, dict[str, Object]()
        try:
            for path in self.paths:
                if split(path)[1] not in known:
                    refresh(path)
                elif failed := refresh_objects([path]):
                    raise failed[path]
                with suppress(FileNotFoundError):
                    found |= {split(url)[1]: obj for url, obj in _list_objects([path]).items()}
        except OSError as e:
            raise CannotLook(f"cannot look at {e.filename} again: {e.strerror}: nothing is removed") from e
        return found

    def is_begun(self) -> bool:
        """Return whether an object of stage 0 is gone, and the rest is there as it was verified."""
        now = self.list_present()
        first_gone = any(stage == 0 and o.key not in now for o, stage in self.objects)
        return bool(now) and first_gone and not self.find_changed(now)


class _Note(Struct, frozen=True):
    """What is being deleted: the next command reads it if this one is interrupted."""

    schema: Literal["ckpt-tools/pruning/v1"]
    root: str
    checkpoints: list[Deletion]


def _list_objects(paths: Sequence[str]) -> dict[str, Object]:
    """Return URL -> object for all that lies at and below some URLs, as it was listed. Raises OSError."""
    urls = list[str]()
    for path in paths:
        below = (f"{home}/{name}" for home, _, names in walk_below(path) for name in names)
        urls += below if is_directory(path) else [path]
    return {url: object_of(url) for url in sorted(urls)}


class Deleter(Struct, frozen=True):
    """Deletes below one root, as the only process of this machine. ``directory`` holds its note."""

    root: str
    directory: str
    trusted: Trust = OURS

    def remove(self, s: Session, going: Sequence[Entry], require_same_plans: Callable[[], object]) -> None:
        """Delete the verified checkpoints if, after ``require_same_plans``, exactly the verified objects are
        there: nothing can be taken back. Raises UsageError if other ones are, and CannotLook.
        """
        deletions = list[Deletion]()
        try:
            for e in going:
                stage_of, found = find_stages(s, e), _list_objects(e.group.paths)
                rows = tuple((o, stage_of(url)) for url, o in found.items())
                deletions.append(Deletion(e.group.label, e.group.paths, rows))
        except OSError as e:
            raise CannotLook(f"cannot look at {e.filename}: {e.strerror}: nothing is removed") from e
        require_same_plans()
        for deletion in deletions:
            now = deletion.list_present()
            gone = [o.key for o, _ in deletion.objects if o.key not in now]
            if wrong := gone + deletion.find_changed(now):
                text = f"{wrong[0]} is not what it was when it was verified: somebody else writes there"
                raise UsageError(text, "nothing is removed: end that, then run it again")
        self._delete(deletions)

    def _delete(self, deletions: Sequence[Deletion]) -> None:
        """Delete by stages; if one fails, its checkpoint's later ones stay, and CannotLook is raised."""
        self._write(deletions)
        (store, _), failed = store_of(self.root), dict[str, OSError]()
        for stage in range(_STAGES):
            whole = (d for d in deletions if not any(o.key in failed for o, _ in d.objects))
            if keys := [o.key for d in whole for o, its_stage in d.objects if its_stage == stage]:
                failed |= store.delete(keys)
        self._write([d for d in deletions if any(o.key in failed for o, _ in d.objects)])
        for first in failed.values():
            text = f"{len(failed):,} objects cannot be deleted: {first.filename}: {first.strerror}"
            hint = "the next 'ckpt prune --apply' goes on with them; it needs the right to delete"
            raise CannotLook(text, hint)

    def finish(self) -> list[Change]:
        """Go on with checkpoints that an interrupted command has begun to delete, which are none any more.
        Others, and checkpoints that were written anew, are left alone. Raises CannotLook.
        """
        path = os.path.join(self.directory, NOTE)
        try:
            data = trust.read(path, checked_json.MOST, self.trusted)
            note = checked_json.decode(checked_json.parse(data), _Note)
            if note.root != self.root:
                raise checked_json.Invalid(f"it is about {note.root}")
        except FileNotFoundError:
            return []
        except OSError as e:
            raise CannotLook(f"{path} cannot be read: {e.strerror}") from e
        except (checked_json.NoJson, checked_json.Invalid) as e:
            hint = "see with 'ckpt verify' what is left of checkpoints, then remove that file"
            raise CannotLook(f"{path}, which says what was being deleted, is damaged: {e}", hint) from e
        begun = [d for d in note.checkpoints if d.is_begun()]
        if begun:
            self._delete(begun)
        elif note.checkpoints:
            self._write([])
        why, rows = "the rest of what an interrupted prune had begun to remove", list[Change]()
        for d in begun:
            size = sum(o.size for o, _ in d.objects)
            rows.append(Change(d.paths[0], "removed", why, None, d.label, len(d.objects), size))
        return rows

    def _write(self, deletions: Sequence[Deletion]) -> None:
        """Write the note of what is being deleted. Raises CannotLook."""
        note = _Note("ckpt-tools/pruning/v1", self.root, list(deletions))
        body = json.dumps(to_builtins(note)).encode("ascii")
        hint = "nothing is removed: name a directory that can be written with CKPT_STATE_DIR"
        with explain_refusal(f"{self.directory} cannot be written", hint):
            replace_file(self.directory, NOTE, body, self.trusted)


@contextmanager
def open_deleter(root: str, state_dir: str | None, trusted: Trust = OURS) -> Iterator[Deleter]:
    """Yield the Deleter of a root, to one process of a machine at a time. Raises CannotLook and Untrusted."""
    directory = name_home(state_dir or resolve.find_pruned(), root)
    why = f"{root}: another process of this machine removes checkpoints there"
    with hold_lock(directory, LOCK, trusted, lambda _: CannotLook(why, "wait until it has ended")):
        yield Deleter(root, directory, trusted)
