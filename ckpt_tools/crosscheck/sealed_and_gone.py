"""Checkpoints of which only the seal is left: one that was later than the choice is never passed over in
silence, and where nothing else is there the job was started before.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ckpt_tools.discovery import group as grouping
from ckpt_tools.findings import finding
from ckpt_tools.formats.seals.names import of_one_file
from ckpt_tools.inspection.seals import Known, Seals
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind
from ckpt_tools.model.seal import SealedCheckpoint
from ckpt_tools.reading.session import Session


def later_and_gone(
    session: Session, chosen: Checkpoint, step: int | None, others: Sequence[Checkpoint]
) -> Iterator[Finding]:
    """Warnings about sealed checkpoints beside the chosen one (at ``step``) that would have gone before it,
    and of which nothing is left that could be a candidate. ``others`` are the checkpoints that are there.
    """
    seals = session.indexes.seals
    if seals is None:
        return
    seals.read_all(besides={p.home for c in others for p in c.parts if p.home})
    yield from map(_said, _later(session, _without_files(seals), chosen, step, others))


def newest_gone(session: Session) -> Iterator[Finding]:
    """The same of the newest checkpoint of each run, if it alone is gone: who prunes by age removes older
    ones, and who keeps the best removes any, also between those that are left.
    """
    seals = session.indexes.seals
    if seals is None or not seals.absent:
        return
    below = defaultdict[str, list[Known]](list)
    for known in _without_files(seals):
        for directory in {known.base, os.path.dirname(known.base)}:
            below[directory].append(known)
    for checkpoints in session.runs(grouping.group(session.parts, session.layouts)).values():
        in_order = sorted(checkpoints, key=lambda c: (c.order, c.path))
        oldest, newest = in_order[0], in_order[-1]
        near = {known.path: known for p in oldest.parts for known in below[os.path.dirname(p.home or p.path)]}
        gone = list(_later(session, near.values(), oldest, oldest.step, checkpoints))
        if len(gone) == 1 and _is_later(gone[0], newest, newest.step):
            yield _said(gone[0])


def _later(
    session: Session,
    gone: Iterable[Known],
    than: Checkpoint,
    step: int | None,
    others: Sequence[Checkpoint],
) -> Iterator[Known]:
    """The seals among those of what is ``gone`` that are of later saves than a checkpoint at ``step``, and
    beside it.
    """
    there = {(c.layout, c.step, c.epoch, c.step_in_epoch) for c in others}
    homes = {p.home for p in than.parts if p.home}
    inside, above = {os.path.dirname(p.path) for p in than.parts}, {os.path.dirname(home) for home in homes}
    for known in gone:
        was = known.seal.checkpoint
        if was.layout is None and _place(known).endswith(session.layouts.unneeded_endings):
            continue  # a graph
        same = (was.layout, was.step, was.epoch, was.step_in_epoch) in there
        beside = known.base in inside or (os.path.dirname(known.base) in above and known.base not in homes)
        if not same and beside and _is_of_its_run(known, than) and _is_later(known, than, step):
            yield known


def _said(known: Known) -> Finding:
    why = f"a checkpoint at {_when(known.seal.checkpoint)} was sealed here, and its files are not there"
    hint = f"bring it back; if it was removed on purpose, remove its seal, {known.path}, as well"
    return finding("seal-missing", why, path=_place(known), severity=Severity.WARNING, hint=hint)


def only_seals(session: Session) -> list[str]:
    """What was sealed and is not there, where there is no checkpoint."""
    seals = session.indexes.seals
    if seals is None:
        return []
    seals.read_all()
    return sorted({_place(known) for known in _without_files(seals)} | set(seals.about))


def _when(was: SealedCheckpoint) -> str:
    """When a sealed checkpoint was saved, as far as its seal tells."""
    if was.step is not None:
        return f"step {was.step:,}"
    if was.epoch is None:
        return "a step that nothing tells"
    within = "" if was.step_in_epoch is None else f", step {was.step_in_epoch:,} of it"
    return f"epoch {was.epoch:,}{within}"


def _without_files(seals: Seals) -> Iterator[Known]:
    """The seals that name a file that is not there."""
    yield from (known for known in seals.known if known.path in seals.absent)


def _place(known: Known) -> str:
    """The file or directory that a seal is of."""
    own = of_one_file(os.path.basename(known.path))
    return f"{known.base}/{own}" if own else known.base


def _is_of_its_run(known: Known, chosen: Checkpoint) -> bool:
    """Whether a seal is of the chosen one's run, as far as it tells."""
    was = known.seal.checkpoint
    if was.layout not in (None, chosen.layout) or was.kind in (Kind.RELEASE.value, Kind.BEST.value):
        return False
    return was.run is None or os.path.basename(was.run) == os.path.basename(chosen.run)


def _is_later(known: Known, chosen: Checkpoint, step: int | None) -> bool:
    """Whether it was saved after the chosen one; so it is taken where nothing tells."""
    was = known.seal.checkpoint
    if was.step is not None and step is not None:
        return was.step > step
    if was.epoch is not None and chosen.epoch is not None:
        return (was.epoch, was.step_in_epoch or 0) > (chosen.epoch, chosen.step_in_epoch or 0)
    return True
