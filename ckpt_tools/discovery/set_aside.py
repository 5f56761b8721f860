"""Copies that people and file systems keep beside a run are no candidates: they are removed before anything
is decided, and named in every answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from fnmatch import translate
from functools import cache
from itertools import chain
from os.path import split
from typing import TYPE_CHECKING

from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layouts
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part

if TYPE_CHECKING:
    from ckpt_tools.discovery.found import Discovery

GLOBS = (
    *("*.bak", "*.old", "*.orig", "*~"),
    *(".trash", ".Trash", ".Trash-*", ".snapshot", ".snapshots", "lost+found", ".ipynb_checkpoints"),
)
"""Names of copies, as files or directories: of people, desktops, file systems (NetApp, ZFS) and Jupyter."""
_ENDS = ("bak", "old", "orig", "~", "found")
_BEGINS = (".trash", ".Trash", ".snap", ".ipynb")


@cache
def _pattern() -> re.Pattern[str]:
    return re.compile("|".join(map(translate, GLOBS)))


def is_set_aside(name: str) -> bool:
    """Return whether a file or directory of that name is a copy that somebody keeps."""
    likely = name.endswith(_ENDS) or name.startswith(_BEGINS)  # most trees have none, and a million names
    return likely and _pattern().match(name) is not None


def set_aside(found: Discovery, root: str, layouts: Layouts) -> list[Finding]:
    """Take the copies out of what was found, and say which they are: nobody looks into them who is not asked
    to. Nothing in the path of ROOT itself counts, nor a name that a layout of the user's has.
    """
    own = "/".join(piece.template for layout in layouts.own for piece in layout.pieces)
    top_of = _find_tops(root if found.tree else root.rpartition("/")[0], lambda name: name in own)
    states = chain((file.path for file in found.bare), found.copies)
    tops = chain((_of_part(p, top_of) for p in found.parts), (top_of(*split(path)) for path in states))
    many = Counter(filter(None, tops))
    if many:
        _take_out(found, top_of)
    return [_note(top, n) for top, n in sorted(many.items())]


def _find_tops(root: str, keep: Callable[[str], bool]) -> Callable[[str, str], str]:
    """Return what gives the highest directory or file that is a copy, of a file by its directory and name."""

    def is_top(name: str) -> bool:
        return is_set_aside(name) and not keep(name)

    @cache
    def of_directory(path: str) -> str:
        if len(path) <= len(root):
            return ""
        above, name = split(path)
        return of_directory(above) or (path if is_top(name) else "")

    def top_of(directory: str, name: str) -> str:
        return of_directory(directory) or (f"{directory}/{name}" if is_top(name) else "")

    return top_of


def _of_part(p: Part, top_of: Callable[[str, str], str]) -> str:
    return top_of(p.folder.directory[:-1], p.name)


def _take_out(found: Discovery, top_of: Callable[[str, str], str]) -> None:
    found.parts = [p for p in found.parts if not _of_part(p, top_of)]
    found.bare = [file for file in found.bare if not top_of(*split(file.path))]
    for paths in (found.unfinished, found.indexes, found.unneeded):
        paths[:] = [path for path in paths if not top_of(*split(path))]
    found.trackers = {key: path for key, path in found.trackers.items() if not top_of(*split(path))}


def _note(top: str, files: int) -> Finding:
    many = f" with {files} checkpoint files" if files > 1 else ""
    return finding("set-aside", f"a copy by its name{many}: no candidate, and not looked at", path=top)
