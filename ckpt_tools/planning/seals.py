"""Seals below a root: whether each can be used, files that a seal does not name, and saves that left only a
seal: if such a save was later than the choice, it is never passed over in silence.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ckpt_tools.discovery import group as grouping
from ckpt_tools.discovery.seals import walk_up
from ckpt_tools.formats.seals.document import NAME, sealed_name
from ckpt_tools.inspection.seals import Known, Seals, inside, is_signature
from ckpt_tools.model.answers import FileReport
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.save import seal_mismatch
from ckpt_tools.reading.session import Session, with_findings


def check(s: Session, level: Level) -> tuple[list[FileReport], list[Finding]]:
    """Return reports on all seals, and files that none names. Runs last: fragments fill the memory."""
    seals, lost, out = s.indexes.seals, list[Finding](), list[FileReport]()
    if s.found.tree:
        lost += _find_lost_newest(s)  # before ``forget`` drops what seals say
    seals.forget()
    for seal in s.found.seals:
        report = s.report_file(seal.path, min(level, Level.CONTENT), seal.findings)
        out.append(FileReport(None, with_findings(report, seals.findings.get(seal.path, ()))))
    return out, [*lost, *_find_unnamed(s), *_find_unsigned(s)] if s.found.tree else lost


def _find_unnamed(s: Session) -> Iterator[Finding]:
    """Yield files in a sealed directory that no seal names. Fragments of a seal are not complete lists."""
    whole = defaultdict[str, list[Known]](list)
    for k in s.indexes.seals.known.values():
        if os.path.basename(k.path) == NAME:
            whole[k.base].append(k)
    for base, known in whole.items():
        sealed = {inside(base, f.path) for k in known for f in k.seal.files}
        unnamed = [path for path in _list_files(base) if path not in sealed]
        yield from seal_mismatch.describe_unnamed(unnamed, base)


def _find_unsigned(s: Session) -> Iterator[Finding]:
    """Yield files of a signed directory that its signature does not name."""
    if s.signatures is None:
        return
    for path in sorted(s.indexes.known):
        statement = s.signatures.valid(path) if is_signature(path) else None
        home = statement.home(path) if statement else ""
        if statement is None or not home:
            continue
        paths = {os.path.relpath(file, home): file for file in _list_files(home)}
        unsigned = sorted(n for n in paths if n not in statement.names and not statement.ignores(n))
        yield from seal_mismatch.describe_unnamed([paths[n] for n in unsigned], home, path)


def _list_files(base: str) -> Iterator[str]:
    """Yield the files in and below a directory, without directories that have a seal of their own."""
    sealed_apart = set[str]()
    for directory, entries in walk_up(base):
        if isinstance(entries, OSError):
            continue  # the walk of the tree has reported it
        if directory != base and (entries.has_seal or os.path.dirname(directory) in sealed_apart):
            sealed_apart.add(directory)
            continue
        yield from entries.files


# ---- saves of which only the seal is left


def find_later_lost_saves(
    s: Session, chosen: Checkpoint, step: int | None, others: Sequence[Checkpoint]
) -> Iterator[Finding]:
    """Yield warnings about saves beside the chosen one, but later, of which only the seal is left."""
    seals = s.indexes.seals
    seals.read_all(besides={p.home for c in others for p in c.parts if p.home})
    yield from map(_describe, _find_later(s, _find_without_files(seals), chosen, step, others))


def _find_lost_newest(s: Session) -> Iterator[Finding]:
    """Yield a warning per run if only its newest save left a seal alone: pruning removes older ones."""
    seals = s.indexes.seals
    if not seals.absent:
        return
    below = defaultdict[str, list[Known]](list)
    for known in _find_without_files(seals):
        for directory in {known.base, os.path.dirname(known.base)}:
            below[directory].append(known)
    for checkpoints in s.runs(grouping.group(s.parts, s.layouts)).values():
        in_order = sorted(checkpoints, key=lambda c: (c.order, c.path))
        oldest, newest = in_order[0], in_order[-1]
        near = {known.path: known for p in oldest.parts for known in below[os.path.dirname(p.home or p.path)]}
        later = list(_find_later(s, near.values(), oldest, oldest.step, checkpoints))
        if len(later) == 1 and _is_later(later[0], newest, newest.step):
            yield _describe(later[0])


def _find_later(
    s: Session, lost: Iterable[Known], than: Checkpoint, step: int | None, others: Sequence[Checkpoint]
) -> Iterator[Known]:
    """Yield seals of ``lost`` saves, beside the checkpoint ``than`` at ``step``, that were later than it."""
    present = {(c.layout, c.step, c.epoch, c.step_in_epoch) for c in others}
    homes = {p.home for p in than.parts if p.home}
    inside, above = {os.path.dirname(p.path) for p in than.parts}, {os.path.dirname(home) for home in homes}
    for known in lost:
        sealed = known.seal.checkpoint
        if sealed.layout is None and _get_sealed_path(known).endswith(s.layouts.unneeded_endings):
            continue  # a graph
        saved_again = (sealed.layout, sealed.step, sealed.epoch, sealed.step_in_epoch) in present
        beside = known.base in inside or (os.path.dirname(known.base) in above and known.base not in homes)
        if not saved_again and beside and _is_of_its_run(known, than) and _is_later(known, than, step):
            yield known


def _describe(known: Known) -> Finding:
    """Return the warning that of a sealed save only the seal is left."""
    return seal_mismatch.describe_lost_save(known.seal.checkpoint, _get_sealed_path(known), known.path)


def find_only_seals(s: Session) -> list[str]:
    """Return paths that were sealed and do not exist, if there is no checkpoint."""
    seals = s.indexes.seals
    seals.read_all()
    return sorted({_get_sealed_path(known) for known in _find_without_files(seals)} | set(seals.about))


def _find_without_files(seals: Seals) -> Iterator[Known]:
    """Return the seals whose files do not exist any more."""
    return (known for known in seals.known.values() if known.path in seals.absent)


def _get_sealed_path(known: Known) -> str:
    """Return the file or directory that a seal is for."""
    own = sealed_name(os.path.basename(known.path))
    return f"{known.base}/{own}" if own else known.base


def _is_of_its_run(known: Known, chosen: Checkpoint) -> bool:
    """Return True if a seal is of the chosen save's run, or does not tell."""
    sealed = known.seal.checkpoint
    if sealed.layout not in (None, chosen.layout) or sealed.kind in (Kind.RELEASE.value, Kind.BEST.value):
        return False
    return sealed.run is None or os.path.basename(sealed.run) == os.path.basename(chosen.run)


def _is_later(known: Known, chosen: Checkpoint, step: int | None) -> bool:
    """Return True if a sealed save is later than the chosen one, or neither step nor epoch tells."""
    sealed = known.seal.checkpoint
    if sealed.step is not None and step is not None:
        return sealed.step > step
    if sealed.epoch is not None and chosen.epoch is not None:
        return (sealed.epoch, sealed.step_in_epoch or 0) > (chosen.epoch, chosen.step_in_epoch or 0)
    return True
