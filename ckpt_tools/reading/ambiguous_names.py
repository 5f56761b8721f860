"""Files whose names do not tell what they are: their structure does."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.layouts import Piece, Place
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading.prefetch import prefetch
from ckpt_tools.reading.session import Session

_SET = ".npz"
"""The ending of a file that may hold all of a model."""


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
    if loose and known:
        known, mixed = _of_mixed_saves(s, known, loose)
        loose += mixed
    s.found.parts = [*known, *_arranged(s, known, loose)]


def _arranged(s: Session, known: Sequence[Part], loose: Sequence[Part]) -> list[Part]:
    """The files of no arrangement as checkpoints, where those of ``known`` layouts leave them anything."""
    blocked = any(not s.layouts.of(p).of_exports for p in known)
    if blocked and not _are_models_alone(s, known):
        for part in loose:
            s.make_bare(part)
        return []
    s.found.parts = list(loose)
    if loose:  # a model that was exported beside them explains no states
        from ckpt_tools.reading.bare_files import settle_bare_files  # only where no layout knows a file

        settle_bare_files(s)
        if blocked:
            _keep_states(s)
    return s.found.parts


def _are_models_alone(s: Session, known: Sequence[Part]) -> bool:
    """Whether they are models without anything beside them that a loop of one's own has saved."""
    return all(s.layouts.of(p).models_alone and not s.layouts.piece_of(p).companion for p in known)


def _keep_states(s: Session) -> None:
    """Make the files of no arrangement bare unless one of them holds an optimizer's state, or is damaged and
    tells a step: beside models of a known layout these are what training goes on from.
    """
    if any(_may_be_state(p) for p in s.found.parts):
        return
    parts, s.found.parts = s.found.parts, []
    for part in parts:
        s.make_bare(part)


def _may_be_state(p: Part) -> bool:
    from ckpt_tools.layouts.common.held import held_by  # few trees have a known layout and other states

    held = held_by(p)
    return held.optimizer if held else (p.step, p.epoch) != (None, None)


def _of_mixed_saves(
    s: Session, known: Sequence[Part], loose: Sequence[Part]
) -> tuple[list[Part], list[Part]]:
    """The ``known`` parts without sets of arrays in directories of which names alone tell the layout, where
    files of other formats lie beside them (``weights.npz``, ``state.safetensors``); and these, each as a file
    of no arrangement: a save is loaded with all of it.
    """
    beside = {os.path.dirname(p.path) for p in loose}
    guessed = [p for p in known if p.home and _by_name_alone(s.layouts.piece_of(p))]
    sets = _sets_of_arrays(guessed, beside)
    mixed = {p.path: p for p in guessed if p.base in sets}
    moved = chain.from_iterable(_unarranged(s, p) for p in mixed.values())
    return [p for p in known if p.path not in mixed], list(moved)


def _sets_of_arrays(parts: Sequence[Part], directories: Collection[str]) -> set[str]:
    """The bases of those that are nothing else, and lie in one of the directories."""
    others = {p.base for p in parts if not p.name.endswith(_SET)}
    return {p.base for p in parts if p.name.endswith(_SET) and p.home in directories} - others


def _by_name_alone(piece: Piece) -> bool:
    return piece.weak and not piece.proof


def _unarranged(s: Session, p: Part) -> Iterator[Part]:
    """The part as a file of no known arrangement in its own directory."""
    yield from _moved(s, p, next((at for at in _places(s, p) if at.layout.last_resort), None))


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
        if piece.step_from != "content" or part.size < 0:
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
    """What else an ambiguous name may stand for."""
    name = part.path.rpartition("/")[2]
    at_home = s.layouts.templates().places(os.path.dirname(part.path))
    return (p for p in at_home if p.piece.weak and p.piece.file.fullmatch(name))


def _moved(s: Session, part: Part, to: Place | None) -> Iterator[Part]:
    """The part at another place; where there is none it is a bare file."""
    if to is None:
        s.make_bare(part)
        return
    moved = part._replace(
        layout=to.layout.name, piece=to.piece.name, role=to.piece.role, kind=to.piece.kind, base=to.base
    )
    if part.home and to.layout.last_resort:  # whether its directory is that of a save is asked anew
        run = os.path.relpath(part.home, s.root)
        moved = moved._replace(home="", run=run, prefix="", step=None, epoch=None, generation=None)
    yield moved


def fits(piece: Piece, report: Report) -> bool:
    """Whether a file's content is what an ambiguous name stands for."""
    return report.format in piece.formats and (not piece.proof or piece.proof in report.metadata)
