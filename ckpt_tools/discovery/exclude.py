"""What --exclude leaves out: entries of the root that are neither looked at nor a reason for anything, and
counted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass
class Excluded:
    """``globs`` are relative to the root they are asked about: ``*`` stays within a name, ``**`` stands for
    any number of directories.

    ``paths`` are the entries that were left out; what lies below a directory among them was not listed.
    """

    globs: Sequence[str] = ()
    paths: set[str] = field(default_factory=set)  # of several threads: adding is one step

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        return re.compile("|".join(map(_expression, self.globs)), re.DOTALL) if self.globs else None

    def keep(self, root: str, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """The entries of one directory at or below ``root`` that are not left out."""
        if self._pattern is None or not entries:
            return entries
        start = len(root.rstrip("/")) + 1
        left = []
        for e in entries:
            if self._pattern.fullmatch(e.path[start:]):
                self.paths.add(e.path)
            else:
                left.append(e)
        return left


def _expression(glob: str) -> str:
    pieces = glob.strip("/").split("/")
    out = [
        ".+" if piece == "**" and i == len(pieces) - 1 else "(?:[^/]+/)*" if piece == "**" else _name(piece)
        for i, piece in enumerate(pieces)
    ]
    ends = ["" if piece == "**" or i == len(pieces) - 1 else "/" for i, piece in enumerate(pieces)]
    return "".join(text + end for text, end in zip(out, ends, strict=True))


_SET = re.compile(r"\[(!?)([^\]]+)\]|.", re.DOTALL)


def _name(piece: str) -> str:
    """One component as the shell reads it."""
    wild = {"*": "[^/]*", "?": "[^/]"}
    return "".join(
        (
            f"[{'^/' if m[1] else ''}{re.escape(m[2]).replace(chr(92) + '-', '-')}]"
            if m[2]
            else wild.get(m[0], re.escape(m[0]))
        )
        for m in _SET.finditer(piece)
    )
