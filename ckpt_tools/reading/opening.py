"""Opens a session in which every file has its place: content tells the place if the name says too little."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain

from ckpt_tools.cache import Cache
from ckpt_tools.discovery.found import NamedFile
from ckpt_tools.discovery.names import is_place_of_loop, name_parts
from ckpt_tools.discovery.seals import read_tracker
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.layouts import Changes, Claim, Piece, Place, Purpose
from ckpt_tools.layouts.common.layout import Steps
from ckpt_tools.layouts.common.lost_files import get_holds
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Kind, Part, were_written_together
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.loops import place_loops
from ckpt_tools.reading.scheduler import prefetch
from ckpt_tools.reading.session import Session

_LIMIT = 1 << 28
"""The most bytes of an index that are searched."""
_NEWEST = 3
"""How many files are read to learn whether the saves of a run have an optimizer."""
_NO_STEPS = (None, None, None)

Parts = list[Part]


def open_session(
    root: str, options: ReadOptions, *, cache: Cache | None = None, listing: bool = False
) -> Session:
    """Return a session on everything below the root, in which every part has its place. Raise CannotLook."""
    s = Session(root, options, cache=cache, listing=listing)
    parts = _join_rolling(s, _place_ambiguous(s, s.found.parts))
    telling = _find_pieces(s, parts, lambda piece: piece.content.tells_exports)
    files = [p for p in parts if (p.layout, p.piece) in telling] if telling else []
    exported = {save for saves in _group_runs(s, files) if len(saves) > 1 for save in _find_exports(s, saves)}
    if exported:
        parts = [p._replace(kind=Kind.RELEASE) if exported & {p.path, p.home} else p for p in parts]
    s.parts = _add_steps(s, parts)
    return s


def _find_pieces(s: Session, parts: Parts, wanted: Callable[[Piece], object]) -> set[tuple[str, str]]:
    """Return (layout, piece) of all parts whose piece is ``wanted``."""
    pieces = {(p.folder.layout, p.folder.piece) for p in parts}
    return {(layout, name) for layout, name in pieces if wanted(s.layouts[layout].piece(name))}


# --- the piece that an ambiguous name stands for


def _place_ambiguous(s: Session, parts: Parts) -> Parts:
    """Return the parts with a place for each ambiguous name, by content or by neighbours; others are bare."""
    by_content = _find_pieces(s, parts, lambda piece: piece.content.step)
    if not by_content and not _find_pieces(s, parts, lambda piece: piece.claim is Claim.WEAK):
        return parts
    prefetch(s, [p for p in parts if (p.layout, p.piece) in by_content], Level.STRUCTURE)
    placed, doubtful = Parts(), Parts()
    for p in parts:
        piece = s.layouts.piece_of(p)
        report = s.report(p, Level.STRUCTURE) if (p.layout, p.piece) in by_content and p.size >= 0 else None
        if report is None or piece.claim is not Claim.WEAK:
            placed.append(p)
        elif report.format is None or _is_damaged(piece, report):
            doubtful.append(p)
        elif _fits_piece(piece, report):
            placed.append(p)
        else:
            placed += _move_part(s, p, partial(_fits_place, report=report))
    return _place_loose(s, [*placed, *_place_doubtful(s, doubtful, {(p.layout, p.base) for p in placed})])


def _place_doubtful(s: Session, parts: Parts, homes: set[tuple[str, str]]) -> Iterator[Part]:
    """Yield damaged and unknown parts as pieces of the layouts and directories (``homes``) beside them."""
    for p in parts:
        is_damaged = _is_damaged(s.layouts.piece_of(p), s.known(p))
        for to in _move_part(s, p, lambda to: (to.layout.name, to.base) in homes, loop=is_damaged):
            found = to.findings
            if not is_damaged:
                del s.reports[to.path]
                text = f"it does not begin like {' or '.join(s.layouts.piece_of(to).formats)}"
                found = (*found, finding("bad-header", text, offset=0))
            yield to._replace(findings=found)


def _place_loose(s: Session, placed: Parts) -> Parts:
    """Return the parts; files of people's own loops are among them only if other layouts have no states."""
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
    held = get_holds(p)
    return held.optimizer if held else _is_numbered(p)


