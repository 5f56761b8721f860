"""What is sealed together: a checkpoint with a directory of its own as a whole, other files one by one; and
what goes together into quarantine, or when it is pruned.
"""

from __future__ import annotations

import os
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from shlex import quote
from typing import NamedTuple

from msgspec import Struct

from ckpt_tools import formats
from ckpt_tools.discovery import group as grouping
from ckpt_tools.discovery.seals import directories
from ckpt_tools.errors import CannotLook, NoCheckpoint, UsageError
from ckpt_tools.formats.seals.names import NAME, beside, is_apart, signature_beside
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part
from ckpt_tools.model.seal import SealedCheckpoint
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.retry import ABSENT, is_file, status, there
from ckpt_tools.storage.urls import is_url


class Target(NamedTuple):
    """``path`` is the directory or the file, ``base`` the directory that the names in ``seal`` are relative
    to; ``files`` are absolute. ``siblings`` are the checkpoints of the same run.
    """

    path: str
    base: str
    seal: str
    files: tuple[str, ...]
    beside: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    siblings: Sequence[Checkpoint] = ()


def targets(s: Session) -> Iterator[Target]:
    """Everything below the root that can have a seal: the checkpoints of each run, newest first, then other
    files.
    """
    runs = s.runs(grouping.group(s.parts, s.layouts))
    homes = _homes(c for checkpoints in runs.values() for c in checkpoints)
    ordered = sorted(homes)
    taken = set[str]()
    for checkpoints in runs.values():
        for c in sorted(checkpoints, key=lambda c: (c.order, c.path), reverse=True):
            made = list(_of_checkpoint(s, c, checkpoints, homes, ordered))
            taken.update(path for target in made for path in target.files)
            yield from made
    graphs = [path for path in s.found.unneeded if path not in taken]
    taken.update(graphs)
    for bare in s.found.bare:
        if bare.path not in taken and bare.size >= 0 and not is_apart(os.path.basename(bare.path)):
            yield _of_file(bare.path)
    # graphs: no state, but saved by the run whose files are beside them
    yield from _of_graphs(graphs, s)


def _homes(checkpoints: Iterable[Checkpoint]) -> dict[str, int]:
    """How many checkpoints have each directory for their own."""
    out: dict[str, int] = {}
    for c in checkpoints:
        for home in {p.home for p in c.parts}:
            out[home] = out.get(home, 0) + 1
    return out


def _of_checkpoint(
    s: Session,
    c: Checkpoint,
    siblings: Sequence[Checkpoint],
    homes: dict[str, int],
    ordered: Sequence[str],
) -> Iterator[Target]:
    mine = {p.home for p in c.parts}
    home = next(iter(mine))
    parts = s.members(c).parts
    members = tuple(p.path for p in parts)
    if len(mine) == 1 and home and homes[home] == 1 and s.found.tree:
        others = ordered[bisect(ordered, f"{home}/") : bisect(ordered, f"{home}0")]  # "0" follows "/"
        files = tuple(sorted({*files_of(home, others), *members}))
        yield Target(home, home, f"{home}/{NAME}", files, (), c, siblings)
        return
    alike = Counter(map(_place, parts))
    for part in parts:
        # a file that another can stand in for is not missed: frameworks remove one of two copies
        is_missed = alike[_place(part)] == 1
        near = _beside(part.path, members) if is_missed else ()
        yield _of_file(part.path)._replace(beside=near, checkpoint=c, siblings=siblings)


def _place(part: Part) -> tuple[object, ...]:
    """What files have in common that can stand in for each other."""
    return part.role, part.rank, part.coords, part.role == "data" and part.path


def _beside(path: str, members: Sequence[str]) -> tuple[str, ...]:
    """The other files of a checkpoint in the directory of one, and below."""
    near = (os.path.relpath(other, os.path.dirname(path)) for other in members if other != path)
    return tuple(name for name in near if not name.startswith("../"))


def _of_file(path: str) -> Target:
    base, name = os.path.split(path)
    return Target(path, base, f"{base}/{beside(name)}", (path,))


def _of_graphs(paths: Sequence[str], s: Session) -> Iterator[Target]:
    """Files without state: missed where the one file that each belongs to is there."""
    parts = {part.path for part in s.parts} if paths else ()
    for path in paths:
        target = _of_file(path)
        name = os.path.basename(path)
        owners = [
            name.removesuffix(ending) + of for ending, of in s.layouts.unneeded if name.endswith(ending)
        ]
        yield target._replace(beside=tuple(name for name in owners if f"{target.base}/{name}" in parts))


