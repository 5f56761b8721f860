"""What is put into quarantine: the checkpoints that were named, or those that are damaged."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from shlex import quote

from msgspec import Struct

from ckpt_tools.errors import NoCheckpoint, UsageError
from ckpt_tools.formats.seals.names import beside, signature_beside
from ckpt_tools.guard.targets import Target, targets
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.retry import is_file, status, there


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
