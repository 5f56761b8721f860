"""Copies that people make by hand beside a run are no candidates: they are removed before anything is
decided, and named in every answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from os.path import basename, relpath, split
from typing import TYPE_CHECKING

from ckpt_tools import formats
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layouts
from ckpt_tools.layouts.common.bare_names import read_bare_name
from ckpt_tools.layouts.common.copies import Found, Proof, copies, is_of_snapshots, suspected
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part, Unseen
from ckpt_tools.storage import ShortRead, opened

if TYPE_CHECKING:
    from ckpt_tools.discovery.found import Discovery

_COMPARED = 8
"""Files of a directory whose bytes are compared with its original's; the sizes of all are."""
_BLOCK = 1 << 20
"""From the start and the end of each of them; smaller files are compared whole."""


def set_aside(found: Discovery, root: str, layouts: Layouts) -> list[Finding]:
    """Takes the copies out of what was found, and says which they are: nobody looks into them who is not
    asked to.
    """
    unread = dict[str, str]()
    named = _named(found, root, layouts, unread)
    _take_out(named, found)
    alike = list(_unnamed(found, unread))
    _take_out(alike, found)
    known = {p.path: p for p in found.parts if p.path in unread} if unread else {}
    found.unseen += (
        Unseen(path, why, p.step, p.mtime_ns) if (p := known.get(path)) else Unseen(path, why)
        for path, why in unread.items()
    )
    return [_told(rows, root) for rows in (*named, *alike)]


def _sizes(found: Discovery) -> dict[str, int]:
    """The size of every file that is, or may be, one of a checkpoint. As large as the tree: made only where
    something may be a copy.
    """
    return {p.path: p.size for p in found.parts} | {file.path: file.size for file in found.bare}


def _named(found: Discovery, root: str, layouts: Layouts, unread: dict[str, str]) -> list[list[Found]]:
    """What names call copies, by the highest such name, where that is believed. Adds to ``unread`` as
    ``_same`` does.
    """
    below = len(root if found.tree else root.rpartition("/")[0])
    parts = ((p.folder.directory, p.name) for p in found.parts)
    others = (split(path) for path in chain((file.path for file in found.bare), found.copies))
    if not _any_suspected(chain(parts, others), below):
        return []
    own = "/".join(piece.template for layout in layouts.own for piece in layout.pieces)
    sizes = _sizes(found)
    by_top: dict[str, list[Found]] = defaultdict(list)
    for one in copies([*sizes, *found.copies], root, lambda name: name in own):
        by_top[one.top].append(one)
    return [rows for rows in by_top.values() if _believed(rows, sizes, unread)]


def _any_suspected(files: Iterable[tuple[str, str]], below: int) -> bool:
    """Whether any name in a path may be that of a copy, from its character ``below`` on; ``files`` are
    (directory, name), and a directory is asked about once.
    """
    directories = set[str]()
    for directory, name in files:
        if suspected(name):
            return True
        if directory not in directories:
            if suspected(directory[below:]):
                return True
            directories.add(directory)
    return False


def _take_out(copied: Sequence[Sequence[Found]], found: Discovery) -> None:
    if not copied:
        return
    gone, tops = {one.path for rows in copied for one in rows}, tuple(f"{rows[0].top}/" for rows in copied)
    found.parts = [p for p in found.parts if p.path not in gone]
    found.bare = [file for file in found.bare if file.path not in gone]
    for paths in (found.unfinished, found.indexes, found.unneeded):
        paths[:] = [path for path in paths if path not in gone and not path.startswith(tops)]
    found.trackers = {key: path for key, path in found.trackers.items() if not path.startswith(tops)}


def _unnamed(found: Discovery, unread: dict[str, str]) -> Iterator[list[Found]]:
    """Directories whose names tell no step, beside a checkpoint whose name does, and with nothing in them but
    the same files: of two equal trees the one whose name fits its run is the original.
    """
    homes = {p.home for p in found.parts if p.home and not _unplaced(p)}
    tops = _beside(homes, found)
    if not tops:
        return
    sizes = _sizes(found)
    files = _files_in(tops | homes, sizes)
    for top in sorted(tops):
        for home in sorted(home for home in homes if _parent(home) == _parent(top)):
            pairs = [(path, files[home].get(name, "")) for name, path in files[top].items()]
            if all(original for _, original in pairs) and _same(pairs, sizes, unread):
                yield [Found(path, top, home, Proof.EQUAL) for path, _ in pairs]
                break


