"""Entries that are left out of a scan: globs of --exclude, which are not looked at and have no influence, but
are counted; ``ckpt``'s own directory in a tree; and copies that people and file systems keep beside a run,
which are removed before anything is decided, and named in every answer.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property
from glob import escape
from os.path import split
from shlex import quote
from typing import TYPE_CHECKING, TypedDict

from msgspec import DecodeError, Struct, field, json

from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layouts
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.storage import ShortRead, opened
from ckpt_tools.storage.listing import Entries, list_entries, walk
from ckpt_tools.storage.retry import ABSENT, exists, is_directory, lstat

if TYPE_CHECKING:
    from ckpt_tools.discovery.found import Discovery

_TOKEN = re.compile(r"(?:(?<=/)|\A)\*\*(?:/|\Z)|\[(!?)([^\]/]+)\]|.", re.DOTALL)
"""A ``**`` for directories, a set of characters, or one character of a glob."""
_WILD = {"**/": "(?:[^/]+/)*", "**": ".+", "*": "[^/]*", "?": "[^/]"}
STATE = ".ckpt"
"""The directory in a root for the journal of commands that change something, and files that they put away."""


class Excluded(Struct, dict=True):
    """The ``globs`` of --exclude, relative to the root: ``*`` stays within a name, ``**`` stands for any
    number of directories. ``paths`` were left out so far; directories among them were not listed.
    """

    globs: Sequence[str] = ()
    paths: set[str] = field(default_factory=set)

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile("|".join(map(_write_regex, self.globs)), re.DOTALL)

    def keep(self, root: str, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """Return the entries of a directory at or below ``root`` that no glob fits; ``paths`` gets others."""
        if not self.globs:
            return entries
        start = len(root.rstrip("/")) + 1
        gone = {e.path for e in entries if self._regex.fullmatch(e.path, start)}
        self.paths |= gone
        return [e for e in entries if e.path not in gone]


def _write_flag(root: str, c: Checkpoint, path: str, needed: Collection[str]) -> str:
    """Return the flag --exclude for a path; "" if it leads to the choice ``c`` or to a ``needed`` path."""
    prefix, needed = f"{root.rstrip('/')}/", {*needed, c.path, *(p.path for p in c.parts)}
    if not path.startswith(prefix) or path in needed or any(k.startswith(f"{path}/") for k in needed):
        return ""
    return f"--exclude {quote(escape(path.removeprefix(prefix)))}"


def hint_exclude(root: str, c: Checkpoint, *paths: str, kept: Collection[str] = (), label: str = "") -> str:
    """Return the flag --exclude for the first of ``paths`` without the choice ``c`` or a ``kept`` path, else
    to move the last one; and what the job resumes from then: ``label``, by default the choice's.
    """
    flags = (_write_flag(root, c, path, kept) for path in paths)
    return f"{next(filter(None, flags), f'move {paths[-1]} out of {root}')} to resume from {label or c.label}"


def hint_exclude_all(root: str, c: Checkpoint, paths: Sequence[str], kept: Collection[str]) -> str:
    """Return one --exclude flag for each of the paths, and that the job resumes from the choice then."""
    flags = [_write_flag(root, c, path, kept) for path in paths]
    action = " ".join(flags) if all(flags) else flags[0] or f"move {paths[0]} out of {root}"
    return f"{action} to resume from {c.label}"


def hint_choice(root: str, one: Checkpoint, other: Checkpoint) -> str:
    """Return a hint with two flags: to resume from one of two files of a save, without the other one and the
    files of other saves that are called as it is; numbers that both paths have are those of the save.
    """

    def write_clause(stays: Checkpoint, goes: Checkpoint) -> str:
        kept, path = (os.path.relpath(c.path, root) for c in (stays, goes))
        numbers, words = re.findall("[0-9]+", kept), escape(path).split("/")
        own = -2 if goes.parts[0].home else -1  # with the save's own directory
        wide = [re.sub("[0-9]+", lambda m: "*" if m[0] in numbers else m[0], word) for word in words[own:]]
        glob = "/".join([*words[:own], *wide])
        flag = f"--exclude {quote(escape(path) if re.fullmatch(_write_regex(glob), kept) else glob)}"
        return f"add {flag} to resume from {kept}"

    both = "if a job loads both, describe them as [[layout]] in ckpt.toml"
    return f"{write_clause(one, other)}, or {write_clause(other, one)}; {both}"


def make_clause(hint: str) -> str:
    """Return a hint as half of a sentence: "add" precedes a flag."""
    return f"add {hint}" if hint.startswith("--") else hint


def leave_out_state(entries: list[os.DirEntry[str]], met: set[str]) -> list[os.DirEntry[str]]:
    """Return the entries of one directory without ``.ckpt``, whose path is added to ``met``."""
    state = next((e for e in entries if e.name == STATE), None)
    if state is None:
        return entries
    with suppress(OSError):
        if not is_directory(state):
            return entries
    met.add(state.path)
    return [e for e in entries if e is not state]


def _write_regex(glob: str) -> str:
    """Return a glob, as the shell reads it and with ``**``, as a regular expression."""

    def write_token(m: re.Match[str]) -> str:
        """Return a wildcard, character or set (``[!0-9]``) of a glob as a regular expression."""
        if not m[2]:
            return _WILD.get(m[0], re.escape(m[0]))
        return f"[{'^/' if m[1] else ''}{re.escape(m[2]).replace(chr(92) + '-', '-')}]"

    return _TOKEN.sub(write_token, glob.strip("/"))


_ENDS = (".bak", ".old", ".orig", "~")
_NAMES = frozenset((".trash", ".Trash", ".snapshot", ".snapshots", "lost+found", ".ipynb_checkpoints"))
"""Names of copies that people, desktops, file systems (NetApp, ZFS) and Jupyter make."""


def is_set_aside(name: str) -> bool:
    """Return True if a file or directory of that name is a copy that somebody keeps."""
    return name.endswith(_ENDS) or name in _NAMES or name.startswith(".Trash-")


def drop_copies(found: Discovery, root: str, layouts: Layouts) -> list[Finding]:
    """Remove the copies from ``found``, and return a finding for each; names in ROOT's path do not count."""
    own = "/".join(piece.template for layout in layouts.own for piece in layout.pieces)
    root = root if found.tree else root.rpartition("/")[0]

    @cache
    def find_top_above(path: str) -> str:
        """Return the highest directory, above or at this path, that is a copy; "" if none is."""
        return find_top(*split(path)) if len(path) > len(root) else ""

    def find_top(directory: str, name: str) -> str:
        """Return the highest copy that a file is or lies in; "" if none is."""
        is_copy = is_set_aside(name) and name not in own
        return find_top_above(directory) or (f"{directory}/{name}" if is_copy else "")

    tops = [find_top(p.folder.directory[:-1], p.name) for p in found.parts]
    others = (*(file.path for file in found.bare), *found.copies)
    counts = Counter(filter(None, (*tops, *(find_top(*split(path)) for path in others))))
    if counts:
        found.parts = [p for p, top in zip(found.parts, tops, strict=True) if not top]
        _remove_copies(found, lambda path: not find_top(*split(path)))
    text = "a copy by its name{}: no candidate, and not looked at"
    with_files = {top: f" with {n} checkpoint files" if n > 1 else "" for top, n in sorted(counts.items())}
    return [finding("set-aside", text.format(more), path=top) for top, more in with_files.items()]


