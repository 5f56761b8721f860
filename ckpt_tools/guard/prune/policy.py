"""Which checkpoints of a run a policy keeps, by number, step, time and size; and pins, which keep any."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.errors import CannotLook, NoCheckpoint, UsageError, explain_refusal
from ckpt_tools.guard.journal import open_journal
from ckpt_tools.guard.targets import find_named, list_groups
from ckpt_tools.model.answers import Change, Changes
from ckpt_tools.model.part import Kind
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Session
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import opened, trust
from ckpt_tools.storage.listing import list_names
from ckpt_tools.storage.trust import Trust
from ckpt_tools.storage.urls import is_url
from ckpt_tools.storage.writes import replace_file


class Policy(Struct, frozen=True):
    """What to keep of each run: a checkpoint stays if any field keeps it. ``keep_within`` is in
    seconds, ``max_total`` in bytes.
    """

    keep_last: int | None = None
    keep_every: int | None = None
    keep_within: float | None = None
    keep_hourly: int | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None
    keep_kinds: frozenset[Kind] = frozenset()
    max_total: int | None = None

    def require_one(self) -> None:
        """Raise UsageError if no field is set."""
        if self == Policy():
            text = "what to keep is not said: nothing is removed without that"
            raise UsageError(text, "for example --keep 3, or --keep daily=7,every=10000")


class Save(Struct, frozen=True):
    """A checkpoint of a run, as policies see it: ``size`` is in bytes; ``step`` is None if it is unknown."""

    name: str
    step: int | None
    at_ns: int
    kind: Kind = Kind.PERIODIC
    size: int = 0


def choose_kept(
    policy: Policy, saves: Sequence[Save], always: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return name -> why it stays, for the ``saves`` (of one run, newest first, all verified) that stay.
    ``always`` (name -> why) stay whatever the policy says, and count like all others. Only ``max_total``
    removes what another field keeps: the oldest first, until the rest has room, and none of ``always``.
    """
    always = always or {}
    stays = dict[str, str]()
    for save, reason in _find_reasons(policy, saves):
        stays[save.name] = f"{stays[save.name]}; {reason}" if save.name in stays else reason
    if replace(policy, max_total=None) == Policy():
        stays = {save.name: f"the newest that fit into {policy.max_total:,} bytes" for save in saves}
    if policy.max_total is not None:
        stays = _find_room(policy.max_total, saves, stays, always)
    staying = always.keys() | stays.keys()
    return {s.name: always.get(s.name) or stays[s.name] for s in saves if s.name in staying}


def _find_room(
    most: int, saves: Sequence[Save], stays: Mapping[str, str], always: Mapping[str, str]
) -> dict[str, str]:
    """Return the newest of ``stays``, until one has no room in ``most`` bytes beside all of ``always``."""
    room, out = most - sum(s.size for s in saves if s.name in always), dict[str, str]()
    for save in (s for s in saves if s.name in stays and s.name not in always):
        room -= save.size
        if room < 0:
            break
        out[save.name] = stays[save.name]
    return out


def _find_reasons(policy: Policy, saves: Sequence[Save]) -> Iterator[tuple[Save, str]]:
    """Yield (save, why it stays) for each field of the policy that keeps it, except ``max_total``."""
    yield from ((save, f"one of the last {policy.keep_last}") for save in saves[: policy.keep_last or 0])
    every = policy.keep_every or 0
    for save in saves if every else ():
        if save.step is None:
            yield save, f"nothing says its step, which may be a multiple of {every:,}"
        elif save.step % every == 0:
            yield save, f"its step is a multiple of {every:,}"
    yield from _find_by_time(policy, saves)
    yield from ((s, f"its kind is {s.kind}") for s in saves if s.kind in policy.keep_kinds)


