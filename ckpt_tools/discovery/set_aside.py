"""Copies that people and file systems keep beside a run are no candidates: they are removed before anything
is decided, and named in every answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from os.path import split
from typing import TYPE_CHECKING

from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layouts
from ckpt_tools.model.finding import Finding

if TYPE_CHECKING:
    from ckpt_tools.discovery.found import Discovery

_ENDS = (".bak", ".old", ".orig", "~")
_NAMES = frozenset((".trash", ".Trash", ".snapshot", ".snapshots", "lost+found", ".ipynb_checkpoints"))
"""What copies of people, desktops, file systems (NetApp, ZFS) and Jupyter are called."""


def is_set_aside(name: str) -> bool:
    """Return True if a file or directory of that name is a copy that somebody keeps."""
    return name.endswith(_ENDS) or name in _NAMES or name.startswith(".Trash-")


def set_aside(found: Discovery, root: str, layouts: Layouts) -> list[Finding]:
    """Take the copies out of what was found, and say which they are. Nothing in the path of ROOT itself
    counts, nor a name that a layout of the user's has.
    """
    own = "/".join(piece.template for layout in layouts.own for piece in layout.pieces)
    root = root if found.tree else root.rpartition("/")[0]

    @cache
    def top_above(path: str) -> str:
        """Return the highest directory on the way that is a copy."""
        if len(path) <= len(root):
            return ""
        above, name = split(path)
        return top_above(above) or (path if is_set_aside(name) and name not in own else "")

    def top_of(directory: str, name: str) -> str:
        called = is_set_aside(name) and name not in own
        return top_above(directory) or (f"{directory}/{name}" if called else "")

    tops = [top_of(p.folder.directory[:-1], p.name) for p in found.parts]
    tops += (top_of(*split(path)) for path in (*(file.path for file in found.bare), *found.copies))
    many = Counter(filter(None, tops))
    if many:
        _take_out(found, top_of)
    with_files = {top: f" with {n} checkpoint files" if n > 1 else "" for top, n in sorted(many.items())}
    text = "a copy by its name{}: no candidate, and not looked at"
    return [finding("set-aside", text.format(more), path=top) for top, more in with_files.items()]


def _take_out(found: Discovery, top_of: Callable[[str, str], str]) -> None:
    found.parts = [p for p in found.parts if not top_of(p.folder.directory[:-1], p.name)]
    found.bare = [file for file in found.bare if not top_of(*split(file.path))]
    for paths in (found.unfinished, found.indexes, found.unneeded):
        paths[:] = [path for path in paths if not top_of(*split(path))]
    found.trackers = {key: path for key, path in found.trackers.items() if not top_of(*split(path))}
