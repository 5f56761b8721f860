"""Pins: checkpoints that ``ckpt prune`` never removes, whatever it is told to keep."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import nullcontext

from msgspec import Struct

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.errors import CannotLook, NoCheckpoint
from ckpt_tools.guard import journal
from ckpt_tools.guard.journal import Store
from ckpt_tools.guard.targets import groups, named
from ckpt_tools.model.answers import Change, Changes
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.opening import open_session
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import opened, trust
from ckpt_tools.storage.listing import names_of
from ckpt_tools.storage.trust import Trust
from ckpt_tools.storage.urls import is_url
from ckpt_tools.storage.writes import replace_file

PINS = "pins"
"""The directory in ``.ckpt`` with a file for each path that is pinned."""


class _Pin(Struct, frozen=True):
    """One path, as seen from the directory in which it is pinned."""

    path: str


def all_pinned(root: str) -> frozenset[str]:
    """Return the absolute paths that are pinned, whichever directory at, above or below ``root`` the pins
    were set with. Raises CannotLook.
    """
    homes = [root]
    if not is_url(root):
        while (above := os.path.dirname(homes[-1])) != homes[-1]:
            homes.append(above)
        homes += (home for home, below, _ in os.walk(root) if STATE in below and home != root)
    return frozenset(os.path.join(home, name) for home in homes for name in read_pins(home))


def read_pins(root: str) -> frozenset[str]:
    """The paths that are pinned, as seen from ``root``. They may be anybody's, also uploaded with a tree:
    whoever may write a pin can keep something from being removed, and nothing else.

    Raises CannotLook, also where a pin cannot be read: what it is of must not go.
    """
    home, out = os.path.join(root, STATE, PINS), set[str]()
    try:
        for name in filter(lambda name: name.endswith(".json"), sorted(names_of(home))):
            with opened(f"{home}/{name}", hold=True) as source:
                body = checked_json.checked(checked_json.parsed(source.read(0, source.size)), _Pin)
            out.add(body.path)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise CannotLook(f"which checkpoints are pinned cannot be read: {e.filename}: {e.strerror}") from e
    except ValueError as e:
        raise CannotLook(f"a pin in {home} is damaged: {e!r}", "pin its checkpoint again") from e
    return frozenset(out)


def pin(
    root: str,
    paths: list[str],
    *,
    remove: bool = False,
    dry_run: bool = False,
    selection: Selection | None = None,
) -> Changes:
    """Pin the checkpoints at ``paths``, which are absolute; with ``remove`` take their pins away.

    Raises NoCheckpoint where nothing of the kind is there, UsageError for a part of one, and CannotLook.
    """
    selection = selection or Selection()
    root = os.path.abspath(root)
    # What a command that was interrupted had moved away comes back first: it may be what is to be pinned.
    with nullcontext() if dry_run else journal.opened(root, None, selection.trust) as store:
        wanted = _wanted(root, paths, remove, selection)
        if store:
            for name, _ in wanted:
                (_taken if remove else _put)(store, name, selection.trust)
    state = f"{'would-be-' if dry_run else ''}{'unpinned' if remove else 'pinned'}"
    rows = [Change(os.path.join(root, name), state, "", None, label) for name, label in wanted]
    return Changes("pin", root, not dry_run, (*(store.changes() if store else ()), *rows))


def _wanted(root: str, paths: Sequence[str], remove: bool, selection: Selection) -> list[tuple[str, str]]:
    """(path below the root, label) of what is to be pinned, or has a pin that is to be removed: of a
    checkpoint with a directory that, of another one all its files.
    """
    if remove:
        pinned = read_pins(root)
        wanted = {os.path.relpath(path, root): path for path in paths}
        for path in (path for name, path in wanted.items() if name not in pinned):
            listed = ", ".join(sorted(pinned)) or "nothing"
            raise NoCheckpoint(f"{path} is not pinned", f"what is: {listed}")
        return [(name, "") for name in wanted]
    s = open_session(root, selection.read_options())
    s.add_members()
    found = named(groups(s), paths, root)
    own = ((g, [p for p in g.paths if len(g.paths) == 1 or p in g.files]) for g in found)
    return [(os.path.relpath(path, root), g.label) for g, mine in own for path in mine]


def _file(name: str) -> str:
    return f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.json"


def _put(store: Store, name: str, trusted: Trust) -> None:
    """A pin, on the disk. Raises CannotLook."""
    home = os.path.join(store.tree.root, STATE, PINS)
    body = json.dumps({"schema": "ckpt-tools/pin/v1", "path": name}).encode()
    try:
        trust.make(home, trusted)
        replace_file(home, _file(name), body, trusted)
    except OSError as e:
        raise CannotLook(f"{name} cannot be pinned: {e.strerror}", "make room, then run it again") from e


def _taken(store: Store, name: str, trusted: Trust) -> None:
    home = os.path.join(store.tree.root, STATE, PINS)
    try:
        with trust.directory(home, trusted) as at:
            os.unlink(_file(name), dir_fd=at)
            os.fsync(at)
    except FileNotFoundError:
        return
    except OSError as e:
        raise CannotLook(f"the pin of {name} cannot be removed: {e.strerror}") from e
