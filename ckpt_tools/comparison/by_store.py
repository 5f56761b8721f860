"""Compare files, of which at least one is in a store, by the checksums that it keeps, without its bytes."""

from __future__ import annotations

from ckpt_tools.checksum import Progress
from ckpt_tools.checksum.store_sums import Agreement, compared, to_work_out, work_out
from ckpt_tools.comparison.pairs import File
from ckpt_tools.formats.seals.document import known_digests
from ckpt_tools.model.store_checksum import StoreChecksums
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import ShortRead, opened
from ckpt_tools.storage.retry import status
from ckpt_tools.storage.urls import is_url


def agreement(
    sides: tuple[Session, Session], pair: tuple[File, File], jobs: int, progress: Progress
) -> Agreement | None:
    """Return what the store says; None where it says nothing that could be compared."""
    a, b = pair
    if a.size != b.size or a.size <= 0:
        return None
    try:
        if is_url(a.path) and is_url(b.path):
            sums = _told(sides[1], b).sums
            known = {s.algorithm: s.value for s in sums if s.whole and not s.claimed and not s.weak}
            return compared(_told(sides[0], a), known)
        local, other = (1, 0) if is_url(a.path) else (0, 1)
        told, file, seals = _told(sides[other], pair[other]), pair[local], sides[local].indexes.seals
        if not told.sums:
            return None
        if seals is not None:  # of a local file that was not written since it was sealed, by its times
            sealed = seals.unchanged(file.path, file.size, status(file.path).st_mtime_ns)
            if sealed is not None and (found := compared(told, known_digests(sealed))):
                return found
        return _work_out(told, file.path, jobs, progress)
    except (OSError, ShortRead):
        return None


def _work_out(told: StoreChecksums, path: str, jobs: int, progress: Progress) -> Agreement | None:
    of = to_work_out(told, to_prove=True)
    if of is None:
        return None
    with opened(path) as source:
        value = None if source.size != told.size else work_out(source, of, jobs=jobs, progress=progress)
        if value is None or source.changed():
            return None
    same = value == of.value
    return Agreement(same, of, value) if same or not of.weak else None


def _told(s: Session, f: File) -> StoreChecksums:
    return StoreChecksums(f.path, f.size) if s.evidence is None else s.evidence.told(f.path)
