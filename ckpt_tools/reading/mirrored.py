"""Seals in a directory of their own, below the absolute path of the sealed directory."""

from __future__ import annotations

import os

from ckpt_tools.discovery.directory import apart
from ckpt_tools.discovery.file_stat import stat_of
from ckpt_tools.discovery.found import BareFile, Discovery
from ckpt_tools.discovery.seals import seals_about
from ckpt_tools.errors import CannotLook
from ckpt_tools.formats.seals.document import base_of
from ckpt_tools.storage.listing import Names, walk
from ckpt_tools.storage.retry import ABSENT
from ckpt_tools.storage.urls import absolute, mirror_path


def place(seal_dir: str, path: str) -> str:
    """Return where the seal that would lie at ``path`` lies instead."""
    return f"{absolute(seal_dir)}{mirror_path(os.path.dirname(path))}/{os.path.basename(path)}"


def mirrored(seal_dir: str, root: str, found: Discovery) -> dict[BareFile, str]:
    """Return the seals of what is at and below ``root``, and the directory of each. Raises CannotLook."""
    away, real = absolute(seal_dir), mirror_path(root)
    out = dict[BareFile, str]()
    seals = [] if found.tree else list(seals_about(away + real))
    for path, below in walk(away + real, Names) if found.tree else ():
        if isinstance(below, ABSENT) and path == away + real:
            continue  # nothing of it is sealed there
        if isinstance(below, OSError):
            raise CannotLook(f"cannot list {path}: {below.strerror}", "check that CKPT_SEAL_DIR can be read")
        seals += (BareFile(e.path, *stat_of(e)) for e in apart(path, below)[0])
    for seal in seals:
        base = base_of(seal.path)[len(away) :]
        if base == real or base.startswith(f"{real}/"):
            out[seal] = root + base[len(real) :]
        else:  # a directory that the root lies in
            out[seal] = root
            for _ in range(real[len(base) :].count("/")):
                out[seal] = os.path.dirname(out[seal])
    return out
