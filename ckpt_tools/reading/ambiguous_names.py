"""Files whose names do not tell what they are: their structure does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ckpt_tools.discovery.names import is_place_of_loop
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.layouts import Piece, Place
from ckpt_tools.layouts.common.held import held_by
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading.prefetch import prefetch
from ckpt_tools.reading.session import Session


def settle_ambiguous_names(s: Session) -> None:
    """Give each file whose name does not tell what it is its place by its structure; what is no piece of a
    checkpoint becomes a bare file.
    """
    if not _some_ambiguous(s):
        return
    prefetch(s, [p for p in s.found.parts if s.layouts.piece_of(p).step_from == "content"], Level.STRUCTURE)
    placed, damaged, strange = _place_by_content(s)
    homes = {(p.layout, p.base) for p in placed}
    placed += _place_by_siblings(s, damaged, homes)
    placed += (_damaged(s, part) for part in _place_by_siblings(s, strange, homes, alone=False))
    loose = [p for p in placed if s.layouts.of(p).last_resort]
    known = [p for p in placed if not s.layouts.of(p).last_resort]
    s.found.parts = [*known, *_of_loops(s, known, loose)]


def _of_loops(s: Session, known: Sequence[Part], loose: Sequence[Part]) -> list[Part]:
    """Return the files of people's own loops as checkpoints, if those of ``known`` layouts are exports alone
    or none; beside models that were exported they are states, or nothing.
    """
    if not loose:
        return []
    from ckpt_tools.reading.loops import place_loops  # only where no layout knows a file

    blocked = any(not s.layouts.of(p).of_exports for p in known)
    models = all(s.layouts.of(p).models_alone and not s.layouts.piece_of(p).companion for p in known)
    parts = place_loops(s, loose) if models or not blocked else list(loose)
    if not blocked or (models and any(map(_may_be_state, parts))):
        return parts
    for part in parts:
        s.make_bare(part)
    return []


def _may_be_state(p: Part) -> bool:
    """Return True if a file holds an optimizer's state, or is damaged and tells a step."""
    held = held_by(p)
    return held.optimizer if held else (p.step, p.epoch) != (None, None)


def _some_ambiguous(s: Session) -> bool:
    names = {(p.layout, p.piece) for p in s.found.parts}
    pieces = [(s.layouts[layout], name) for layout, name in names]
    return any(layout.last_resort or layout.piece(name).step_from == "content" for layout, name in pieces)


def _place_by_content(s: Session) -> tuple[list[Part], list[Part], list[Part]]:
    """The parts as their structure tells, those with an ambiguous name that it says nothing about: they are
    damaged; and those that begin as nothing known does, as what is cut off after a byte.
    """
    placed, damaged, strange = list[Part](), list[Part](), list[Part]()
    for part in s.found.parts:
        piece = s.layouts.piece_of(part)
        if piece.step_from != "content" or s.layouts.of(part).last_resort or part.size < 0:
            placed.append(part)
            continue
        report = s.report(part, Level.STRUCTURE)
        if not piece.weak:
            placed.append(part)
        elif _is_damaged(s, part, report):
            damaged.append(part)
        elif fits(piece, report):
            placed.append(part)
        elif report.format is None:
            strange.append(part)
        else:
            placed += _move_by_content(s, part, report)
    return placed, damaged, strange


def _is_damaged(s: Session, part: Part, report: Report) -> bool:
    """Return True if a file cannot be read, or is well-formed and without all that its name says."""
    if report.verdict is Verdict.BROKEN or _unseen(report):
        return True
    piece = s.layouts.piece_of(part)
    lacks_all = _holds_nothing(report) and report.format in piece.formats and not fits(piece, report)
    return lacks_all and not s.layouts.of(part).last_resort


def _move_by_content(s: Session, part: Part, report: Report) -> Iterator[Part]:
    """Return the part at the place that its content fits, else as a file of no arrangement."""
    places = list(_places(s, part))
    own = next((p for p in places if fits(p.piece, report)), None)
    return _moved(s, part, own or next((p for p in places if p.layout.last_resort), None))


def _place_by_siblings(
    s: Session, damaged: Sequence[Part], homes: set[tuple[str, str]], *, alone: bool = True
) -> Iterator[Part]:
    """A damaged file is what the others beside it are; ``homes`` are the layouts and directories of those.
    One that is ``alone`` may be a file of no arrangement.
    """
    for part in damaged:
        places = list(_places(s, part))
        beside = next((p for p in places if (p.layout.name, p.base) in homes), None)
        last = next((p for p in places if p.layout.last_resort), None) if alone else None
        yield from _moved(s, part, beside or last)


def _damaged(s: Session, part: Part) -> Part:
    """The part, which is called as those beside it and begins as none of them does."""
    del s.reports[part.path]
    title = " or ".join(s.layouts.piece_of(part).formats)
    return part._replace(
        findings=(*part.findings, finding("bad-header", f"it does not begin like {title}", offset=0))
    )


def _holds_nothing(report: Report) -> bool:
    return report.tensors == report.blank.empty


def _unseen(report: Report) -> bool:
    return report.verdict is Verdict.UNKNOWN and any(f.code in NOT_SEEN for f in report.findings)


def _places(s: Session, part: Part) -> Iterator[Place]:
    """What else an ambiguous name may stand for; ROOT is no save of a loop."""
    name = part.path.rpartition("/")[2]
    at_home = s.layouts.templates().places(os.path.dirname(part.path))
    fit = (p for p in at_home if p.piece.weak and p.piece.file.fullmatch(name))
    return (p for p in fit if is_place_of_loop(p, name, s.root))


def _moved(s: Session, part: Part, to: Place | None) -> Iterator[Part]:
    """The part at another place; where there is none it is a bare file."""
    if to is None:
        s.make_bare(part)
        return
    moved = part._replace(
        layout=to.layout.name, piece=to.piece.name, role=to.piece.role, kind=to.piece.kind, base=to.base
    )
    yield _as_a_loop_s(s, moved, to) if to.layout.last_resort else moved


def _as_a_loop_s(s: Session, part: Part, to: Place) -> Part:
    """Return the part with the run and the numbers that its convention tells."""
    told = to.piece.file.fullmatch(part.name)
    said = told.groupdict() if told else {}
    step, epoch = (int(n) if (n := said.get(key)) else None for key in ("step", "epoch"))
    run = os.path.relpath(to.base, s.root)
    return part._replace(
        home=to.home,
        run=os.path.normpath(os.path.join(run, to.prefix)) if to.prefix else run,
        prefix=to.prefix,
        step=to.step if step is None else step,
        epoch=to.epoch if epoch is None else epoch,
        step_in_epoch=to.step_in_epoch,
        generation=None,
    )


def fits(piece: Piece, report: Report) -> bool:
    """Whether a file's content is what an ambiguous name stands for."""
    return report.format in piece.formats and (not piece.proof or piece.proof in report.metadata)