def _remove_copies(found: Discovery, is_kept: Callable[[str], bool]) -> None:
    """Keep only the paths in ``found``, other than parts, for which ``is_kept`` returns True."""
    found.bare = [file for file in found.bare if is_kept(file.path)]
    for paths in (found.unfinished, found.indexes, found.unneeded):
        paths[:] = filter(is_kept, paths)
    found.strange = dict.fromkeys(filter(is_kept, found.strange))
    found.trackers = {key: path for key, path in found.trackers.items() if is_kept(path)}


QUARANTINE = "quarantine"
"""The directory in ``.ckpt`` with one directory for each time that files were put away; a file keeps in it
the path that it had below the root. These files are never candidates, but they still count as existing.
"""
REPAIRED = "repaired.json"
"""The file in ``.ckpt`` that lists the files that were repaired without a witness."""
SCHEMA = "ckpt-tools/repaired/v1"
_SHOWN = 4
_MOST = 16 << 20
"""The most bytes of this list that are read."""


class Repaired(TypedDict):
    """One file in that list; ``path`` is relative to the root, ``odds`` the probability of a wrong repair."""

    path: str
    size: int
    mtime_ns: int
    odds: float


class _Listed(TypedDict):
    files: list[Repaired]


def find_put_away(states: Iterable[str], root: str) -> Iterator[Finding]:
    """Yield each directory of files that were put away and are still there; ``unreadable`` if unknown."""
    for state in sorted(states):
        quarantine = os.path.join(state, QUARANTINE)
        home = os.path.relpath(os.path.dirname(state), root)
        try:
            for entry in _list_if_there(quarantine):
                if files := list(list_origins(entry.path)):  # else all files were taken out again
                    paths = [os.path.normpath(os.path.join(home, e.name)) for e in _list_if_there(entry.path)]
                    more = f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else ""
                    names = f"{ranges.names(paths[:_SHOWN])}{more}"
                    text, hint = f"what was {names} lies in quarantine: no candidate, not looked at", ""
                    if all(map(exists, files)):  # a repair has replaced it
                        text = f"{text}; another file has its place"
                        hint = f"'ckpt undo {quote(os.path.dirname(state))}' says what it would take back"
                    yield finding("in-quarantine", text, path=entry.path, hint=hint)
        except OSError as e:
            text = f"what lies in quarantine is unknown: {e.strerror}"
            yield finding("unreadable", text, path=e.filename or quarantine, severity=Severity.NOTE)


