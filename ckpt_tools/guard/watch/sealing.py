"""A checkpoint sealed that was just verified, so that nobody has to read it a third time."""

from __future__ import annotations

import os

from ckpt_tools.formats.seals.names import NAME
from ckpt_tools.guard.options import SealOptions
from ckpt_tools.guard.sealing import seal_below
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.seal import Sealing
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.session import Session, formats_allowed


def seal(s: Session, c: Checkpoint, options: ReadOptions) -> Sealing:
    """Seal a checkpoint that is known to be good, as the session shows it. It is read once more for that: no
    digest of it was taken before its neighbours had been compared with it, or of one that is suspect.

    The verdict that is kept of each file then rests on the seal too, so that ``plan`` need not compare the
    two. Raises CannotLook where the seal cannot be written.
    """
    homes = {part.home for part in c.parts}
    paths = sorted(homes) if all(homes) else [part.path for part in c.parts]
    parts = s.members(c).parts
    before = {part.path: _based(s, part.path) for part in parts}
    result = seal_below(paths, SealOptions(read=options))
    for one in result.checkpoints:
        if one.state == "sealed":
            base = one.path if os.path.basename(one.seal) == NAME else os.path.dirname(one.path)
            s.indexes.add_seal(one.seal, base)
    for part in parts:
        expect = formats_allowed(part, s.layouts.piece_of(part))
        s.reader.sealed(part.path, expect, before[part.path], _based(s, part.path))
    return result


def _based(s: Session, path: str) -> str | None:
    """What stands for the indexes and seals behind a file."""
    s.indexes.claims(path)
    return s.indexes.based(path)
