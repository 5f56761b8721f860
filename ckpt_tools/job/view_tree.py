"""The contents of a view: planned files under the names of their framework, companions, a tracker file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.discovery.walk import discover
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.layouts import Layout, Layouts, Piece, Where
from ckpt_tools.layouts.common.templates import COORDS, FIELD, TEMPORARY, compile_template
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import FileLoad, LoadPlan
from ckpt_tools.storage.listing import list_entries
from ckpt_tools.storage.retry import is_directory, is_file

_UNSEEN = "check that its file system is mounted and readable, then start again"
_PLACES = frozenset((*COORDS, "node"))


def find_name_for(piece: Piece, part: Part, rank: int, coords: Mapping[str, int] | None = None) -> str | None:
    """Return the end of the path that ``piece`` gives to ``rank`` (as many components as the template has),
    made from the path of ``part``; None if it has no rank in it. ``coords`` are the rank's, if known.
    """
    wanted = {**{a: n for a, n in (coords or {}).items() if a in _PLACES}, "rank": rank}
    pattern, widths = _group_fields(piece.template)
    m = re.fullmatch(pattern, "/".join(part.path.split("/")[-piece.depth - 1 :]))
    if m is None or m.groupdict().get("rank") is None:
        return None
    renamed, prefix = m[0], m.groupdict().get("prefix") or ""
    for group in sorted(m.re.groupindex, key=m.start, reverse=True):
        field = group.partition("__")[0]
        if m[group] is not None:
            new = _rename_field(field, m[group], prefix, part, wanted, width=widths.get(field, 0))
            renamed = renamed[: m.start(group)] + new + renamed[m.end(group) :]
    return renamed


def _rename_field(
    field: str, old: str, prefix: str, part: Part, wanted: Mapping[str, int], *, width: int
) -> str:
    """Return what stands in another rank's name for ``old``, a field of at least ``width`` digits."""
    if field == "prefix":
        # ``pangu3`` is what rank 3 calls the run ``pangu`` (discovery/names.py, _common_prefixes)
        stem = old.removesuffix(str(part.rank))
        common = {stem, stem.rstrip("_").removesuffix("rank").rstrip("_")}
        has_rank = stem != old and (part.prefix in common or stem.endswith("rank_"))
        return f"{stem}{wanted['rank']}" if has_rank else old
    if field == "generation" and int(old) == part.rank and prefix.endswith("rank"):
        return str(wanted["rank"])  # MindFormers' prefix_rank_R-E_S.ckpt reads like a counter of restarts
    if field not in wanted:
        return old
    padded = len(old) if old[0] == "0" and len(old) > 1 else 0
    return str(wanted[field]).zfill(max(width, padded))


@lru_cache(64)
def _group_fields(template: str) -> tuple[str, dict[str, int]]:
    """Return the template's pattern with a group for each field, and the fields' minimal digits."""
    number = count(1)
    pattern = re.sub(
        r"\(\?P=(\w+)\)", lambda m: f"(?P<{m[1]}__{next(number)}>{m[0]})", compile_template(template)
    )
    return pattern, {m[1]: int(m[2] or 0) for m in FIELD.finditer(template)}


MARKER = ".ckpt-view.json"
"""The file that marks a view built by ckpt, and lists its small files."""


