"""What the file of another rank is called: a template filled again with that rank's number,
everything else as in the file that stands in for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from ckpt_tools.layouts import Piece
from ckpt_tools.layouts.common.templates import COORDS, FIELD, compile_template
from ckpt_tools.model.part import Part

_PLACES = frozenset((*COORDS, "node"))


def named_for(piece: Piece, part: Part, rank: int, coords: Mapping[str, int] | None = None) -> str | None:
    """The end of the path (as many components as the template has) that ``piece`` gives to ``rank``,
    made from that of ``part``; None when no rank is in it.

    ``coords`` are those of that rank where they are known: ranks that hold the same state usually share them.
    """
    below = part.path.split("/")[-piece.depth - 1 :]
    wanted = {**{a: n for a, n in (coords or {}).items() if a in _PLACES}, "rank": rank}
    above, _, last = piece.template.rpartition("/")
    directory = _renamed(above, "/".join(below[:-1]), part, wanted)
    file = _renamed(last, below[-1], part, wanted)
    if directory is None or file is None or not (directory.ranks or file.ranks):
        return None
    return "/".join(filter(None, (directory.name, file.name)))


class _Renamed(NamedTuple):
    """What another rank calls a file or its directories, and how often its rank stands there."""

    name: str
    ranks: int


def _renamed(template: str, name: str, part: Part, wanted: Mapping[str, int]) -> _Renamed | None:
    pattern, widths = _every_field(template)
    m = re.fullmatch(pattern, name)
    if m is None:
        return None
    out, ranks = name, 0
    for group in sorted(m.re.groupindex, key=m.start, reverse=True):
        old, field = m[group], group.partition("__")[0]
        if old is None:
            continue
        counts_rank = field == "generation" and int(old) == part.rank and m["prefix"].endswith("rank")
        if field == "prefix":
            new = _prefix(old, part, wanted["rank"])
        elif counts_rank:
            new = str(wanted["rank"])  # MindFormers' prefix_rank_R-E_S.ckpt reads like a counter of restarts
        elif field in wanted:
            padded = len(old) if old[0] == "0" and len(old) > 1 else 0
            new = str(wanted[field]).zfill(max(widths.get(field, 0), padded))
            ranks += field == "rank"
        else:
            continue
        out = out[: m.start(group)] + new + out[m.end(group) :]
    return _Renamed(out, ranks)


@lru_cache(64)
def _every_field(template: str) -> tuple[str, dict[str, int]]:
    """The template's expression with a group for every place where a field stands,
    and how many digits each field has at least.
    """
    number = count(1)
    pattern = re.sub(
        r"\(\?P=(\w+)\)", lambda m: f"(?P<{m[1]}__{next(number)}>{m[0]})", compile_template(template)
    )
    return pattern, {m[1]: int(m[2] or 0) for m in FIELD.finditer(template)}


def _prefix(text: str, part: Part, rank: int) -> str:
    """``pangu3`` is what rank 3 calls the run ``pangu`` (discovery/names.py, _common_prefixes)."""
    stem = text.removesuffix(str(part.rank))
    common = {stem, stem.rstrip("_").removesuffix("rank").rstrip("_")}
    return f"{stem}{rank}" if stem != text and (part.prefix in common or stem.endswith("rank_")) else text
