"""What a layout finds wrong with files that it knows: a finding before a rule has made one of it."""

from __future__ import annotations

from msgspec import Struct

from ckpt_tools.model.finding import Severity


class Flaw(Struct, frozen=True):
    """``code`` is one of the catalogue, whose severity and hint it has unless they are given; ``path`` is
    what it is about, "" for the file beside which it is given; the rest is as in a finding.
    """

    code: str
    message: str
    offset: int | None = None
    severity: Severity | None = None
    path: str = ""
    hint: str = ""
    ranks: tuple[tuple[int, int], ...] = ()
    follows: bool = False
