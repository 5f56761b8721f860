"""What is left out of a scan: the entries that --exclude names, which are not looked at and have no
influence, but are counted; and what ``ckpt`` itself keeps in a tree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from functools import cached_property
from glob import escape
from shlex import quote

from msgspec import Struct, field

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.storage.retry import is_directory

_SET = re.compile(r"\[(!?)([^\]]+)\]|.", re.DOTALL)
STATE = ".ckpt"
"""The directory in a root where commands that change something keep what they put away, and their journal."""


class Excluded(Struct, dict=True):
    """``globs`` are relative to the root they are asked about: ``*`` stays within a name, ``**`` stands for
    any number of directories.

    ``paths`` are the entries that were left out; what lies below a directory among them was not listed.
    """

    globs: Sequence[str] = ()
    paths: set[str] = field(default_factory=set)  # of several threads: adding is one step

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(_expression, self.globs)), re.DOTALL)

    def keep(self, root: str, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """Return the entries of one directory at or below ``root`` that are not left out."""
        if not self.globs or not entries:
            return entries
        start = len(root.rstrip("/")) + 1
        left = []
        for e in entries:
            if self._pattern.fullmatch(e.path, start):
                self.paths.add(e.path)
            else:
                left.append(e)
        return left


def without(root: str, c: Checkpoint, *paths: str, kept: Collection[str] = (), label: str = "") -> str:
    """Return the flag that hides the first of these paths in which neither the choice nor anything that is
    ``kept`` lies, and what the job resumes from then: the choice, by its label unless another is given.
    """
    kept = {*kept, c.path, *(p.path for p in c.parts)}
    above = f"{root.rstrip('/')}/"
    for path in paths:
        holds = path in kept or any(k.startswith(f"{path}/") for k in kept)
        if path.startswith(above) and not holds:
            return f"--exclude {quote(escape(path.removeprefix(above)))} to resume from {label or c.label}"
    return f"move {paths[-1]} out of {root} to resume from {label or c.label}"


def without_all(root: str, c: Checkpoint, paths: Sequence[str], kept: Collection[str]) -> str:
    """Return the flags that hide each of these paths, and that the job resumes from the choice then."""
    end = f" to resume from {c.label}"
    flags = [without(root, c, path, kept=kept) for path in paths]
    said = (flag.removesuffix(end) for flag in flags if flag.startswith("--exclude"))
    return f"{' '.join(said)}{end}" if all(flag.startswith("--exclude") for flag in flags) else flags[0]


def either(root: str, one: Checkpoint, other: Checkpoint) -> str:
    """Return what to say to resume from one of two checkpoints, or from the other."""
    a, b = one.label, other.label
    if a == b:
        a, b = (os.path.relpath(c.path, root) for c in (one, other))
    return f"say {without(root, one, other.path, label=a)}, or {without(root, other, one.path, label=b)}"


def without_state(entries: list[os.DirEntry[str]], met: set[str]) -> list[os.DirEntry[str]]:
    """Return the entries of one directory without ``.ckpt``, which is added to what was ``met``."""
    for i, entry in enumerate(entries):
        if entry.name > STATE:
            break  # they are sorted
        if entry.name == STATE:
            try:
                is_state = is_directory(entry)
            except OSError:
                is_state = True
            if is_state:
                met.add(entry.path)
                return entries[:i] + entries[i + 1 :]
    return entries


def _expression(glob: str) -> str:
    """Return a glob as the shell reads it, and with ``**``, as a regular expression."""
    *above, last = glob.strip("/").split("/")
    out = ["(?:[^/]+/)*" if piece == "**" else f"{_name(piece)}/" for piece in above]
    return "".join((*out, ".+" if last == "**" else _name(last)))


def _name(piece: str) -> str:
    wild = {"*": "[^/]*", "?": "[^/]"}
    return "".join(
        (
            f"[{'^/' if m[1] else ''}{re.escape(m[2]).replace(chr(92) + '-', '-')}]"
            if m[2]
            else wild.get(m[0], re.escape(m[0]))
        )
        for m in _SET.finditer(piece)
    )
