"""Saves that hold a model alone although others of their run hold a state of training: exports, whatever
they are called.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ckpt_tools.discovery.sidecars import read_tracker
from ckpt_tools.layouts import Piece
from ckpt_tools.layouts.common.directories import is_of_the_best
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_LIMIT = 1 << 28
"""Bytes of an index that are searched at most."""
_NEWEST = 3
"""Files that are read to learn whether the saves of a run have an optimizer."""


def settle_exports(s: Session) -> None:
    """Make a save of a model alone a release. Where nothing is certain, it stays what its name says."""
    _settle_files(s)
    _settle_told(s)
    pieces = {(p.layout, p.piece) for p in s.found.parts}
    telling = {key: piece for key in pieces if (piece := s.layouts[key[0]].piece(key[1])).state_word}
    if not telling:
        return
    runs: dict[tuple[str, str], dict[str, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for p in s.found.parts:
        if (p.layout, p.piece) in telling:
            runs[p.layout, p.run][p.home].append(p)
    exported = {home for homes in runs.values() for home in _exports(s, list(homes.values()))}
    if exported:
        s.found.parts = [p._replace(kind=Kind.RELEASE) if p.home in exported else p for p in s.found.parts]


def _exports(s: Session, saves: Sequence[Sequence[Part]]) -> list[str]:
    """The directories of the saves of a run that are none of training; none where all are such."""
    if len(saves) < 2:
        return []
    words = [{_has_word(p, s.layouts.piece_of(p)) for p in same} for same in saves]
    if not any(True in has for has in words):
        return []
    without = [same for same, has in zip(saves, words, strict=True) if has == {False}]
    return [same[0].home for same in without if all(_sound(s, p) for p in same)]


def _has_word(p: Part, piece: Piece) -> bool | None:
    """None where the file cannot be read, or is too large."""
    data = read_tracker(p.path, _LIMIT)
    return None if isinstance(data, Finding) else piece.state_word in data


def _sound(s: Session, p: Part) -> bool:
    """Whether the file is whole: a damaged one may have lost the word."""
    return s.report(p, Level.STRUCTURE).verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)


def _settle_files(s: Session) -> None:
    """The same of files that are a save each. Those that were read already are compared, and with the newest
    of the others where none of them has an optimizer.
    """
    runs: dict[tuple[str, str], list[Part]] = defaultdict(list)
    parts = [p for p in s.found.parts if s.layouts.piece_of(p).state_key]
    above = {os.path.dirname(p.base) for p in parts if is_of_the_best(p.base)}
    for p in parts:  # a directory of the best is of the run beside it
        runs[p.layout, home if (home := os.path.dirname(p.base)) in above else p.run].append(p)
        if is_of_the_best(p.base):  # is it a model alone? Only those that were read are compared
            s.report(p, Level.STRUCTURE)
    exported = {path for run in runs.values() for path in _models_alone(s, run)}
    if exported:
        s.found.parts = [p._replace(kind=Kind.RELEASE) if p.path in exported else p for p in s.found.parts]


def _settle_told(s: Session) -> None:
    """The same of files of which those that hold a state count its steps."""
    runs: dict[tuple[str, str, int | None], list[Part]] = defaultdict(list)
    for p in s.found.parts:
        if s.layouts.piece_of(p).state_told and p.path in s.reports and _sound(s, p):
            runs[p.layout, p.base, p.rank].append(p)
    exported = {path for run in runs.values() for path in _weights_alone(s, run)}
    if exported:
        s.found.parts = [p._replace(kind=Kind.RELEASE) if p.path in exported else p for p in s.found.parts]


def _weights_alone(s: Session, run: Sequence[Part]) -> Iterator[str]:
    """The files of a run that count nothing and have only some of the entries of one that does."""
    counters = s.layouts.piece_of(run[0]).state_told
    names: dict[str, frozenset[str]] = {}

    def entries(p: Part) -> frozenset[str]:
        signature = s.known(p).signature  # of equal ones one is read
        if signature not in names:
            names[signature] = frozenset(t.name for t in s.inspect(p.path, Level.STRUCTURE)[1].tensors)
        return names[signature]

    told, others = list[Part](), list[Part]()
    for p in run:
        (others if s.known(p).metadata.keys().isdisjoint(counters) else told).append(p)
    states = {entries(p) for p in told} if others else set()
    for p in others if states else ():
        if any(entries(p) < state for state in states):
            yield p.path


def _models_alone(s: Session, run: Sequence[Part]) -> list[str]:
    """The files of a run that hold no optimizer's state; none where no file of it is known to hold one."""
    read = [p for p in run if p.path in s.reports and _sound(s, p)]
    without = [p for p in read if not _counts_updates(s, p)]
    if not without or (len(without) == len(read) and not _one_counts(s, run)):
        return []
    key = s.layouts.piece_of(run[0]).state_key
    return [
        p.path for p in without if (keys := s.inspect(p.path, Level.STRUCTURE)[1].keys) and key not in keys
    ]


def _one_counts(s: Session, run: Sequence[Part]) -> bool:
    """Whether one of the newest of those that were not read yet does; the very newest may be damaged."""
    unread = sorted((p for p in run if p.path not in s.reports), key=lambda p: -p.mtime_ns)
    return any(_counts_updates(s, p) for p in unread[:_NEWEST])


def _counts_updates(s: Session, p: Part) -> bool:
    """Whether a file tells how often its optimizer was asked to go on."""
    return "optimizer_step" in s.report(p, Level.STRUCTURE).metadata
