"""Which checkpoints never go, whatever a policy says: for what they are, and for what the others need."""

from __future__ import annotations

import filecmp
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from msgspec import Struct

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.errors import CannotLook
from ckpt_tools.formats.seals.names import FRAGMENTS, is_apart
from ckpt_tools.guard.prune.looked_at import Entry, age
from ckpt_tools.guard.prune.pins import all_pinned
from ckpt_tools.guard.trackers import naming
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import decision_log
from ckpt_tools.planning.choice_warnings import find_named_as_best
from ckpt_tools.reading.session import Session
from ckpt_tools.settings import checked_json, directories
from ckpt_tools.storage import trust
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import is_directory, is_file
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import is_url, real_path

_DECISION = re.compile(r"\d{1,9}\.json")


def decided(plan_dir: str | None, trusted: Trust = OURS) -> frozenset[str]:
    """The real paths that decisions of jobs name, about whatever root: a job may have been started with
    another name of this one.

    Raises CannotLook where they cannot be read, also where ``plan_dir`` was named and is not there; and
    Untrusted.
    """
    home = plan_dir or directories.decisions()
    if not os.path.isdir(home):
        if plan_dir is not None:
            text = f"{plan_dir}, which holds the decisions of other nodes, is not there"
            raise CannotLook(text, "see that it is mounted, or name another with --plan-dir")
        return frozenset()
    try:
        with trust.named(decision_log.FLAG):
            return frozenset(
                real_path(path)
                for directory, _, names in os.walk(home, onerror=_raised)
                for name in names
                if name == decision_log.LAST or _DECISION.fullmatch(name)
                for path in _named(_json(os.path.join(directory, name), trusted))
            )
    except OSError as e:
        raise CannotLook(f"decisions of jobs cannot be read: {e.filename}: {e.strerror}") from e


def _json(path: str, trusted: Trust) -> Mapping[str, Any]:
    try:
        value = checked_json.parsed(trust.read(path, decision_log.MOST, trusted))
    except FileNotFoundError:
        return {}
    except checked_json.NoJson as e:
        hint = "when no process of that start runs any more, remove it"
        raise CannotLook(f"{path}, which says what a job loads, is damaged", hint) from e
    return value if isinstance(value, dict) else {}


def _named(body: Mapping[str, Any]) -> Iterator[str]:
    """Every path that is loaded by a decision, and not those that lost."""
    loaded = {key: body.get(key) for key in ("checkpoint", "resume", "shared", "ranks")}
    for node in checked_json.nodes({**loaded, "last": {"path": body.get("path")}}):
        if isinstance(node, dict) and isinstance(path := node.get("path"), str):
            yield path


def led_to(root: str) -> dict[str, str]:
    """Real path -> a link below the root that leads there. Raises CannotLook."""
    out: dict[str, str] = {}
    if is_url(root):
        return out
    try:
        for directory, below, names in os.walk(root, onerror=_raised):
            if STATE in below:
                below.remove(STATE)
            for name in (*below, *names):
                path = os.path.join(directory, name)
                if os.path.islink(path):
                    out[os.path.realpath(path)] = path
    except OSError as e:
        raise CannotLook(f"cannot list {e.filename}: {e.strerror}") from e
    return out


def _raised(error: OSError) -> None:
    raise error


class Claims(Struct, frozen=True):
    """What holds on to paths below a root, as real paths: ``plans`` are those of ``ckpt plan``, one a run."""

    root: str
    plans: Sequence[LoadPlan]
    pins: frozenset[str]
    decided: frozenset[str]
    links: dict[str, str]

    @classmethod
    def of(cls, root: str, plans: Sequence[LoadPlan], selection: Selection) -> Claims:
        """Raises CannotLook, and Untrusted."""
        pins = all_pinned(root)
        return cls(root, plans, pins, decided(selection.plan_dir, selection.trust), led_to(root))


def always(s: Session, entries: Sequence[Entry], claims: Claims, settle: float) -> dict[str, str]:
    """Path of the first file -> why a checkpoint never goes."""
    out = dict[str, str]()
    newest = [found for run in {e.run for e in entries} for found in _newest(entries, run)]
    for e in entries:
        why = next(_reasons(s, e, claims, settle), "")
        if why or e in newest:
            out[name_of(e)] = why or "the newest that is verified"
    return out


def name_of(entry: Entry) -> str:
    return entry.checkpoint.key.path


def _newest(entries: Sequence[Entry], run: tuple[str, str]) -> Iterator[Entry]:
    """The newest of those that are verified, by what they say and by their times."""
    good = [e for e in entries if e.run == run and e.good]
    if good:
        yield max(good, key=lambda e: e.newness)
        yield max(good, key=lambda e: (e.checkpoint.mtime_ns, e.newness))  # stores tell whole seconds


def _reasons(s: Session, e: Entry, claims: Claims, settle: float) -> Iterator[str]:
    if any(_chooses(made, e) for made in claims.plans):
        yield "'ckpt plan' chooses it"
    if naming(s, [e.checkpoint]):
        yield "a tracker names it"
    if any(_within(e, path) or _around(e, path) for path in claims.pins):
        yield "it is pinned"
    if any(_within(e, path) for path in claims.decided):
        yield "a decision of a job names it (--plan-dir)"
    for to, link in claims.links.items():
        if _within(e, to) and not e.group.holds(link):
            yield f"{os.path.relpath(link, claims.root)} leads to it"
    if age(e, s.now_ns) < settle:
        yield "written a moment ago, so it may be in use: wait, or say --settle 0s"


def _chooses(made: LoadPlan, e: Entry) -> bool:
    """Whether a plan names the checkpoint, or one of its files."""
    files = {f.path for rank in made.by_rank for f in rank.files} | {f.path for f in made.shared}
    is_chosen = made.checkpoint is not None and made.checkpoint.key == e.checkpoint.key
    return is_chosen or not files.isdisjoint(e.members)


