"""How far a path follows a template that it does not fit."""

from __future__ import annotations

import re
from typing import NamedTuple

from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.layouts.common.templates import TOKENS, compile_template


class Miss(NamedTuple):
    """The template ``fits`` so much of the path; ``expected`` is its next piece, ``found`` what is there."""

    path: str
    fits: str
    expected: str
    found: str


def _tokens(template: str) -> list[str]:
    """The template in its smallest pieces; an optional part is one."""
    out: list[str] = []
    depth, held = 0, ""
    for piece in TOKENS.split(template):
        if not piece:
            continue
        depth += (piece == "[") - (piece == "]")
        held += piece
        if depth == 0:
            out.append(held)
            held = ""
    return out


def near_miss(piece: Piece, path: str) -> Miss | None:
    """How far the end of ``path`` (as many components as the template has) follows the template;
    None when not even its first literal is there.
    """
    tail = "/".join(path.split("/")[-piece.depth - 1 :])
    parts, reached, best = _tokens(piece.template), "", 0
    for i in range(1, len(parts) + 1):
        m = re.match(compile_template("".join(parts[:i])), tail)
        if m is None:
            break
        reached, best = m[0], i
    literal = any(token.strip("/") and token[0] not in "{[<" for token in parts[:best])
    if best == len(parts):
        fits = re.fullmatch(compile_template(piece.template), tail) is not None
        return None if fits else Miss(path, reached, "the end of the name", tail[len(reached) :])
    return Miss(path, reached, parts[best], tail[len(reached) :][:80]) if literal else None
