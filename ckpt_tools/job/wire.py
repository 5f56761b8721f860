"""What the nodes of an agreement tell each other, as values that JSON can hold. Paths are relative: every
node has its own place for them.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from ckpt_tools.job.reported import Value
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.codec import decode_object, encode_object
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import FileLoad, RankLoad
from ckpt_tools.settings import checked_json
from ckpt_tools.storage.retry import is_directory
from ckpt_tools.storage.urls import normal

_UP = "^"
"""What stands for .. in names: links may lead out of ROOT, and no node follows another one's way there."""


class Identity(NamedTuple):
    """A checkpoint on every node; ``base`` is the directory of its run below the root."""

    layout: str
    base: str
    prefix: str
    step: int | None
    epoch: int | None
    step_in_epoch: int | None
    generation: int | None


def top(root: str) -> str:
    """The directory that everything of a root lies in: a root may be a prefix of several, or a file."""
    return root if is_directory(root) else os.path.dirname(root)


def name_of(path: str, root: str) -> str:
    """What a path is called on every node, wherever each has mounted its disk."""
    return "/".join(_UP if word == ".." else word for word in os.path.relpath(path, top(root)).split("/"))


def inside(path: str, root: str) -> bool:
    """Whether a path lies below the root without a way up."""
    return not os.path.relpath(path, top(root)).startswith("..")


def identity(c: Checkpoint, root: str) -> str:
    """What names a checkpoint on every node."""
    base = name_of(c.parts[0].base, root)
    return json.dumps([c.layout, base, c.parts[0].prefix, c.step, c.epoch, c.step_in_epoch, c.generation])


def parts_of(identity: str) -> Identity:
    """The reverse, of what has been checked (said.identity)."""
    words = checked_json.parsed(identity.encode("utf-8", "surrogateescape"))
    return Identity(*words) if isinstance(words, list) else Identity("", ".", "", None, None, None, None)


def row(load: RankLoad, host: str) -> Value:
    """What one rank loads, and on which node."""
    return {"rank": load.rank, "files": [{**encode_object(f), "node": host} for f in load.files]}


def load_of(row: Value) -> RankLoad:
    """The reverse."""
    return RankLoad(row["rank"], tuple(decode_object(FileLoad, f) for f in row["files"]))


def packed(p: Part, root: str) -> Value:
    """A part for the others, without what the listing found wrong with it."""
    home = name_of(p.home, root) if p.home else None
    return {**encode_object(p), "base": name_of(p.base, root), "home": home, "findings": []}


def unpacked(row: Value, root: str) -> Part:
    """A part of another node: its path is valid there, its directories are those of the same name here."""
    at = {name: normal(os.path.join(top(root), row[name])) if row[name] else "" for name in ("base", "home")}
    return decode_object(Part, {**row, **at})
