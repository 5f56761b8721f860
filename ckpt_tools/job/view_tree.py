"""What a view holds: each planned file under the name that its framework looks for, the files that go with
them, and a tracker that names this checkpoint.
"""

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
from ckpt_tools.model.plan import FileLoad, LoadPlan, Resume
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import is_directory, is_file

_UNSEEN = "check that its file system is mounted and readable, then start again"
_PLACES = frozenset((*COORDS, "node"))


def find_name_for(piece: Piece, part: Part, rank: int, coords: Mapping[str, int] | None = None) -> str | None:
    """Return the end of the path (as many components as the template has) that ``piece`` gives to ``rank``,
    made from that of ``part``; None when no rank is in it. ``coords`` are those of that rank if known.
    """
    below = part.path.split("/")[-piece.depth - 1 :]
    wanted = {**{a: n for a, n in (coords or {}).items() if a in _PLACES}, "rank": rank}
    above, _, last = piece.template.rpartition("/")
    directory = _rename(above, "/".join(below[:-1]), part, wanted)
    file = _rename(last, below[-1], part, wanted)
    if directory is None or file is None or not (directory[1] or file[1]):
        return None
    return "/".join(filter(None, (directory[0], file[0])))


def _rename(template: str, name: str, part: Part, wanted: Mapping[str, int]) -> tuple[str, int] | None:
    """Return what another rank calls a file or its directories, and how often its rank stands there."""
    pattern, widths = _every_field(template)
    m = re.fullmatch(pattern, name)
    if m is None:
        return None
    out, ranks = name, 0
    for group in sorted(m.re.groupindex, key=m.start, reverse=True):
        old, field = m[group], group.partition("__")[0]
        if old is None:
            continue
        if field == "prefix":
            # ``pangu3`` is what rank 3 calls the run ``pangu`` (discovery/names.py, _common_prefixes)
            new, stem = old, old.removesuffix(str(part.rank))
            common = {stem, stem.rstrip("_").removesuffix("rank").rstrip("_")}
            if stem != old and (part.prefix in common or stem.endswith("rank_")):
                new = f"{stem}{wanted['rank']}"
        elif field == "generation" and int(old) == part.rank and m["prefix"].endswith("rank"):
            new = str(wanted["rank"])  # MindFormers' prefix_rank_R-E_S.ckpt reads like a counter of restarts
        elif field in wanted:
            padded = len(old) if old[0] == "0" and len(old) > 1 else 0
            new = str(wanted[field]).zfill(max(widths.get(field, 0), padded))
            ranks += field == "rank"
        else:
            continue
        out = out[: m.start(group)] + new + out[m.end(group) :]
    return out, ranks


@lru_cache(64)
def _every_field(template: str) -> tuple[str, dict[str, int]]:
    """Return the template's expression with a group for every place where a field stands, and how many digits
    each field has at least.
    """
    number = count(1)
    pattern = re.sub(
        r"\(\?P=(\w+)\)", lambda m: f"(?P<{m[1]}__{next(number)}>{m[0]})", compile_template(template)
    )
    return pattern, {m[1]: int(m[2] or 0) for m in FIELD.finditer(template)}


MARKER = ".ckpt-view.json"
"""The file that says that ckpt has built a view, and what is in it."""