def _is_damaged(piece: Piece, report: Report) -> bool:
    """Return True if a file cannot be read, or is well-formed without elements and without proof."""
    unseen = report.verdict is Verdict.UNKNOWN and any(f.code in NOT_SEEN for f in report.findings)
    empty = report.tensors == report.blank.empty and report.format in piece.formats
    return report.verdict is Verdict.BROKEN or unseen or (empty and not _fits_piece(piece, report))


def _fits_piece(piece: Piece, report: Report) -> bool:
    """Return True if a file's content is that of a piece with an ambiguous name."""
    proof = piece.content.proof
    return report.format in piece.formats and (not proof or proof in report.metadata)


def _fits_place(to: Place, report: Report) -> bool:
    return _fits_piece(to.piece, report)


def _move_part(s: Session, p: Part, wanted: Callable[[Place], bool], *, loop: bool = True) -> Parts:
    """Return the part as the first ``wanted`` piece that its name fits, else of a loop; [] if bare."""
    places, fit = s.layouts.templates().places(os.path.dirname(p.path)), list[NamedFile]()
    name = places.read_name(p.name)
    while name is not None:
        place = places[name.piece]
        if place.piece.claim is Claim.WEAK and is_place_of_loop(place, p.name, s.root):
            fit.append(NamedFile(place, name, p.size, p.mtime_ns, p.findings, places))
        name = places.read_name(p.name, after=name.piece)
    loops = (at for at in fit if loop and at.place.layout.is_last_resort)
    found = next(chain((at for at in fit if wanted(at.place)), loops), None)
    if found is None:
        s.make_bare(p)
        return []
    if (found.place.layout.name, found.place.piece.name) == (p.layout, p.piece):
        return [p]  # its run is told by the files beside it
    return name_parts([found], s.root if s.found.tree else os.path.dirname(s.root))


# --- files that each save writes over, beside saves with numbers (``optim_NAME.ckpt``)


def _join_rolling(s: Session, parts: Parts) -> Parts:
    """Return the parts; a file that each save writes over joins its save, else it becomes a companion."""
    pieces = _find_pieces(s, parts, lambda piece: piece.changes is Changes.ROLLING)
    rolling = [p for p in parts if (p.layout, p.piece) in pieces and _is_rolling(s, p)]
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
    """Return True if a file that each save may write over has no directory and no numbers of a save."""
    return not (p.home or _is_numbered(p) or s.layouts.of(p).is_last_resort)


def _is_numbered(p: Part) -> bool:
    return (p.step, p.epoch) != (None, None)


def _join_save(s: Session, p: Part, saves: Parts) -> Part:
    """Return the part with the numbers of the only save whose steps it tells, else of the one of its time."""
    report = s.report(p, Level.STRUCTURE)
    if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
        return p
    told = s.layouts.of(p).steps(p, report.metadata)[0]
    fitting = [o for o in saves if told is not None and told in (o.step, _count_steps(o))]
    fitting = fitting or [o for o in saves if were_written_together(p, o)]
    if len(set(map(_read_steps, fitting))) != 1:
        return p
    o = min(fitting, key=lambda o: abs(o.mtime_ns - p.mtime_ns))
    return p._replace(step=o.step, epoch=o.epoch, step_in_epoch=o.step_in_epoch, generation=o.generation)


def _count_steps(p: Part) -> int | None:
    """Return the steps at the end of an epoch, if each epoch has as many as the name says; else None."""
    return p.epoch * p.step_in_epoch if p.epoch is not None and p.step_in_epoch is not None else None


# --- saves of a model alone although others of their run hold a state of training


def _group_runs(s: Session, parts: Parts) -> Iterable[Mapping[str, Parts]]:
    """Return the files of each save for each run. A directory of the best is of the run beside it."""
    best = [p for p in parts if not p.home and p.base.rpartition("/")[2].lower().startswith("best")]
    for p in best:  # is it a model alone? Of other files only those that were read are compared
        s.report(p, Level.STRUCTURE)
    above = {os.path.dirname(p.base) for p in best}
    runs: dict[tuple[str, str], dict[str, Parts]] = defaultdict(lambda: defaultdict(list))
    for p in parts:
        beside = os.path.dirname(p.base)
        runs[p.layout, beside if not p.home and beside in above else p.run][p.home or p.path].append(p)
    return runs.values()