class Tree(Struct, dict=True):
    """The contents of one view: ``links`` map paths in it to absolute paths, ``texts`` to bytes of small
    files. ``ranks`` and ``shared`` are the links of the plan's files, in order; ``parts_in_view`` is by path.
    """

    plan: LoadPlan
    directory: str
    layouts: Layouts
    links: dict[str, str] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    ranks: dict[int, list[str]] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    parts_in_view: dict[str, Part] = field(default_factory=dict)

    # ---- where a file goes

    @cached_property
    def checkpoint(self) -> Checkpoint:
        assert self.plan.checkpoint is not None  # noqa: S101 - for the type checker: there is something to see
        return self.plan.checkpoint

    @cached_property
    def layout(self) -> Layout:
        return self.layouts.of(self.checkpoint)

    @cached_property
    def parts(self) -> dict[str, Part]:
        return {p.path: p for p in self.checkpoint.parts}

    def find_part(self, path: str) -> Part | None:
        """Return the part at a planned path; behind a link to a directory, plans have the real path."""
        return self.parts.get(path) or self._parts_by_real_path.get(_resolve_directory(path))

    @cached_property
    def _parts_by_real_path(self) -> dict[str, Part]:
        return {_resolve_directory(path): part for path, part in self.parts.items()}

    @cached_property
    def source(self) -> str:
        """The directory that the view stands for: above the directories of single ranks, if there are any."""
        part = self.checkpoint.parts[0]
        return os.path.dirname(part.base) if self.find_rank_directory(part) else part.base

    def find_rank_directory(self, part: Part, rank: int | None = None) -> str:
        """Return a rank's own directory ``<dir>_R/`` (discovery/names.py, _numbered_siblings), or ""."""
        directory = "/".join(part.path.split("/")[: -self.layout.piece(part.piece).depth - 1])
        if directory != f"{part.base}_{part.rank}":
            return ""
        return f"{os.path.basename(part.base)}_{part.rank if rank is None else rank}/"

    def find_view_path(self, part: Part) -> str:
        """Return the path of a part in the view, by its template: a file of another node lies elsewhere."""
        depth = self.layout.piece(part.piece).depth
        return self.find_rank_directory(part) + "/".join(part.path.split("/")[-depth - 1 :])

    @cached_property
    def _parts_by_rank(self) -> Mapping[tuple[str, int], list[Part]]:
        """The parts of the checkpoint, by piece and rank."""
        by_rank: dict[tuple[str, int], list[Part]] = {}
        for p in self.checkpoint.parts:
            if p.rank is not None:
                by_rank.setdefault((p.piece, p.rank), []).append(p)
        return by_rank

    @cached_property
    def _coords_by_rank(self) -> Mapping[int, Mapping[str, int]]:
        """The coordinates of the ranks that have a file in the run; this checkpoint's go before others'."""
        own = self.checkpoint.layout, self.checkpoint.run
        run = [c for c in self.plan.candidates if (c.layout, c.run) == own]
        checkpoints = (*run[::-1], self.checkpoint)
        return {p.rank: dict(p.coords) for c in checkpoints for p in c.parts if p.rank is not None}

    def find_view_path_for(self, part: Part, rank: int | None) -> str:
        """Return the path at which ``rank`` looks for ``part``, perhaps of another rank. Raise UsageError."""
        if rank is None or part.rank is None:
            return self.find_view_path(part)
        own_parts = self._parts_by_rank.get((part.piece, rank), [])
        # even a broken file; of several copies, the rank's is the one in its own directory
        if own_parts:
            nearest = min(own_parts, key=lambda p: (dict(p.coords).get("node", rank) != rank, p is not part))
            home = None  # the name in the rank's own directory, though another rank keeps the only copy
            if self.layout.ranks.keepers:
                home = find_name_for(self.layout.piece(nearest.piece), nearest, rank, {"node": rank})
            return home or self.find_view_path(nearest)
        if base := self.find_rank_directory(part, rank):
            return base + self.find_view_path(part).partition("/")[2]
        if name := find_name_for(self.layout.piece(part.piece), part, rank, self._coords_by_rank.get(rank)):
            return name
        text = f"no view can be made of {part.path} for rank {rank}: its name holds no rank"
        raise UsageError(text, "start without --view")

    # ---- filling it

    def add_link(self, name: str, path: str) -> str:
        """Add a link, and return its future path. Raise UsageError if another file has the name."""
        if ".." in name.split("/") or self.links.setdefault(name, path) != path:
            text = f"no view can be made: {self.links.get(name)} and {path} would both be {name} in it"
            raise UsageError(text, "start without --view")
        return f"{self.directory}/{name}"

    def add_file(self, f: FileLoad, rank: int | None) -> str | None:
        """Add a planned file, and return its link; None if the file lies on another node."""
        part = self.find_part(f.path)
        if part is None:
            if f.node is not None and rank is not None:
                return None
            # a data file that an index names
            return self.add_link(_relative(f.path, self.source).rstrip("/"), f.path)
        name = self.find_view_path_for(part, rank)
        link = self.add_link(name, f.path)
        piece = self.layout.piece(part.piece)
        names = link.split("/")
        top = len(names) - piece.depth - 1
        base, is_home = "/".join(names[:top]), piece.home or piece.where is Where.HERE
        home = "/".join(names[: top + piece.home]) if is_home else ""
        if rank is None or part.rank is None:
            rank = part.rank
        self.parts_in_view.setdefault(name, part._replace(path=link, base=base, home=home, rank=rank))
        return link

    def fill(self) -> None:
        """Add everything: planned files, copies that one name stands for, companion files, tracker files."""
        for f in self.plan.shared:
            self.shared += filter(None, [self.add_file(f, None)])
        for r in self.plan.by_rank:
            links = [link for f in r.files if (link := self.add_file(f, r.rank))]
            if len(links) == len(r.files):
                self.ranks[r.rank] = links
        others = list(self._list_unloaded_parts())
        for home in sorted({p.home for p in self.checkpoint.parts if p.home and is_directory(p.home)}):
            others += self._list_companions(home, _relative(home, self.source))
        for name in self.layout.beside.asked(self.checkpoint):
            if is_file(path := os.path.join(self.source, name)):
                others.append((name, path))
        for name, path in others:
            self.links.setdefault(name, path)
        self._add_trackers()

    def _list_unloaded_parts(self) -> Iterator[tuple[str, str]]:
        """Yield (name, path) of parts that no rank loads, and the loaded copy under each copy's name."""
        loaded = [(f.path, part) for f in self.plan.shared if (part := self.find_part(f.path))]
        chosen = {p.role: (path, p) for path, p in loaded if self.layout.piece(p.piece).readers.single}
        for part in self.checkpoint.parts:
            piece = self.layout.piece(part.piece)
            if piece.readers.single and part.role in chosen:
                path, copied = chosen[part.role]
                name = self.find_view_path(part)
                if os.path.dirname(part.path) == os.path.dirname(copied.path):
                    name = self.find_view_path(copied).removesuffix(copied.name) + part.name
                yield name, path
            elif not piece.loaded and part.size >= 0:
                yield self.find_view_path(part), part.path

    def _list_companions(self, directory: str, above: str) -> Iterator[tuple[str, str]]:
        """Yield (path in the view, path) of files but parts: tokenizers, scripts, data of an index."""
        is_source, notes = directory == self.source, (self.layout.tracker.file, *self.layout.records.names)
        for e in list_entries(directory):
            name = f"{above}{e.name}"
            if e.name == MARKER or TEMPORARY.search(e.name) or (is_source and e.name in notes):
                continue
            if not is_directory(e):
                if e.path not in self.parts and is_file(e) and not self._is_of_another_checkpoint(e.name):
                    yield name, e.path
            elif e.is_symlink() and not any(p.startswith(f"{e.path}/") for p in self.parts):
                yield name, e.path
            elif not (self._may_hold_others and _has_checkpoints(e.path)):
                yield from self._list_companions(e.path, f"{name}/")

    def _is_of_another_checkpoint(self, name: str) -> bool:
        """Return True if a file's name is that of a part of another checkpoint in the same directory."""
        return self._may_hold_others and any(
            p.file.fullmatch(name) for p in self.layout.pieces if p.depth == 0 and p.where is not Where.HERE
        )

    @cached_property
    def _may_hold_others(self) -> bool:
        """Whether this directory, as that of a whole training, may hold other checkpoints."""
        return any(self.layout.piece(p.piece).where is Where.HERE for p in self.checkpoint.parts)

    def _add_trackers(self) -> None:
        """Add the tracker and record files in which a framework looks up the checkpoint to load."""
        tracker, records = self.layout.tracker, self.layout.records
        latest = tracker.name(self.checkpoint)
        is_used = tracker.file and (tracker.always or is_file(os.path.join(self.source, tracker.file)))
        if is_used and latest is not None:
            self.texts[tracker.file] = tracker.write(latest)
        if records.write:
            homes = {p.path.rpartition("/")[0] for p in self.checkpoint.parts}
            if any(is_file(f"{home}/{records.names[0]}") for home in homes):
                for name, part in self.parts_in_view.items():
                    home = name.rpartition("/")[0]
                    self.texts[f"{home}/{records.names[0]}".lstrip("/")] = records.write(part)
        if taken := next((name for name in self.texts if name in self.links), None):
            text = f"no view can be made: {self.links[taken]} has the name of the tracker"
            raise UsageError(text, "start without --view")

    # ---- what the framework is told

    @cached_property
    def checkpoint_in_view(self) -> Checkpoint:
        """The chosen checkpoint with its parts and its own path as they are in the view."""
        c, parts = self.checkpoint, tuple(self.parts_in_view.values())
        view_paths = dict[str, str]()
        for name, part in self.parts_in_view.items():
            if original := self.find_part(self.links[name]):
                view_paths[original.path] = part.path
        ranks_differ = len({tuple(links) for links in self.ranks.values()}) > 1
        if ranks_differ or not c.path.startswith(f"{self.source.rstrip('/')}/"):
            path = parts[0].home or self.directory
        else:
            path = view_paths.get(c.path) or f"{self.directory}/{_relative(c.path, self.source)}".rstrip("/")
        return replace(c, parts=parts, path=path)

    def describe(self) -> dict[str, Any]:
        """Return a decision's fields about the view: "resume" for its files, "view" with its links."""
        paths = {part.path for part in self.parts_in_view.values()}
        resume = self.layout.resume(self.checkpoint_in_view, paths.pop() if len(paths) == 1 else None)
        return {
            "resume": {"path": resume.path, "args": list(resume.args), "env": dict(resume.env)},
            "view": {
                "root": self.directory,
                "checkpoint": self.checkpoint_in_view.path,
                "ranks": {str(rank): links for rank, links in self.ranks.items()},
                "shared": self.shared,
            },
        }


def make_tree(plan: LoadPlan, directory: str, layouts: Layouts) -> Tree:
    """Return the contents of a view at ``directory``. Raise UsageError and CannotLook."""
    tree = Tree(plan, directory, layouts)
    try:
        tree.fill()
    except OSError as e:
        raise CannotLook(f"{e.filename} cannot be looked at: {e.strerror}", _UNSEEN) from e
    return tree


def _has_checkpoints(directory: str) -> bool:
    """Return True if a directory holds other checkpoints. Raise CannotLook if an unseen entry may be one."""
    found = discover(directory)
    if not found.parts and (row := next(iter(found.unseen), None)):
        raise CannotLook(f"{row.path}: {row.why}", _UNSEEN)
    return bool(found.parts)


def _relative(path: str, directory: str) -> str:
    """Return ``path`` relative to ``directory``, with a slash at its end; "" for the directory itself."""
    name = os.path.relpath(path, directory)
    return "" if name == "." else f"{name}/"


def _resolve_directory(path: str) -> str:
    """Return a path with the links in its directories followed."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
