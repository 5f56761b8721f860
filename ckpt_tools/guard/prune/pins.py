"""Pins: checkpoints that ``ckpt prune`` never removes, whatever it is told to keep."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress

from msgspec import Struct

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.errors import CannotLook, NoCheckpoint, explain_refusal
from ckpt_tools.guard import journal
from ckpt_tools.guard.targets import groups, named
from ckpt_tools.model.answers import Change, Changes
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.opening import open_session
from ckpt_tools.settings import fault_file
from ckpt_tools.storage import opened, trust
from ckpt_tools.storage.listing import names_of
from ckpt_tools.storage.trust import Trust
from ckpt_tools.storage.urls import is_url
from ckpt_tools.storage.writes import replace_file

PINS = f"{STATE}/pins"
"""The directory with a file for each path that is pinned."""


class _Pin(Struct, frozen=True):
    """One path, as seen from the directory in which it is pinned."""

    path: str


def find_pins(root: str) -> frozenset[str]:
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
    home, out = os.path.join(root, PINS), set[str]()
    try:
        for name in filter(lambda name: name.endswith(".json"), sorted(names_of(home))):
            with opened(f"{home}/{name}", hold=True) as source:
                body = fault_file.checked(fault_file.parsed(source.read(0, source.size)), _Pin)
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
    selection, root = selection or Selection(), os.path.abspath(root)
    trusted, home = selection.trust, os.path.join(os.path.realpath(root), PINS)
    # What a command that was interrupted had moved away comes back first: it may be what is to be pinned.
    with journal.opened(root, None, trusted, apply=not dry_run) as store:
        labels = _find_labels(root, paths, remove, selection)
        for name in () if dry_run else labels:
            _write(home, name, remove, trusted)
        state = f"{'would-be-' if dry_run else ''}{'unpinned' if remove else 'pinned'}"
        rows = [Change(os.path.join(root, name), state, "", None, label) for name, label in labels.items()]
        return Changes("pin", root, not dry_run, (*store.changes(), *rows))


def _find_labels(root: str, paths: list[str], remove: bool, selection: Selection) -> dict[str, str]:
    """Path below the root -> label of what is to be pinned, or has a pin that is to be removed: of a
    checkpoint with a directory that, of another one all its files.
    """
    if remove:
        pinned, labels = read_pins(root), {os.path.relpath(path, root): "" for path in paths}
        for name in (name for name in labels if name not in pinned):
            listed = ", ".join(sorted(pinned)) or "nothing"
            raise NoCheckpoint(f"{os.path.join(root, name)} is not pinned", f"what is: {listed}")
        return labels
    s = open_session(root, selection.read_options())
    s.add_members()
    found = named(groups(s), paths, root)
    own = ((g, [p for p in g.paths if len(g.paths) == 1 or p in g.files]) for g in found)
    return {os.path.relpath(path, root): g.label for g, mine in own for path in mine}


def _write(home: str, name: str, remove: bool, trusted: Trust) -> None:
    """Write a pin to the disk, or ``remove`` it. Raises CannotLook."""
    file = f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.json"
    what = f"the pin of {name} cannot be removed" if remove else f"{name} cannot be pinned"
    with explain_refusal(what, "make room, then run it again"):
        if remove:
            with suppress(FileNotFoundError), trust.directory(home, trusted) as at:
                os.unlink(file, dir_fd=at)
                os.fsync(at)
        else:
            trust.make(home, trusted)
            body = json.dumps({"schema": "ckpt-tools/pin/v1", "path": name}).encode()
            replace_file(home, file, body, trusted)
