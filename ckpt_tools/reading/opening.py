"""A session in which every file has its place: content tells what those are whose names say too little."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from ckpt_tools.cache.verdicts import Cache
from ckpt_tools.discovery.names import is_place_of_loop
from ckpt_tools.discovery.sidecars import read_tracker
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.layouts import Changes, Claim, Piece, Place, Purpose
from ckpt_tools.layouts.common.layout import Steps
from ckpt_tools.layouts.common.lost_files import held_by
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.loops import place_loops, were_written_together
from ckpt_tools.reading.prefetch import prefetch
from ckpt_tools.reading.session import Session

_LIMIT = 1 << 28
"""Bytes of an index that are searched at most."""
_NEWEST = 3
"""Files that are read to learn whether the saves of a run have an optimizer."""
_UNTOLD = (None, None, None)

Parts = list[Part]


def open_session(
    root: str, options: ReadOptions, *, cache: Cache | None = None, listing: bool = False
) -> Session:
    """Return what is below the root, and the way to its files. Raises CannotLook."""
    s = Session(root, options, cache=cache, listing=listing)
    parts = _place_ambiguous(s, s.found.parts)
    s.parts = _add_steps(s, _mark_exports(s, _join_rolling(s, parts)))
    return s


def _find_pieces(s: Session, parts: Parts, wanted: Callable[[Piece], object]) -> set[tuple[str, str]]:
    """Return the (layout, piece) of parts, of the pieces that are wanted."""
    there = {(p.folder.layout, p.folder.piece) for p in parts}
    return {(layout, name) for layout, name in there if wanted(s.layouts[layout].piece(name))}


# --- what an ambiguous name stands for


def _place_ambiguous(s: Session, parts: Parts) -> Parts:
    silent = _find_pieces(s, parts, lambda piece: piece.content.step)
    if not silent and not _find_pieces(s, parts, lambda piece: piece.claim is Claim.WEAK):
        return parts
    prefetch(s, [p for p in parts if (p.layout, p.piece) in silent], Level.STRUCTURE)
    placed, doubtful = Parts(), Parts()
    for p in parts:
        piece = s.layouts.piece_of(p)
        report = s.report(p, Level.STRUCTURE) if (p.layout, p.piece) in silent and p.size >= 0 else None
        if report is None or piece.claim is not Claim.WEAK:
            placed.append(p)
        elif report.format is None or _is_damaged(piece, report):
            doubtful.append(p)
        elif _fits(piece, report):
            placed.append(p)
        else:
            placed += _move(s, p, _find_place(s, p, partial(_fits_place, report=report)))
    return _place_loose(s, [*placed, *_place_doubtful(s, doubtful, {(p.layout, p.base) for p in placed})])


def _place_doubtful(s: Session, parts: Parts, homes: set[tuple[str, str]]) -> Iterator[Part]:
    """Yield damaged and unknown parts as what lies beside them, in the layouts and directories ``homes``."""
    for p in parts:
        is_damaged = _is_damaged(s.layouts.piece_of(p), s.known(p))
        beside = _find_place(s, p, lambda to: (to.layout.name, to.base) in homes, loop=is_damaged)
        for to in _move(s, p, beside):
            found = to.findings
            if not is_damaged:
                del s.reports[to.path]
                text = f"it does not begin like {' or '.join(s.layouts.piece_of(to).formats)}"
                found = (*found, finding("bad-header", text, offset=0))
            yield to._replace(findings=found)


def _place_loose(s: Session, placed: Parts) -> Parts:
    """Return the parts, with those of people's loops if other layouts have exports alone."""
    loose = [p for p in placed if s.layouts.of(p).is_last_resort]
    if not loose:
        return placed
    known = [p for p in placed if not s.layouts.of(p).is_last_resort]
    blocked = any(not s.layouts.of(p).of_exports for p in known)
    models = all(
        s.layouts.of(p).purpose is Purpose.MODELS and not s.layouts.piece_of(p).claim.needs_company
        for p in known
    )
    parts = place_loops(s, loose) if models or not blocked else loose
    if not blocked or (models and any(map(_may_be_state, parts))):
        return [*known, *parts]
    for p in parts:
        s.make_bare(p)
    return known


