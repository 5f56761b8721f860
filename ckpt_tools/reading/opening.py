"""Opens a session in which every file has its place: content tells the place if the name says too little."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from ckpt_tools.cache import Cache
from ckpt_tools.discovery.names import is_place_of_loop
from ckpt_tools.discovery.seals import read_tracker
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.layouts import Changes, Claim, Piece, Place, Purpose
from ckpt_tools.layouts.common.layout import Steps
from ckpt_tools.layouts.common.lost_files import held_by
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
    parts = _place_ambiguous(s, s.found.parts)
    s.parts = _add_steps(s, _mark_exports(s, _join_rolling(s, parts)))
    return s


def _find_pieces(s: Session, parts: Parts, wanted: Callable[[Piece], object]) -> set[tuple[str, str]]:
    """Return (layout, piece) of all parts whose piece is ``wanted``."""
    there = {(p.folder.layout, p.folder.piece) for p in parts}
    return {(layout, name) for layout, name in there if wanted(s.layouts[layout].piece(name))}


# --- the piece that an ambiguous name stands for


def _place_ambiguous(s: Session, parts: Parts) -> Parts:
    """Return the parts with a place for each ambiguous name, by content or by neighbours; others are bare."""
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
    """Yield damaged and unknown parts as pieces of the layouts and directories (``homes``) beside them."""
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
    held = held_by(p)
    return held.optimizer if held else _is_numbered(p)


def _is_damaged(piece: Piece, report: Report) -> bool:
    """Return True if a file cannot be read, or is well-formed without elements and without proof."""
    unseen = report.verdict is Verdict.UNKNOWN and any(f.code in NOT_SEEN for f in report.findings)
    empty = report.tensors == report.blank.empty and report.format in piece.formats
    return report.verdict is Verdict.BROKEN or unseen or (empty and not _fits(piece, report))


def _fits(piece: Piece, report: Report) -> bool:
    """Return True if a file's content is that of a piece with an ambiguous name."""
    proof = piece.content.proof
    return report.format in piece.formats and (not proof or proof in report.metadata)


def _fits_place(to: Place, report: Report) -> bool:
    return _fits(to.piece, report)


def _find_place(s: Session, p: Part, wanted: Callable[[Place], bool], *, loop: bool = True) -> Place | None:
    """Return the first ``wanted`` place that an ambiguous name fits, else a loop's save's below ROOT."""
    at_home = s.layouts.templates().places(os.path.dirname(p.path))
    fit = (to for to in at_home if to.piece.claim is Claim.WEAK and to.piece.file.fullmatch(p.name))
    places = [to for to in fit if is_place_of_loop(to, p.name, s.root)]
    loops = [to for to in places if loop and to.layout.is_last_resort]
    return next(iter([*filter(wanted, places), *loops]), None)


def _move(s: Session, p: Part, to: Place | None) -> Parts:
    """Return the part at another place, in a list; without a place an empty list, and the file is bare."""
    if to is None:
        s.make_bare(p)
        return []
    piece = to.piece
    p = p._replace(layout=to.layout.name, piece=piece.name, role=piece.role, kind=piece.kind, base=to.base)
    if not to.layout.is_last_resort:
        return [p]
    match = piece.file.fullmatch(p.name)
    fields = match.groupdict() if match else {}
    step, epoch = (int(n) if (n := fields.get(key)) else None for key in ("step", "epoch"))
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
    return not (p.home or _is_numbered(p) or s.layouts.of(p).is_last_resort)


def _is_numbered(p: Part) -> bool:
    return (p.step, p.epoch) != (None, None)


def _join_save(s: Session, p: Part, saves: Parts) -> Part:
    """Return the part with the numbers of the only save whose steps it tells, else of the one of its time."""
    report = s.report(p, Level.STRUCTURE)
    if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
        return p
    told = s.layouts.of(p).steps(p, report.metadata)[0]
    with_it = [o for o in saves if told is not None and told in (o.step, _count_steps(o))]
    with_it = with_it or [o for o in saves if were_written_together(p, o)]
    if len({(o.step, o.epoch, o.step_in_epoch) for o in with_it}) != 1:
        return p
    of = min(with_it, key=lambda o: abs(o.mtime_ns - p.mtime_ns))
    return p._replace(step=of.step, epoch=of.epoch, step_in_epoch=of.step_in_epoch, generation=of.generation)


def _count_steps(p: Part) -> int | None:
    """Return the steps at the end of an epoch, if each epoch has as many as the name says; else None."""
    return p.epoch * p.step_in_epoch if p.epoch is not None and p.step_in_epoch is not None else None


# --- saves of a model alone although others of their run hold a state of training


def _mark_exports(s: Session, parts: Parts) -> Parts:
    """Return the parts; a save of a model alone becomes a release if that is certain."""
    telling = _find_pieces(s, parts, lambda piece: piece.content.tells_exports)
    mine = [p for p in parts if (p.layout, p.piece) in telling] if telling else []
    exported = {*_find_without_key(s, mine), *_find_without_counters(s, mine), *_find_without_word(s, mine)}
    if not exported:
        return parts
    return [p._replace(kind=Kind.RELEASE) if exported & {p.path, p.home} else p for p in parts]


def _is_sound(s: Session, p: Part) -> bool:
    """Return False for a damaged file, which may have lost the entries that tell."""
    return s.report(p, Level.STRUCTURE).verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)


def _is_of_the_best(directory: str) -> bool:
    return directory.rpartition("/")[2].lower().startswith("best")


