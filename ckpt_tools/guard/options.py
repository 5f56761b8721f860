"""How checkpoints are sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ckpt_tools.model.seal import Fragment
from ckpt_tools.model.selection import ReadOptions

if TYPE_CHECKING:
    from ckpt_tools.reading.engines import Engine


class SealOptions(Struct, frozen=True):
    """``algorithm`` is that of whole files, ``also`` are further ones; with ``tensors`` each tensor has a
    digest too. ``again`` replaces seals without asking whether the files fit them, ``compare`` reads what is
    sealed already and holds it to its seals, ``dry_run`` writes nothing. ``merge`` makes one seal of
    fragments, ``fragment`` seals what one rank wrote, of which ``files`` are named (relative to the
    checkpoint) or told by the layout. ``sign_key`` is the file of a private key. The workers of an
    ``engine`` read.
    """

    read: ReadOptions = ReadOptions()
    algorithm: str = "xxh3"
    also: tuple[str, ...] = ()
    tensors: bool = False
    again: bool = False
    compare: bool = False
    dry_run: bool = False
    merge: bool = False
    fragment: Fragment | None = None
    files: tuple[str, ...] = ()
    sign_key: str | None = None
    engine: Engine | None = None
