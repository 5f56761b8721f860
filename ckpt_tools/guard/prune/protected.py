"""Which checkpoints are never removed, whatever a policy says: for what they are, or for others' needs."""

from __future__ import annotations

import filecmp
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import takewhile

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.errors import CannotLook
from ckpt_tools.formats.seals.document import FRAGMENTS, is_apart
from ckpt_tools.guard.prune.entries import Entry, find_age, list_below
from ckpt_tools.guard.prune.policy import find_pins
from ckpt_tools.guard.quarantine import find_trackers_naming
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import first_launch
from ckpt_tools.planning.choice_warnings import find_named_as_best
from ckpt_tools.reading.session import Session
from ckpt_tools.settings import checked_json, resolve
from ckpt_tools.storage import trust
from ckpt_tools.storage.listing import is_within
from ckpt_tools.storage.retry import is_directory
from ckpt_tools.storage.trust import Trust
from ckpt_tools.storage.urls import is_url, real_path

_DECISION = re.compile(r"\d{1,9}\.json")
_MARKER_ROLES = frozenset({"commit", "item_commit", "metadata", "tree", "manifest", "index"})
"""Roles of files that make other files a checkpoint; further ones end with ``_index`` or ``_metadata``."""


def find_decided(plan_dir: str | None, trusted: Trust) -> set[str]:
    """Return the real paths that jobs' decisions load, of any root: a job may use another path. Raises
    CannotLook if decisions cannot be read, or ``plan_dir`` is named and missing; and Untrusted.
    """
    home, out, path = plan_dir or resolve.decisions(), set[str](), ""
    if not os.path.isdir(home):
        if plan_dir is not None:
            text = f"{plan_dir}, which holds the decisions of other nodes, is not there"
            raise CannotLook(text, "check that it is mounted, or name another with --plan-dir")
        return out
    try:
        with trust.label(first_launch.FLAG):
            for directory, _, names in os.walk(home, onerror=_raise):
                for name in names:
                    if name == first_launch.LAST or _DECISION.fullmatch(name):
                        path = os.path.join(directory, name)
                        with suppress(FileNotFoundError):
                            body = checked_json.parse(trust.read(path, first_launch.MOST, trusted))
                            out |= _find_loaded(body)
    except OSError as e:
        raise CannotLook(f"decisions of jobs cannot be read: {e.filename}: {e.strerror}") from e
    except checked_json.NoJson as e:
        hint = "when no process of that start runs any more, remove it"
        raise CannotLook(f"{path}, which says what a job loads, is damaged", hint) from e
    return out


def _find_loaded(decision: object) -> set[str]:
    """Return the real paths that a job's decision loads."""
    body = decision if isinstance(decision, dict) else {}
    loaded = [body.get(key) for key in ("checkpoint", "resume", "shared", "ranks")]
    found = checked_json.nodes([*loaded, {"path": body.get("path")}])
    paths = (node.get("path") for node in found if isinstance(node, dict))
    return {real_path(path) for path in paths if isinstance(path, str)}


def _find_links(root: str) -> dict[str, str]:
    """Return real path -> a link below the root that leads there. Raises CannotLook."""
    out: dict[str, str] = {}
    try:
        for directory, below, names in () if is_url(root) else os.walk(root, onerror=_raise):
            if STATE in below:
                below.remove(STATE)
            links = (path for n in (*below, *names) if os.path.islink(path := os.path.join(directory, n)))
            out |= {os.path.realpath(path): path for path in links}
    except OSError as e:
        raise CannotLook(f"cannot list {e.filename}: {e.strerror}") from e
    return out


def _raise(error: OSError) -> None:
    raise error


def find_protected(
    s: Session, entries: Sequence[Entry], plans: Sequence[tuple[object, LoadPlan]], selection: Selection
) -> dict[str, str]:
    """Return name -> why it is never removed; ``plans``: (question, plan). Raises CannotLook, Untrusted."""
    chosen = {plan.checkpoint.key for _, plan in plans if plan.checkpoint}
    loaded = {f.path for _, plan in plans for _, f in plan.loads}
    newest = {name for run in {e.run for e in entries} for name in _find_newest(entries, run)}
    claims = find_pins(s), find_decided(selection.plan_dir, selection.trust), _find_links(s.root)
    out = dict[str, str]()
    for e in entries:
        if e.checkpoint.key in chosen or not loaded.isdisjoint(e.members):
            out[e.name] = "'ckpt plan' chooses it"
        elif files := find_trackers_naming(s, [e.checkpoint]):
            out[e.name] = f"{os.path.basename(min(files))} names it"
        elif claim := _find_claim(s, e, *claims):
            out[e.name] = claim
        elif find_age(e, s.now_ns) < selection.settle:
            out[e.name] = "written a moment ago, so it may be in use: wait, or add --settle 0s"
        elif e.name in newest:
            out[e.name] = "the newest that is verified"
    return out


def _find_claim(
    s: Session, e: Entry, pins: Collection[str], decided: Collection[str], links: Mapping[str, str]
) -> str:
    """Return why a pin, a job's decision or a link (by target) keeps any part of a checkpoint; "" if none."""
    own = {real_path(path) for path in e.group.paths}

    def is_own(path: str) -> bool:
        return any(is_within(path, above) for above in own)

    if any(is_own(path) or e.group.is_below(path) for path in pins):
        return "it is pinned"
    if any(map(is_own, decided)):
        return "a decision of a job names it (--plan-dir)"
    link = next((link for to, link in links.items() if is_own(to) and not e.group.holds(link)), None)
    return f"{os.path.relpath(link, s.root)} leads to it" if link else ""