def _find_exports(s: Session, saves: Mapping[str, Parts]) -> Iterator[str]:
    """Yield the saves of a run that were read and hold a model alone, if another holds a state."""
    files = list(chain.from_iterable(saves.values()))
    held = {p.path: _holds_state(s, p) for p in files}
    exports = [save for save, same in saves.items() if {held[p.path] for p in same} == {False}]
    if exports and True not in held.values():
        held |= _read_newest(s, files)
    states = [p for p in files if held[p.path]] if exports else []
    yield from (save for save in exports if states and _is_certain(s, saves[save], states))


def _read_newest(s: Session, files: Parts) -> dict[str, bool | None]:
    """Return whether some files that were not read yet hold more than a model: the newest may be damaged."""
    unread = sorted((p for p in files if not p.home and p.path not in s.reports), key=lambda p: -p.mtime_ns)
    for p in unread[:_NEWEST]:
        s.report(p, Level.STRUCTURE)
    return {p.path: _holds_state(s, p) for p in unread[:_NEWEST]}


def _is_certain(s: Session, save: Parts, states: Parts) -> bool:
    """Return False for a damaged save, and for a file that may be of another model: its name is not one of a
    framework, and no file in ``states`` has all its tensors.
    """
    piece = s.layouts.piece_of(save[0])
    if not all(_is_sound(s.report(p, Level.STRUCTURE)) for p in save):
        return False
    if piece.claim is not Claim.WEAK or piece.content.proof:
        return True
    names = _read_tensor_names(s, save[0].path)
    paths = {s.known(p).signature: p.path for p in states}  # of files with equal tensors one is read
    return any(names <= _read_tensor_names(s, path) for path in paths.values())


def _read_tensor_names(s: Session, path: str) -> frozenset[str]:
    return frozenset(t.name for t in s.inspect(path, Level.STRUCTURE)[1].tensors)


def _holds_state(s: Session, p: Part) -> bool | None:
    """Return True if a file holds more than a model; None if it was not read, or may have lost entries."""
    content, report = s.layouts.piece_of(p).content, s.reports.get(p.path)
    if content.state_word:
        data = read_tracker(p.path, _LIMIT)
        return None if isinstance(data, Finding) else content.state_word in data
    if report is None or not _is_sound(report):
        return None
    return report.held.optimizer or not report.metadata.keys().isdisjoint(content.state_told)


def _is_sound(report: Report) -> bool:
    return report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN) and report.tensors > 0


# --- steps


def _add_steps(s: Session, parts: Parts) -> Parts:
    """Return the parts with the steps in their content; all files of one save's directory get the same."""
    by_content = _find_pieces(s, parts, lambda piece: piece.content.step)
    found = dict[str, Steps]()  # by directory or path; maybe one shard of a set alone has the steps
    for p in parts:
        needs_content = (p.layout, p.piece) in by_content and not _is_settled(p)
        if needs_content and (report := s.reports.get(p.path)):
            steps = s.layouts.of(p).steps(p, report.metadata)
            if steps != _NO_STEPS or (p.home or p.path) not in found:
                found[p.home or p.path] = steps
    if found:
        parts = [p if _is_settled(p) else _take_steps(p, found.get(p.home or p.path)) for p in parts]
    return _add_steps_behind_links(s, parts, by_content)


def _is_settled(p: Part) -> bool:
    """Return True if a part lies in its save's own directory, whose name tells the step or epoch."""
    return bool(p.home) and _is_numbered(p)


def _read_steps(p: Part) -> Steps:
    return p.step, p.epoch, p.step_in_epoch


def _take_steps(p: Part, steps: Steps | None) -> Part:
    return p if steps is None else p._replace(step=steps[0], epoch=steps[1], step_in_epoch=steps[2])


def _add_steps_behind_links(s: Session, parts: Parts, by_content: set[tuple[str, str]]) -> Parts:
    """Return the parts; a link that nobody loads gets the step of its run's file of its size and time."""
    links = {(layout, name) for layout, name in by_content if not s.layouts[layout].piece(name).loaded}
    if not links:
        return parts
    targets = [p for p in parts if p.size >= 0 and _read_steps(p) != _NO_STEPS]
    steps = {(p.run, p.size, p.mtime_ns): _read_steps(p) for p in targets}
    lost = {p for p in parts if (p.layout, p.piece) in links and not p.home and _read_steps(p) == _NO_STEPS}
    return [_take_steps(p, steps.get((p.run, p.size, p.mtime_ns))) if p in lost else p for p in parts]