def find_repaired(states: Iterable[str]) -> Iterator[Finding]:
    """Yield a warning for each file repaired without a witness; anybody may write the list, to warn only."""
    for state in sorted(states):
        for row in read_repaired(os.path.join(state, REPAIRED)):
            path = os.path.join(os.path.dirname(state), row["path"])
            with suppress(OSError):
                info = lstat(path)
                if (info.st_size, info.st_mtime_ns) == (row["size"], row["mtime_ns"]):
                    odds = f"{row['odds']:.2g}"
                    text = f"a flipped bit was repaired by its CRC alone, wrong with odds of {odds}"
                    yield finding("repaired-unwitnessed", text, path=path)


def read_repaired(path: str) -> list[Repaired]:
    """Return the rows of such a list; none if it is missing or not written by ckpt."""
    try:
        with opened(path) as file:
            rows = json.decode(file.read(0, min(file.size, _MOST)), type=_Listed)["files"]
    except (OSError, ShortRead, DecodeError, RecursionError):
        return []
    return [{**row, "path": os.path.normpath(f"/{row['path']}")[1:]} for row in rows]


def list_origins(put_away: str) -> Iterator[str]:
    """Yield the paths that the files of one quarantine had before. Raise OSError."""
    # put_away is HOME/.ckpt/quarantine/NUMBER, and its files keep their paths below HOME
    home = os.path.dirname(os.path.dirname(os.path.dirname(put_away)))
    for _, entries in walk(put_away):
        if isinstance(entries, OSError):
            raise entries
        files = (e.path for e in entries if not e.is_dir(follow_symlinks=False))
        yield from (os.path.join(home, os.path.relpath(path, put_away)) for path in files)


def _list_if_there(directory: str) -> Entries:
    """Return a directory's entries, none if it is not there. Raise OSError otherwise."""
    try:
        return list_entries(directory)
    except ABSENT:
        return []
