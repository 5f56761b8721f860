"""What the file of another rank is called: a template filled again with that rank's number,
everything else as in the file that stands in for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import count

from ckpt_tools.layouts.common.layout import _FIELD, COORDS, Piece, compile_template
from ckpt_tools.model.part import Part


def named_for(piece: Piece, part: Part, rank: int, coords: Mapping[str, int] | None = None) -> str | None:
    """The end of the path (as many components as the template has) that ``piece`` gives to ``rank``,
    made from that of ``part``; None when no rank is in it.

    ``coords`` are those of that rank where they are known: ranks that hold the same state usually share them.
    """
    names = part.path.split("/")[-piece.depth - 1 :]
    wanted = {**{a: n for a, n in (coords or {}).items() if a in COORDS}, "rank": rank}
    renamed, ranks = [], 0
    for template, name in zip(
        ("/".join(piece.template.split("/")[:-1]), piece.template.split("/")[-1]),
        ("/".join(names[:-1]), names[-1]),
        strict=True,
    ):
        pattern, widths = _every_field(template)
        m = re.fullmatch(pattern, name)
        if m is None:
            return None
        out = name
        for group in sorted(m.re.groupindex, key=m.start, reverse=True):
            old, field = m[group], group.partition("__")[0]
            if old is None:
                continue
            if field == "prefix":
                new = _prefix(old, part, rank)
            elif field == "generation" and int(old) == part.rank and m["prefix"].endswith("rank"):
                new = str(rank)  # MindFormers' prefix_rank_R-E_S.ckpt reads like a counter of restarts
            elif field in wanted:
                new = str(wanted[field]).zfill(
                    max(widths.get(field, 0), len(old) if old[0] == "0" and len(old) > 1 else 0)
                )
                ranks += field == "rank"
            else:
                continue
            out = out[: m.start(group)] + new + out[m.end(group) :]
        renamed.append(out)
    return "/".join(filter(None, renamed)) if ranks else None


@lru_cache(64)
def _every_field(template: str) -> tuple[str, dict[str, int]]:
    """The template's expression with a group for every place where a field stands,
    and how many digits each field has at least.
    """
    number = count(1)
    pattern = re.sub(
        r"\(\?P=(\w+)\)", lambda m: f"(?P<{m[1]}__{next(number)}>{m[0]})", compile_template(template)
    )
    return pattern, {m[1]: int(m[2] or 0) for m in _FIELD.finditer(template)}


def _prefix(text: str, part: Part, rank: int) -> str:
    """``pangu3`` is what rank 3 calls the run ``pangu`` (discovery/names.py, _common_prefixes)."""
    stem = text.removesuffix(str(part.rank))
    common = {stem, stem.rstrip("_").removesuffix("rank").rstrip("_")}
    return f"{stem}{rank}" if stem != text and (part.prefix in common or stem.endswith("rank_")) else text