class Tree(Struct, dict=True):
    """``links`` map paths below the view to absolute paths of files, ``texts`` to the bytes of small files;
    ``ranks`` and ``shared`` are the links of the plan's file entries, in their order.
    """

    plan: LoadPlan
    directory: str
    layouts: Layouts
    links: dict[str, str] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    ranks: dict[int, list[str]] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    moved: dict[str, Part] = field(default_factory=dict)

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

    def part_of(self, path: str) -> Part | None:
        """The part at a planned path; behind a link to a directory it is planned where it really lies."""
        return self.parts.get(path) or self._placed.get(_place(path))

    @cached_property
    def _placed(self) -> dict[str, Part]:
        return {_place(path): part for path, part in self.parts.items()}

    @cached_property
    def above(self) -> str:
        """The directory that the view stands for: above everything that the templates match, and above those
        that each hold one rank.
        """
        part = self.checkpoint.parts[0]
        return os.path.dirname(part.base) if self.base_of(part) else part.base

    def base_of(self, part: Part, rank: int | None = None) -> str:
        """Where the files of a rank lie: "" or, where ``<dir>_R`` beside each other hold one rank each
        (discovery/names.py, _numbered_siblings), that directory's name.
        """
        directory = "/".join(part.path.split("/")[: -self.layout.piece(part.piece).depth - 1])
        if directory != f"{part.base}_{part.rank}":
            return ""
        return f"{os.path.basename(part.base)}_{part.rank if rank is None else rank}/"

    def name_of(self, part: Part) -> str:
        """Return where the template says a file lies: one from another node lies elsewhere here."""
        return self.base_of(part) + "/".join(part.path.split("/")[-self.layout.piece(part.piece).depth - 1 :])

    @cached_property
    def _of_rank(self) -> Mapping[tuple[str, int], list[Part]]:
        out: dict[tuple[str, int], list[Part]] = {}
        for p in self.checkpoint.parts:
            if p.rank is not None:
                out.setdefault((p.piece, p.rank), []).append(p)
        return out

    @cached_property
    def _coords(self) -> Mapping[int, Mapping[str, int]]:
        """Return the coordinates of ranks with a file in the run, this checkpoint's first."""
        run = [
            c
            for c in self.plan.candidates
            if (c.layout, c.run) == (self.checkpoint.layout, self.checkpoint.run)
        ]
        return {
            p.rank: dict(p.coords)
            for c in (*run[::-1], self.checkpoint)
            for p in c.parts
            if p.rank is not None
        }

    def named(self, part: Part, rank: int | None) -> str:
        """What the framework calls the file that ``rank`` loads, whosever it is. Raises UsageError where no
        name is known.
        """
        if rank is None or part.rank is None:
            return self.name_of(part)
        own = self._of_rank.get((part.piece, rank), [])
        # even where it is broken: several are copies, of which the rank keeps the one in its own directory
        if own:
            nearest = min(own, key=lambda p: (dict(p.coords).get("node", rank) != rank, p is not part))
            home = None  # what it calls its file where it looks for it, though another keeps the only copy
            if self.layout.ranks.keepers:
                home = find_name_for(self.layout.piece(nearest.piece), nearest, rank, {"node": rank})
            return home or self.name_of(nearest)
        if base := self.base_of(part, rank):
            return base + self.name_of(part).partition("/")[2]
        if name := find_name_for(self.layout.piece(part.piece), part, rank, self._coords.get(rank)):
            return name
        raise UsageError(
            f"no view can be made of {part.path} for rank {rank}: its name holds no rank",
            "start without --view",
        )

    # ---- filling it

    def link(self, name: str, path: str) -> str:
        """Put a link in, and say where it will be. Raises UsageError when another file has that name."""
        if ".." in name.split("/") or self.links.setdefault(name, path) != path:
            raise UsageError(
                f"no view can be made: {self.links.get(name)} and {path} would both be {name} in it",
                "start without --view",
            )
        return f"{self.directory}/{name}"

    def load(self, f: FileLoad, rank: int | None) -> str | None:
        """The link to a planned file; None for one that lies on another node."""
        part = self.part_of(f.path)
        if part is None:
            if f.node is not None and rank is not None:
                return None
            return self.link(_below(f.path, self.above).rstrip("/"), f.path)  # data that an index names
        name = self.named(part, rank)
        link = self.link(name, f.path)
        piece = self.layout.piece(part.piece)
        base = link.rsplit("/", piece.depth + 1)[0]
        home = base if piece.where is Where.HERE else ""
        if piece.home:
            home = "/".join(link.split("/")[: base.count("/") + 1 + piece.home])
        if rank is None or part.rank is None:
            rank = part.rank
        self.moved.setdefault(name, part._replace(path=link, base=base, home=home, rank=rank))
        return link

    def fill(self) -> None:
        """Everything: what the plan loads, copies that one name stands for, what is not loaded but goes with
        it, the tracker.
        """
        for f in self.plan.shared:
            self.shared += filter(None, [self.load(f, None)])
        for r in self.plan.by_rank:
            links = [link for f in r.files if (link := self.load(f, r.rank))]
            if len(links) == len(r.files):
                self.ranks[r.rank] = links
        for name, path in self._rest():
            self.links.setdefault(name, path)
        self._tracker()

    def _rest(self) -> Iterator[tuple[str, str]]:
        yield from self._other_parts()
        for home in sorted({p.home for p in self.checkpoint.parts if p.home and is_directory(p.home)}):
            above = _below(home, self.above)
            yield from ((f"{above}{name}", path) for name, path in self._others(home, ""))
        for name in self.layout.beside.asked(self.checkpoint):
            if is_file(path := os.path.join(self.above, name)):
                yield name, path

    def _other_parts(self) -> Iterator[tuple[str, str]]:
        """Parts that are not loaded; and of those of which one is loaded for all, it under every name."""
        loaded = [(f.path, part) for f in self.plan.shared if (part := self.part_of(f.path))]
        good = {part.role: path for path, part in loaded if self.layout.piece(part.piece).readers.single}
        for part in self.checkpoint.parts:
            piece = self.layout.piece(part.piece)
            if piece.readers.single and part.role in good:
                yield self.name_of(part), good[part.role]
            elif not piece.loaded and part.size >= 0:
                yield self.name_of(part), part.path

    def _others(self, directory: str, above: str) -> Iterator[tuple[str, str]]:
        """Files of a checkpoint's own directory that are no parts: configurations, tokenizers, scripts, data
        that only an index describes.
        """
        own, notes = directory == self.above, (self.layout.tracker.file, *self.layout.records.names)
        for e in entries_of(directory):
            name = f"{above}{e.name}"
            if e.name == MARKER or TEMPORARY.search(e.name) or (own and e.name in notes):
                continue
            if not is_directory(e):
                if e.path not in self.parts and is_file(e) and not self._of_another(e.name):
                    yield name, e.path
            elif e.is_symlink() and not any(p.startswith(f"{e.path}/") for p in self.parts):
                yield name, e.path
            elif not (self._scattered and _holds_checkpoints(e.path)):
                yield from self._others(e.path, f"{name}/")

    def _of_another(self, name: str) -> bool:
        return self._scattered and any(
            p.file.fullmatch(name) for p in self.layout.pieces if p.depth == 0 and p.where is not Where.HERE
        )

    @cached_property
    def _scattered(self) -> bool:
        """Whether the checkpoint's directory may have others in it: a model's own one is often that of the
        whole training.
        """
        return any(self.layout.piece(p.piece).where is Where.HERE for p in self.checkpoint.parts)

    def _tracker(self) -> None:
        """The notes in which a framework looks up what to load, as they must be in the view."""
        tracker, records = self.layout.tracker, self.layout.records
        latest = tracker.name(self.checkpoint)
        there = tracker.file and (tracker.always or is_file(os.path.join(self.above, tracker.file)))
        if there and latest is not None:
            self.texts[tracker.file] = tracker.write(latest)
        if records.write:
            homes = {p.path.rpartition("/")[0] for p in self.checkpoint.parts}
            if any(is_file(f"{home}/{records.names[0]}") for home in homes):
                for name, part in self.moved.items():
                    home = name.rpartition("/")[0]
                    self.texts[f"{home}/{records.names[0]}".lstrip("/")] = records.write(part)
        if twice := next((name for name in self.texts if name in self.links), None):
            raise UsageError(
                f"no view can be made: {self.links[twice]} has the name of the tracker",
                "start without --view",
            )

    # ---- what the framework is told

    @cached_property
    def rebased(self) -> Checkpoint:
        c, parts = self.checkpoint, tuple(self.moved.values())
        at = {
            of.path: part.path for name, part in self.moved.items() if (of := self.part_of(self.links[name]))
        }
        apart = len({tuple(links) for links in self.ranks.values()}) > 1
        if apart or not c.path.startswith(f"{self.above.rstrip('/')}/"):
            path = parts[0].home or self.directory
        else:
            path = at.get(c.path) or f"{self.directory}/{_below(c.path, self.above)}".rstrip("/")
        return replace(c, parts=parts, path=path)

    @cached_property
    def resume(self) -> Resume:
        paths = {part.path for part in self.moved.values()}
        return self.layout.resume(self.rebased, paths.pop() if len(paths) == 1 else None)

    def describe(self) -> dict[str, Any]:
        """What a decision says of it: "resume" for the files in it, "view" with those of the file entries."""
        resume = self.resume
        return {
            "resume": {"path": resume.path, "args": list(resume.args), "env": dict(resume.env)},
            "view": {
                "root": self.directory,
                "checkpoint": self.rebased.path,
                "ranks": {str(rank): links for rank, links in self.ranks.items()},
                "shared": self.shared,
            },
        }


def fill(plan: LoadPlan, directory: str, layouts: Layouts) -> Tree:
    """Return what a view at ``directory`` holds. Raises UsageError where names cannot be made, and CannotLook
    where something cannot be looked at.
    """
    tree = Tree(plan, directory, layouts)
    try:
        tree.fill()
    except OSError as e:
        raise CannotLook(f"{e.filename} cannot be looked at: {e.strerror}", _UNSEEN) from e
    return tree


def _holds_checkpoints(directory: str) -> bool:
    """Whether a directory is another checkpoint's. Raises CannotLook where something in it could not be seen
    that may show it.
    """
    found = discover(directory)
    if not found.parts and (row := next(iter(found.unseen), None)):
        raise CannotLook(f"{row.path}: {row.why}", _UNSEEN)
    return bool(found.parts)


def _below(path: str, above: str) -> str:
    name = os.path.relpath(path, above)
    return "" if name == "." else f"{name}/"


def _place(path: str) -> str:
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