def _within(e: Entry, real: str) -> bool:
    own = {real_path(path) for path in e.group.paths}
    return real in own or any(real.startswith(f"{path}/") for path in own)


def _around(e: Entry, path: str) -> bool:
    """Whether all of it lies below a path."""
    return all(own.startswith(f"{path}/") for own in e.group.paths)


def needed(e: Entry, staying: Sequence[Entry]) -> str:
    """Why one that could go is of use to others that stay; nothing where it is not."""
    files = {*e.group.files, *e.members}
    for other in staying:
        if files & other.members or any(e.group.holds(path) for path in other.members):
            return f"{other.group.label or other.checkpoint.path} needs files of it"
        same = other.checkpoint.order == e.checkpoint.order != (-1, -1, -1)
        gasp = Kind.DYING_GASP in (other.checkpoint.kind, e.checkpoint.kind)
        if same and (gasp or other.run == e.run):
            return "of the same moment as one that stays, whose ranks it may stand in for"
    return ""


def bests(s: Session, staying: Sequence[Entry], found: Sequence[Entry]) -> dict[str, str]:
    """Path of the first file -> why a checkpoint is the best, or the base model, of one that stays."""
    owners = {path: e for e in found for path in e.group.paths}
    out, places = dict[str, str](), cache(partial(_find_places, paths=owners))
    for other in staying:
        who, c = other.group.label or other.checkpoint.path, other.checkpoint
        configs = [part for part in c.parts if part.role == "config"]
        bases = (s.report(p, Level.STRUCTURE).metadata.get("base_model_name_or_path") for p in configs)
        names = {
            **{base.rstrip("/"): "base model" for base in bases if isinstance(base, str) and base},
            **dict.fromkeys(find_named_as_best(s, c), "best"),
        }
        for named, what in names.items():
            for path in places(named, beside=os.path.dirname(other.group.path)):
                out[name_of(owners[path])] = f"{who} names it as its {what}"
    return out


def _find_places(named: str, paths: Collection[str], beside: str) -> list[str]:
    """Return those of ``paths`` that a name may mean after a move: those with the longest end in common, of
    several those in the directory ``beside`` this one.
    """
    ends = dict.fromkeys(paths, 0)
    for path in paths:
        for a, b in zip(reversed(named.split("/")), reversed(path.split("/")), strict=False):
            if a != b:
                break
            ends[path] += 1
    longest = max(ends.values(), default=0)
    like = [path for path, n in ends.items() if n == longest > 0]
    return [path for path in like if os.path.dirname(path) == beside] or like


def not_removable(s: Session, e: Entry, root: str, staying: Sequence[Entry]) -> str:
    """Why a checkpoint cannot be taken out of its tree as a whole, and nothing else with it."""
    for path in e.group.paths:
        if not path.startswith(f"{root}/"):
            return "it is ROOT itself: name the directory above it"
        if real_path(os.path.dirname(path)) != os.path.dirname(path) or os.path.islink(path):
            return "it is reached through a link"
        if is_directory(path) and (other := _strange(s, e, path, staying)):
            return f"{os.path.relpath(other, root)} is no file of it that ckpt knows"
    return ""


def _strange(s: Session, e: Entry, home: str, staying: Sequence[Entry]) -> str:
    """A file in a checkpoint's directory that may be somebody's, and that nothing that stays has as well."""
    own = {*e.members, *s.found.indexes, *s.found.unneeded, *s.found.trackers.values()}
    copies = [other.group.paths[0] for other in staying if other.run == e.run and other.good]
    for directory, below, names in _below(home):
        if STATE in below:
            return os.path.join(directory, STATE)
        for name in (*names, *(d for d in below if os.path.islink(os.path.join(directory, d)))):
            path = os.path.join(directory, name)
            if path not in own and not is_of_seal(path) and not _same(path, home, copies):
                return path
    return ""


def is_of_seal(path: str) -> bool:
    """Whether it is a seal, a part of one, or a signature."""
    directory, _, name = path.rpartition("/")
    return is_apart(name) or directory.rpartition("/")[2] == FRAGMENTS


def _same(path: str, home: str, copies: Collection[str]) -> bool:
    """Whether a checkpoint that stays has a file of the same name with the same bytes: frameworks save a
    tokenizer with each.
    """
    name = os.path.relpath(path, home)
    if os.path.islink(path) or not is_file(path):
        return False
    there = (os.path.join(other, name) for other in copies)
    if is_url(path):
        return any(_same_object(path, one) for one in there)
    return any(os.path.isfile(one) and filecmp.cmp(path, one, shallow=False) for one in there)


def _below(home: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As ``os.walk``, in a store too."""
    if not is_url(home):
        yield from os.walk(home)
        return
    left = [home]
    while left:
        here = left.pop()
        entries = entries_of(here)
        below = [e.name for e in entries if e.is_dir()]
        yield here, below, [e.name for e in entries if not e.is_dir()]
        left += [f"{here}/{name}" for name in below]


_READ = 64 << 20
"""Bytes of an object that are read to compare it with another one, at most."""


def _same_object(one: str, other: str) -> bool:
    """Whether two objects of a store hold the same bytes: by their ETags, else by reading both."""
    from ckpt_tools.storage import opened
    from ckpt_tools.storage.stores.refresh import object_of

    try:
        a, b = object_of(one), object_of(other)
        if a.size != b.size:
            return False
        if a.etag and a.etag == b.etag:
            return True
        if a.size > _READ:
            return False
        with opened(one, hold=True) as here, opened(other, hold=True) as there:
            return here.read(0, a.size) == there.read(0, a.size)
    except OSError:
        return False