def _find_newest(entries: Sequence[Entry], run: tuple[str, str]) -> Iterator[str]:
    """Yield the names of the newest good checkpoints of a run: by step, and by time."""
    if good := [e for e in entries if e.run == run and e.good]:
        yield max(good, key=lambda e: e.newness).name
        yield max(good, key=lambda e: (e.checkpoint.mtime_ns, e.newness)).name  # stores tell whole seconds


def find_need(e: Entry, staying: Sequence[Entry]) -> str:
    """Return why one of the ``staying`` checkpoints needs ``e``, which could be removed; "" if none does."""
    files = {*e.group.files, *e.members}
    for other in staying:
        if files & other.members or any(e.group.holds(path) for path in other.members):
            return f"{other.group.label or other.checkpoint.path} needs files of it"
        is_same_moment = other.checkpoint.order == e.checkpoint.order != (-1, -1, -1)
        is_emergency = Kind.DYING_GASP in (other.checkpoint.kind, e.checkpoint.kind)
        if is_same_moment and (is_emergency or other.run == e.run):
            return "of the same moment as one that stays, whose ranks it may stand in for"
    return ""


def find_bests(s: Session, staying: Sequence[Entry], found: Sequence[Entry]) -> dict[str, str]:
    """Return name -> why it stays, for the checkpoints that a staying one names as its best or base model."""
    owners = {path: e for e in found for path in e.group.paths}
    out, match = dict[str, str](), cache(partial(_match_path, paths=owners))
    for other in staying:
        label, c = other.group.label or other.checkpoint.path, other.checkpoint
        configs = [part for part in c.parts if part.role == "config"]
        bases = [s.report(p, Level.STRUCTURE).metadata.get("base_model_name_or_path") for p in configs]
        names = {base.rstrip("/"): "base model" for base in bases if isinstance(base, str) and base}
        names |= dict.fromkeys(find_named_as_best(s, c), "best")
        for name, relation in names.items():
            for path in match(name, beside=os.path.dirname(other.group.path)):
                out[owners[path].name] = f"{label} names it as its {relation}"
    return out


def _match_path(name: str, paths: Collection[str], beside: str) -> list[str]:
    """Return the ``paths`` that a path in a config may mean after a move: the ones that share most names at
    the end; of several, the ones in the directory ``beside``, in which the naming checkpoint lies.
    """

    def count_shared(path: str) -> int:
        pairs = zip(reversed(name.split("/")), reversed(path.split("/")), strict=False)
        return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))

    most = max(map(count_shared, paths), default=0)
    best = [path for path in paths if most and count_shared(path) == most]
    return [path for path in best if os.path.dirname(path) == beside] or best


def is_of_seal(path: str) -> bool:
    """Return whether a path is, by its name, a seal, a fragment of one, or a signature."""
    directory, _, name = path.rpartition("/")
    return is_apart(name) or directory.rpartition("/")[2] == FRAGMENTS


def find_stages(s: Session, entry: Entry) -> Callable[[str], int]:
    """Return the stage in which a path is removed: 0 markers, and a required model file with all that could
    replace it; 1 other model files; 2 all else; 3 seals, which tell until then that something is missing.
    """
    out, needed = dict[str, int](), list[Part]()
    for part in s.members(entry.checkpoint).parts:
        marks = part.role in _MARKER_ROLES or part.role.endswith(("_index", "_metadata"))
        out[part.path] = 0 if marks else 1 if "model" in part.role else 2
        if out[part.path] == 1 and s.layouts.piece_of(part).required:
            needed.append(part)
    if first := min(needed, key=lambda part: part.path, default=None):
        alike = (part for part in needed if (part.role, part.coords) == (first.role, first.coords))
        out |= {part.path: 0 for part in alike}
    return lambda path: out.get(path, 3 if is_of_seal(path) else 2)


def find_obstacle(s: Session, e: Entry, staying: Sequence[Entry]) -> str:
    """Return why a checkpoint cannot be removed as a whole and without anything else; "" if it can."""
    for path in e.group.paths:
        if not path.startswith(f"{s.root}/"):
            return "it is ROOT itself: name the directory above it"
        if real_path(os.path.dirname(path)) != os.path.dirname(path) or os.path.islink(path):
            return "it is reached through a link"
        if is_directory(path) and (other := _find_foreign_file(s, e, path, staying)):
            return f"{os.path.relpath(other, s.root)} is not a file of it that ckpt knows"
    return ""


def _find_foreign_file(s: Session, e: Entry, home: str, staying: Sequence[Entry]) -> str:
    """Return a file in a checkpoint's directory that is none of its own, and that no ``staying`` one has."""
    own = {*e.members, *s.found.indexes, *s.found.unneeded, *s.found.trackers.values()}
    copies = [other.group.paths[0] for other in staying if other.run == e.run and other.good]
    for path in list_below(home):
        name = os.path.relpath(path, home)
        is_known = path in own or is_of_seal(path)
        if not is_known and not any(_is_same(path, os.path.join(copy, name)) for copy in copies):
            return path
    return ""


def _is_same(path: str, other: str) -> bool:
    """Return whether two files, and no links, hold the same bytes; of objects in a store their ETags tell."""
    with suppress(OSError):
        if not is_url(path):
            return not os.path.islink(path) and filecmp.cmp(path, other, shallow=False)
        from ckpt_tools.storage.stores.mounts import object_of

        a, b = object_of(path), object_of(other)
        return bool(a.etag) and (a.size, a.etag) == (b.size, b.etag)
    return False