def _may_be_state(p: Part) -> bool:
    """Return True if a file holds an optimizer's state, or is damaged and tells a step."""
    held = held_by(p)
    return held.optimizer if held else _is_numbered(p)


def _is_damaged(piece: Piece, report: Report) -> bool:
    """Return True if a file cannot be read, or is well-formed and without all that its name says."""
    unseen = report.verdict is Verdict.UNKNOWN and any(f.code in NOT_SEEN for f in report.findings)
    empty = report.tensors == report.blank.empty and report.format in piece.formats
    return report.verdict is Verdict.BROKEN or unseen or (empty and not _fits(piece, report))


def _fits(piece: Piece, report: Report) -> bool:
    """Return True if a file's content is what an ambiguous name stands for."""
    proof = piece.content.proof
    return report.format in piece.formats and (not proof or proof in report.metadata)


def _fits_place(to: Place, report: Report) -> bool:
    return _fits(to.piece, report)


def _find_place(s: Session, p: Part, wanted: Callable[[Place], bool], *, loop: bool = True) -> Place | None:
    """Return what an ambiguous name stands for if that is wanted, else a loop's save, which ROOT is not."""
    at_home = s.layouts.templates().places(os.path.dirname(p.path))
    fit = (to for to in at_home if to.piece.claim is Claim.WEAK and to.piece.file.fullmatch(p.name))
    places = [to for to in fit if is_place_of_loop(to, p.name, s.root)]
    loops = [to for to in places if loop and to.layout.is_last_resort]
    return next(iter([*filter(wanted, places), *loops]), None)


def _move(s: Session, p: Part, to: Place | None) -> Parts:
    """Return the part at another place; where there is none it is a bare file."""
    if to is None:
        s.make_bare(p)
        return []
    piece = to.piece
    p = p._replace(layout=to.layout.name, piece=piece.name, role=piece.role, kind=piece.kind, base=to.base)
    if not to.layout.is_last_resort:
        return [p]
    told = piece.file.fullmatch(p.name)
    said = told.groupdict() if told else {}
    step, epoch = (int(n) if (n := said.get(key)) else None for key in ("step", "epoch"))
    run = os.path.relpath(to.base, s.root)
    moved = p._replace(
        home=to.home,
        run=os.path.normpath(os.path.join(run, to.prefix)) if to.prefix else run,
        prefix=to.prefix,
        step=to.step if step is None else step,
        epoch=to.epoch if epoch is None else epoch,
        step_in_epoch=to.step_in_epoch,
        generation=None,
    )
    return [moved]


# --- files that each save writes over, beside saves with numbers (``optim_NAME.ckpt``)


def _join_rolling(s: Session, parts: Parts) -> Parts:
    """Give what each save writes over the place of the one it was written with; else it is of none."""
    some = _find_pieces(s, parts, lambda piece: piece.changes is Changes.ROLLING)
    rolling = [p for p in parts if (p.layout, p.piece) in some and _is_rolling(s, p)]
    if not rolling:
        return parts
    saves: dict[object, Parts] = defaultdict(list)
    for p in parts:
        if p.kind is Kind.PERIODIC and _is_numbered(p):
            saves[p.layout, p.run, p.base, p.rank].append(p)
    settled = {p.path: _join_save(s, p, saves[p.layout, p.run, p.base, p.rank]) for p in rolling}
    s.companions += (p for p in rolling if not _is_numbered(settled[p.path]))
    for p in s.companions:
        s.make_bare(p)
    left_out = {p.path for p in s.companions}
    return [settled.get(p.path, p) for p in parts if p.path not in left_out]


def _is_rolling(s: Session, p: Part) -> bool:
    return not (p.home or _is_numbered(p) or s.layouts.of(p).is_last_resort)


def _is_numbered(p: Part) -> bool:
    return (p.step, p.epoch) != (None, None)


def _join_save(s: Session, p: Part, saves: Parts) -> Part:
    """Return the part with the place of the only save whose steps it tells, else of the one of its time."""
    report = s.report(p, Level.STRUCTURE)
    if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
        return p
    told = s.layouts.of(p).steps(p, report.metadata)[0]
    # an epoch may have as many steps as its name says
    with_it = [o for o in saves if told and told in (o.step, (o.epoch or 0) * (o.step_in_epoch or 0))]
    with_it = with_it or [o for o in saves if were_written_together(p, o)]
    if len({(o.step, o.epoch, o.step_in_epoch) for o in with_it}) != 1:
        return p
    of = min(with_it, key=lambda o: abs(o.mtime_ns - p.mtime_ns))
    return p._replace(step=of.step, epoch=of.epoch, step_in_epoch=of.step_in_epoch, generation=of.generation)


