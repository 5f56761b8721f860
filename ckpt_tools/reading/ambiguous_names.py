"""Files whose names do not tell what they are: their structure does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpt_tools.findings import NOT_SEEN
from ckpt_tools.layouts import BY_NAME, Piece, Place, places_of
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading.bare_files import settle_bare_files
from ckpt_tools.reading.prefetch import by_crowd

if TYPE_CHECKING:
    from ckpt_tools.reading.session import Session


def settle_weak_names(s: Session) -> None:
    """Pieces whose names do not tell the step get a structure pass; a weak name with other content is no piece at all."""
    pieces = [(BY_NAME[layout], name) for layout, name in {(p.layout, p.piece) for p in s.found.parts}]
    if not any(layout.last_resort or layout.piece(name).step_from == "content" for layout, name in pieces):
        return
    by_crowd(
        s,
        [p for p in s.found.parts if BY_NAME[p.layout].piece(p.piece).step_from == "content"],
        Level.STRUCTURE,
    )
    kept, damaged = list[Part](), list[Part]()
    for part in s.found.parts:
        piece = BY_NAME[part.layout].piece(part.piece)
        if piece.step_from == "content" and part.size >= 0:
            report = s.report(part, Level.STRUCTURE)
            if piece.weak and (report.verdict is Verdict.BROKEN or _unseen(report)):
                damaged.append(part)
                continue
            if piece.weak and not fits(piece, report):
                other = next((p for p in _as_weak(part) if fits(p.piece, report)), None)
                if other is not None:
                    kept.append(_moved(part, other))
                else:
                    s.bare(part)
                continue
        kept.append(part)
    homes = {(p.layout, p.base) for p in kept}
    for part in damaged:  # its content says nothing: it is what the others beside it are
        names = list(_as_weak(part))
        other = next((p for p in names if (p.layout.name, p.base) in homes), None) or next(
            (p for p in names if p.layout.last_resort), None
        )
        if other is not None:
            kept.append(_moved(part, other))
        else:
            s.bare(part)
    known = [p for p in kept if not BY_NAME[p.layout].last_resort]
    for part in kept if known else ():
        if BY_NAME[part.layout].last_resort:
            s.bare(part)
    s.found.parts = known or kept
    if kept and not known:
        settle_bare_files(s)


def _unseen(report: Report) -> bool:
    return report.verdict is Verdict.UNKNOWN and any(f.code in NOT_SEEN for f in report.findings)


def _as_weak(part: Part) -> Iterator[Place]:
    """The weak names that a part's name also is."""
    name = part.path.rpartition("/")[2]
    return (p for p in places_of(os.path.dirname(part.path)) if p.piece.weak and p.piece.file.fullmatch(name))


def _moved(part: Part, to: Place) -> Part:
    return part._replace(
        layout=to.layout.name, piece=to.piece.name, role=to.piece.role, kind=to.piece.kind, base=to.base
    )


def fits(piece: Piece, report: Report) -> bool:
    """Whether a file's content is what a weak name stands for."""
    return report.format in piece.formats and (not piece.proof or piece.proof in report.metadata)