def _unplaced(part: Part) -> bool:
    """Whether no name places it in the order of training."""
    return (part.step, part.epoch, part.generation) == (None, None, None)


def _beside(homes: set[str], found: Discovery) -> set[str]:
    """Directories with parts that no name places, beside the ``homes`` of checkpoints."""
    parents = {_parent(home) for home in homes}
    unplaced = (p.path for p in found.parts if _unplaced(p)) if homes else ()
    return {top for path in unplaced for top in _above(path) if _parent(top) in parents} - homes


def _files_in(tops: set[str], paths: Iterable[str]) -> dict[str, dict[str, str]]:
    """Directory -> name of a file as seen from it -> path."""
    files: dict[str, dict[str, str]] = defaultdict(dict)
    for path in paths:
        for top in _above(path):
            if top in tops:
                files[top][path.removeprefix(top)] = path
    return files


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _above(path: str) -> Iterator[str]:
    """The directories that a path lies in."""
    while path := _parent(path):
        yield path


def _believed(rows: Sequence[Found], sizes: Mapping[str, int], unread: dict[str, str]) -> bool:
    """Whether what a name calls a copy is one: of a file that nobody recognises only where its original is
    known. Adds to ``unread`` as ``_same`` does.
    """
    first = rows[0]
    if first.path == first.top and first.path not in sizes:
        return first.of in sizes or formats.names.known(basename(first.of))
    if first.proof is Proof.NAME:
        return any(one.path in sizes for one in rows)
    pairs = [(one.path, first.of + one.path.removeprefix(first.top)) for one in rows if one.path in sizes]
    return _same([(a, b) for a, b in pairs if b in sizes], sizes, unread)


def _same(pairs: Sequence[tuple[str, str]], sizes: Mapping[str, int], unread: dict[str, str]) -> bool:
    """Whether there are pairs of files, all of the same sizes, the largest of them with the same bytes. Those
    of which nobody can say that go to ``unread``. What is no file (a link to nothing) holds no bytes.
    """
    if not pairs or any(sizes[a] != sizes[b] for a, b in pairs):
        return False
    largest = sorted((p for p in pairs if sizes[p[0]] >= 0), key=lambda pair: -sizes[pair[0]])[:_COMPARED]
    return all(_equal(a, b, unread) for a, b in largest)


def _equal(a: str, b: str, unread: dict[str, str]) -> bool:
    """Whether two files of one size begin and end with the same bytes."""
    one, other = (_ends(path, unread) for path in (a, b))
    return one is not None and one == other


def _ends(path: str, unread: dict[str, str]) -> tuple[int, bytes, bytes] | None:
    """The size of a file, and the bytes at its start and its end; None when they cannot be read."""
    try:
        with opened(path) as source:
            n = min(_BLOCK, source.size)
            return source.size, source.read(0, n), source.read(source.size - n, n)
    except (OSError, ShortRead) as e:
        unread[path] = f"whether another is a copy of it is unknown: {getattr(e, 'strerror', None) or e}"
        return None


def _told(rows: Sequence[Found], root: str) -> Finding:
    first, n = rows[0], len(rows)
    by = "by its name" if first.proof is Proof.NAME else "with the same bytes"
    earlier = is_of_snapshots(basename(first.top))
    place = "what the file system held earlier" if earlier else "where deleted files go"
    what = f"a copy of {relpath(first.of, root)} {by}" if first.of else place
    many = f" with {n} checkpoint files" if first.path != first.top else ""
    return finding("set-aside", f"{what}{many}: no candidate, and not looked at", path=first.top)


def as_warning(f: Finding) -> Finding:
    """What a plan says of what was left out: a copy that is called an export is what a script saves when
    training ends, and no reason to look again.
    """
    exported = f.code == "set-aside" and read_bare_name(basename(f.path)).kind is Kind.RELEASE
    return f if exported else replace(f, severity=Severity.WARNING)