def _find_without_key(s: Session, parts: Parts) -> Iterator[str]:
    """Yield files without an optimizer's state, in runs where a file that was read, or is new, has one."""
    runs: dict[tuple[str, str], Parts] = defaultdict(list)
    parts = [p for p in parts if s.layouts.piece_of(p).content.state_key]
    above = {os.path.dirname(p.base) for p in parts if _is_of_the_best(p.base)}
    for p in parts:  # a directory of the best is of the run beside it
        runs[p.layout, home if (home := os.path.dirname(p.base)) in above else p.run].append(p)
        if _is_of_the_best(p.base):  # is it a model alone? Only those that were read are compared
            s.report(p, Level.STRUCTURE)
    for run in runs.values():
        yield from _find_models_alone(s, run)


def _find_models_alone(s: Session, run: Parts) -> Iterator[str]:
    """Yield files of a run that were read and have tensors, but no optimizer's state or counter."""
    read = [p for p in run if p.path in s.reports and _is_sound(s, p)]
    without = [p for p in read if not _counts_updates(s, p)]
    if without and len(without) == len(read):  # the very newest may be damaged
        unread = sorted((p for p in run if p.path not in s.reports), key=lambda p: -p.mtime_ns)
        without = without if any(_counts_updates(s, p) for p in unread[:_NEWEST]) else []
    yield from (p.path for p in without if s.known(p).tensors and not s.known(p).held.optimizer)


def _counts_updates(s: Session, p: Part) -> bool:
    return "optimizer_step" in s.report(p, Level.STRUCTURE).metadata


def _find_without_counters(s: Session, parts: Parts) -> Iterator[str]:
    """Yield files that count nothing and have only some of the entries of a file of their run that does."""
    runs: dict[tuple[str, str, int | None], Parts] = defaultdict(list)
    for p in parts:
        if s.layouts.piece_of(p).content.state_told and p.path in s.reports and _is_sound(s, p):
            runs[p.layout, p.base, p.rank].append(p)
    for run in runs.values():
        yield from _find_partial(s, run)


def _find_partial(s: Session, run: Parts) -> Iterator[str]:
    """Yield files of a run that count nothing, and whose tensors are only some of a file's that counts."""
    counters = s.layouts.piece_of(run[0]).content.state_told
    counting = [p for p in run if not s.known(p).metadata.keys().isdisjoint(counters)]
    others = [p for p in run if s.known(p).metadata.keys().isdisjoint(counters)]
    if not counting or not others:
        return
    names: dict[str, frozenset[str]] = {}
    for p in (*counting, *others):
        if (signature := s.known(p).signature) not in names:  # of files with equal tensors one is read
            names[signature] = frozenset(t.name for t in s.inspect(p.path, Level.STRUCTURE)[1].tensors)
    states = {names[s.known(p).signature] for p in counting}
    yield from (p.path for p in others if any(names[s.known(p).signature] < state for state in states))


def _find_without_word(s: Session, parts: Parts) -> Iterator[str]:
    """Yield directories of saves without the word of a training state, in runs where other saves have it."""
    runs: dict[tuple[str, str], dict[str, Parts]] = defaultdict(lambda: defaultdict(list))
    for p in parts:
        if s.layouts.piece_of(p).content.state_word:
            runs[p.layout, p.run][p.home].append(p)
    for homes in runs.values():
        words = {home: {_has_word(s, p) for p in same} for home, same in homes.items() if len(homes) > 1}
        if any(True in has for has in words.values()):
            without = (home for home, has in words.items() if has == {False})
            yield from (home for home in without if all(_is_sound(s, p) for p in homes[home]))


def _has_word(s: Session, p: Part) -> bool | None:
    """Return True if a file has its piece's ``state_word``; None if it cannot be read, or is too large."""
    data = read_tracker(p.path, _LIMIT)
    return None if isinstance(data, Finding) else s.layouts.piece_of(p).content.state_word in data


# --- steps


def _add_steps(s: Session, parts: Parts) -> Parts:
    """Return the parts with the steps in their content; the files of one save's directory have one step."""
    silent = _find_pieces(s, parts, lambda piece: piece.content.step)
    asked = [p for p in parts if (p.layout, p.piece) in silent and not (p.home and _is_numbered(p))]
    told, out = _read_steps(s, asked), Parts()
    if not silent:
        return parts
    for p in parts:
        said = None if p.home and _is_numbered(p) else told.get(p.home or p.path)
        out.append(p._replace(step=said[0], epoch=said[1], step_in_epoch=said[2]) if said else p)
    return _add_steps_behind_links(s, out, silent)


def _read_steps(s: Session, parts: Parts) -> dict[str, Steps]:
    """Return directory (or path) -> steps in its files; it may be that one shard of a set alone has them."""
    told = dict[str, Steps]()
    for p in parts:
        if report := s.reports.get(p.path):
            steps = s.layouts.of(p).steps(p, report.metadata)
            if steps != _NO_STEPS or (p.home or p.path) not in told:
                told[p.home or p.path] = steps
    return told


def _add_steps_behind_links(s: Session, parts: Parts, silent: set[tuple[str, str]]) -> Parts:
    """Return the parts; a link that nobody loads gets the step of its run's file of its size and time."""
    beside = {(one, name) for one, name in silent if not s.layouts[one].piece(name).loaded}

    def is_lost(p: Part) -> bool:
        silent = (p.layout, p.piece) in beside and not p.home and p.size >= 0
        return silent and (p.step, p.epoch, p.step_in_epoch) == _NO_STEPS

    if not beside or not any(map(is_lost, parts)):
        return parts
    of = {
        (p.run, p.size, p.mtime_ns): p
        for p in parts
        if p.step is not None or (not p.home and (p.epoch, p.step_in_epoch) != (None, None))
    }
    out = Parts()
    for p in parts:
        to = of.get((p.run, p.size, p.mtime_ns)) if is_lost(p) else None
        out.append(p._replace(step=to.step, epoch=to.epoch, step_in_epoch=to.step_in_epoch) if to else p)
    return out