def _find_by_time(policy: Policy, saves: Sequence[Save]) -> Iterator[tuple[Save, str]]:
    """Yield (save, why it stays) for each field of the policy that keeps saves by the time of their write."""
    if policy.keep_within is not None:
        since = max((s.at_ns for s in saves), default=0) - int(policy.keep_within * 1e9)
        yield from ((s, "saved shortly before the last one") for s in saves if s.at_ns >= since)
    for number, word, period in (
        (policy.keep_hourly, "hour", "%Y-%m-%d %H"),
        (policy.keep_daily, "day", "%Y-%m-%d"),
        (policy.keep_weekly, "week", "%G-%V"),
    ):
        last_of = dict[str, Save]()  # period in UTC -> its last save, the latest first
        for save in sorted(saves, key=lambda s: s.at_ns, reverse=True):
            last_of.setdefault(time.strftime(period, time.gmtime(save.at_ns // 10**9)), save)
        yield from ((s, f"the last of its {word}") for s in [*last_of.values()][: number or 0])


PINS = f"{STATE}/pins"
"""The directory below a root with a file for each pinned path."""


class _Pin(Struct, frozen=True):
    """One pinned path, relative to the directory in which it was pinned."""

    path: str


def find_pins(s: Session) -> set[str]:
    """Return the absolute paths that are pinned at, above or below a root. Raises CannotLook."""
    homes = [s.root]
    while not is_url(s.root) and (above := os.path.dirname(homes[-1])) != homes[-1]:
        homes.append(above)
    homes += map(os.path.dirname, s.found.states)
    return {os.path.join(home, name) for home in homes for name in read_pins(home)}


def read_pins(root: str) -> set[str]:
    """Return the paths that are pinned in ``root``, relative to it. Anybody's pins count, also uploaded ones:
    a pin can only keep something from being removed. Raises CannotLook, also if a pin cannot be read: what it
    names must not be removed.
    """
    home, out = os.path.join(root, PINS), set[str]()
    try:
        for name in filter(lambda name: name.endswith(".json"), sorted(list_names(home))):
            with opened(f"{home}/{name}", hold=True) as source:
                body = checked_json.decode(checked_json.parse(source.read(0, source.size)), _Pin)
            out.add(body.path)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise CannotLook(f"which checkpoints are pinned cannot be read: {e.filename}: {e.strerror}") from e
    except ValueError as e:
        raise CannotLook(f"a pin in {home} is damaged: {e!r}", "pin its checkpoint again") from e
    return out


def pin(
    root: str,
    paths: list[str],
    *,
    remove: bool = False,
    dry_run: bool = False,
    selection: Selection | None = None,
) -> Changes:
    """Pin the checkpoints at ``paths``, which are absolute; with ``remove`` take their pins away. Raises
    NoCheckpoint if a path is none, or not pinned, UsageError for a part of one, and CannotLook.
    """
    selection, root = selection or Selection(), os.path.abspath(root)
    trusted, home = selection.trust, os.path.join(os.path.realpath(root), PINS)
    # An interrupted command is taken back first: it may have moved away the checkpoint that is to be pinned.
    with open_journal(root, trusted, apply=not dry_run) as journal:
        labels = _find_labels(root, paths, remove, selection)
        for name in () if dry_run else labels:
            _write_pin(home, name, remove, trusted)
        state = f"{'would-be-' if dry_run else ''}{'unpinned' if remove else 'pinned'}"
        rows = [Change(os.path.join(root, name), state, "", None, label) for name, label in labels.items()]
        return Changes("pin", root, not dry_run, (*journal.recovered, *rows))


def _find_labels(root: str, paths: list[str], remove: bool, selection: Selection) -> dict[str, str]:
    """Return path below the root -> label of its checkpoint, for all to be pinned: its directory, or all its
    files. With ``remove``, of the pins to be removed, with no label. Raises NoCheckpoint and UsageError.
    """
    if remove:
        pinned, labels = read_pins(root), {os.path.relpath(path, root): "" for path in paths}
        for name in (name for name in labels if name not in pinned):
            listed = ", ".join(sorted(pinned)) or "nothing"
            raise NoCheckpoint(f"{os.path.join(root, name)} is not pinned", f"what is: {listed}")
        return labels
    s = open_session(root, selection.read_options())
    s.add_members()
    found = find_named(list_groups(s), paths, root)
    own = ((g, [p for p in g.paths if len(g.paths) == 1 or p in g.files]) for g in found)
    return {os.path.relpath(path, root): g.label for g, mine in own for path in mine}


def _write_pin(home: str, name: str, remove: bool, trusted: Trust) -> None:
    """Write the pin of ``name`` into the directory ``home``, or ``remove`` it. Raises CannotLook."""
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