# --- saves of a model alone although others of their run hold a state of training


def _mark_exports(s: Session, parts: Parts) -> Parts:
    """Make a save of a model alone a release, if another save of its run holds an optimizer's state."""
    telling = _find_pieces(s, parts, lambda piece: piece.content.tells_exports)
    runs = _list_saves([p for p in parts if (p.layout, p.piece) in telling]) if telling else []
    exported = {save for saves in runs if len(saves) > 1 for save in _find_models_alone(s, saves)}
    if not exported:
        return parts
    return [p._replace(kind=Kind.RELEASE) if exported & {p.path, p.home} else p for p in parts]


def _list_saves(parts: Parts) -> list[dict[str, Parts]]:
    """Return the saves of each run; those in a directory of the best are of the run beside it."""
    above = {os.path.dirname(p.base) for p in parts if _is_of_the_best(p.base)}
    runs: dict[tuple[str, str], dict[str, Parts]] = defaultdict(lambda: defaultdict(list))
    for p in parts:
        run = home if (home := os.path.dirname(p.base)) in above else p.run
        runs[p.layout, run][p.home or p.path].append(p)
    return list(runs.values())


def _find_models_alone(s: Session, saves: dict[str, Parts]) -> list[str]:
    """Return the saves without an optimizer's state; none where no save of the run has one."""

    def is_asked(p: Part) -> object:
        return p.path in s.reports or s.layouts.piece_of(p).content.state_word or _is_of_the_best(p.base)

    told = {save: _trains(s, files) for save, files in saves.items() if any(map(is_asked, files))}
    without = [save for save, trains in told.items() if trains is False]
    if without and True not in told.values():  # the very newest may be damaged
        unread = sorted((files for save, files in saves.items() if save not in told), key=_find_time)
        without = without if any(_trains(s, files) for files in unread[-_NEWEST:]) else []
    return [save for save in without if all(_is_sound(s, p) for p in saves[save])]


def _is_of_the_best(directory: str) -> bool:
    return directory.rpartition("/")[2].lower().startswith("best")


def _find_time(files: Parts) -> int:
    return max(p.mtime_ns for p in files)


def _trains(s: Session, files: Parts) -> bool | None:
    """Return True if a save holds an optimizer's state, None if it cannot be read."""
    told = {_holds_optimizer(s, p) for p in files}
    return True if True in told else None if None in told else False


def _holds_optimizer(s: Session, p: Part) -> bool | None:
    if word := s.layouts.piece_of(p).content.state_word:
        data = read_tracker(p.path, _LIMIT)
        return None if isinstance(data, Finding) else word in data
    report = s.report(p, Level.STRUCTURE)
    return report.held.optimizer if report.tensors else None


def _is_sound(s: Session, p: Part) -> bool:
    """Return False for a damaged file, which may have lost what tells."""
    return s.report(p, Level.STRUCTURE).verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)


# --- steps


def _add_steps(s: Session, parts: Parts) -> Parts:
    """Return the parts with the steps that content tells; a directory of one save has one step."""
    silent = _find_pieces(s, parts, lambda piece: piece.content.step)
    asked = [p for p in parts if (p.layout, p.piece) in silent and not (p.home and _is_numbered(p))]
    if not (told := _read_steps(s, asked)):
        return parts
    out = Parts()
    for p in parts:
        said = None if p.home and _is_numbered(p) else told.get(p.home or p.path)
        out.append(p._replace(step=said[0], epoch=said[1], step_in_epoch=said[2]) if said else p)
    return out


def _read_steps(s: Session, parts: Parts) -> dict[str, Steps]:
    """Return what the files of each directory tell; one shard of a set may be the only one that does."""
    told = dict[str, Steps]()
    for p in parts:
        if report := s.reports.get(p.path):
            steps = s.layouts.of(p).steps(p, report.metadata)
            if steps != _UNTOLD or (p.home or p.path) not in told:
                told[p.home or p.path] = steps
    return told