def files_of(home: str, others: Sequence[str] = ()) -> Iterator[str]:
    """The files of a checkpoint's directory, at any depth. Where other checkpoints lie below it, it is the
    directory of a run as well, in which only what is known by name is the checkpoint's.
    """
    for directory, entries in directories(home):
        if isinstance(entries, ABSENT):
            continue  # removed after it was found: what was listed in it is missed when it is read
        if isinstance(entries, OSError):
            raise CannotLook(f"cannot list {directory}: {entries.strerror}")
        if not any(f"{directory}/".startswith(f"{other}/") for other in others):
            known = formats.names.known
            yield from (path for path in entries.files if not others or known(os.path.basename(path)))


def described(c: Checkpoint, root: str) -> SealedCheckpoint:
    """What a seal says that it is of."""
    ranks = [p.rank for p in c.parts if p.rank is not None]
    sizes: dict[str, int] = {}
    for p in c.parts:
        for name, at in p.coords:
            sizes[name] = max(sizes.get(name, 0), at + 1)
    return SealedCheckpoint(
        layout=c.layout,
        run=os.path.relpath(c.run, root) if os.path.isabs(c.run) or is_url(c.run) else c.run,
        kind=c.kind.value,
        step=c.step,
        epoch=c.epoch,
        step_in_epoch=c.step_in_epoch,
        world_size=max(ranks) + 1 if ranks else None,
        parallel=sizes,
    )


class Group(Struct, frozen=True):
    """What goes together: a checkpoint with a directory of its own, or the files of one that has none."""

    paths: tuple[str, ...]
    files: tuple[str, ...]
    checkpoint: Checkpoint | None

    @property
    def label(self) -> str:
        return self.checkpoint.label if self.checkpoint else ""

    @property
    def path(self) -> str:
        return self.paths[0] if len(self.paths) == 1 or not self.checkpoint else self.checkpoint.path

    @property
    def size(self) -> int:
        """Bytes, of what can be looked at."""
        return sum(status(path).st_size for path in self.files if is_file(path))

    def holds(self, path: str) -> bool:
        """Whether a file or directory belongs to it."""
        return path in self.files or any(f"{path}/".startswith(f"{own}/") for own in self.paths)

    def is_meant_by(self, path: str) -> bool:
        """Whether it lies at a path or below it; a prefix, as TensorFlow's, is one too."""
        if self.checkpoint and self.checkpoint.path == path and not os.path.isdir(path):
            return True
        return path in self.paths or all(own.startswith(f"{path.rstrip('/')}/") for own in self.paths)


def groups(s: Session) -> list[Group]:
    """Everything below a root that can be put away."""
    together: dict[object, list[Target]] = defaultdict(list)
    for target in targets(s):
        together[target.checkpoint.key if target.checkpoint else target.path].append(target)
    return [
        Group(
            tuple(dict.fromkeys(path for row in rows for path in (row.path, *_with(row)))),
            tuple(dict.fromkeys(path for row in rows for path in row.files)),
            rows[0].checkpoint,
        )
        for rows in together.values()
    ]


def _with(target: Target) -> Iterator[str]:
    """The seal and the signature of a file, which mean nothing without it."""
    if target.files == (target.path,):
        home, name = os.path.split(target.path)
        hidden = (f"{home}/{made(name)}" for made in (beside, signature_beside))
        yield from (path for path in hidden if there(path))


def named(found: Sequence[Group], paths: Sequence[str], root: str) -> list[Group]:
    """Those that are at, or below, one of the paths; one file of a checkpoint stands for all of it where that
    has no directory of its own. Raises UsageError and NoCheckpoint.
    """
    out = list[Group]()
    for path in paths:
        mine = [g for g in found if g.is_meant_by(path)]
        if not mine and (whole := next((g for g in found if g.holds(path)), None)):
            text = f"{path} is a part of the checkpoint {whole.path}, which goes as a whole or not at all"
            raise UsageError(text, f"name {whole.path}")
        if not mine:
            raise NoCheckpoint(
                f"there is no checkpoint at {path}", f"'ckpt ls {quote(root)}' shows what is there"
            )
        out += mine
    return list(dict.fromkeys(out))
