"""What a damaged file can be mended with, each piece proven by a checksum that is stored: the same bytes of a
copy, or the one bit that a CRC tells.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from ckpt_tools.checksum import Sum, mismatches
from ckpt_tools.checksum.single_bit import flipped_bit, odds
from ckpt_tools.guard.repair.damage import (
    Bench,
    Damaged,
    crc_of,
    crcs_of_chunks,
    extents_of,
    length_of,
    place_in_file,
)
from ckpt_tools.guard.repair.patched import Patch, Patched
from ckpt_tools.inspection.digest_pass import counters
from ckpt_tools.storage import LocalSource, Source

_ROUNDS = 4
_TRIED = 4 << 30
"""Bytes of a file at most that is written to a temporary place to see whether it is mended."""
_BLOCK_TRIED = 8 << 20


class Copies(NamedTuple):
    """Files that may hold what a damaged one has lost: of its name in other trees, and files of its
    checkpoint that have its role and its size.
    """

    named_alike: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


class Mended(NamedTuple):
    """How a file can be mended. ``whole`` is the file that takes its place as it is; else ``patches`` are the
    bytes that change, and ``tail`` replaces all from its offset on. ``odds`` is the probability at most that
    the repair is wrong, 0 where it has a witness beside the checksum that it was worked out from. ``why`` is
    for people.
    """

    why: str
    patches: tuple[Patch, ...] = ()
    whole: str = ""
    odds: float = 0.0
    tail: Patch | None = None


def mend(bench: Bench, damaged: Damaged, copies: Copies) -> Mended | None:
    """The first way in the order of evidence; None where there is none."""
    if (damaged.wrong or damaged.beside) and (found := _patched(bench, damaged, copies)):
        return found
    return next(_whole(bench, damaged, copies), None) or _directory(bench, damaged) or _index(bench, damaged)


def _index(bench: Bench, damaged: Damaged) -> Mended | None:
    """The index of a sharded model, from its shards."""
    from ckpt_tools.guard.repair.indexes import written_anew  # few need it

    made = written_anew(bench, damaged.path) if damaged.path.endswith(".index.json") else None
    if made is None:
        return None
    return Mended("written anew from its shards", tail=Patch(0, len(made.data), made.data))


def _directory(bench: Bench, damaged: Damaged) -> Mended | None:
    """A torch archive that has lost its directory and nothing else."""
    if damaged.report.format != "torch_zip":
        return None
    from ckpt_tools.guard.repair.archive import rebuilt  # few need it

    found = rebuilt(damaged.path)
    if found is None or found[0] > _TRIED:
        return None
    tail = Patch(found[0], len(found[1]), found[1])
    with LocalSource(damaged.path) as source, tempfile.TemporaryDirectory(prefix="ckpt-repair-") as home:
        trial = os.path.join(home, os.path.basename(damaged.path))
        _write(trial, source, tail.offset, tail.data)
        now = bench.look(trial, instead_of=damaged.path)
    if now.is_damaged or now.wrong:
        return None
    return Mended("its directory written anew: every record fits its own CRC, and none is missing", tail=tail)


def _write(path: str, source: Source, length: int, tail: bytes = b"") -> None:
    with open(path, "wb") as out:
        out.writelines(
            source.read(at, min(_BLOCK_TRIED, length - at)) for at in range(0, length, _BLOCK_TRIED)
        )
        out.write(tail)


def _patched(bench: Bench, damaged: Damaged, copies: Copies) -> Mended | None:
    """The bytes that make every checksum fit. Where more than what they cover is damaged, where they lie and
    what they say may be known only when some of it is mended: then it is tried on a copy.
    """
    size = damaged.report.size
    with ExitStack() as files:
        source = files.enter_context(LocalSource(damaged.path))
        tried = (*copies.named_alike, *copies.beside)
        same = (path for path in tried if os.path.getsize(path) == size)
        others: dict[str, Source] = {path: files.enter_context(LocalSource(path)) for path in same}
        found = _Patches(bench, source, others)
        if damaged.by_checksums_alone:
            found.add(damaged)
            if not any(map(found.differs, damaged.sums)):
                return found.mended(damaged)
            found.forget()
        if size > _TRIED:
            return None
        home, now = files.enter_context(tempfile.TemporaryDirectory(prefix="ckpt-repair-")), damaged
        for _ in range(_ROUNDS):
            before = len(found.patches)
            found.add(now)
            if len(found.patches) == before:
                return None
            trial = found.written(os.path.join(home, os.path.basename(damaged.path)))
            now = bench.look(trial, instead_of=damaged.path)
            if not now.is_damaged and not now.wrong:
                return found.mended(now)
        return None


class _Patches:
    """What was found so far, over the damaged file."""

    def __init__(self, bench: Bench, source: Source, others: dict[str, Source]) -> None:
        self.bench, self.source, self.others = bench, source, others
        self.patches, self.by_bit = list[Patch](), dict[Patch, Sum]()

    def forget(self) -> None:
        """Begin anew."""
        self.patches, self.by_bit = [], {}

    @property
    def now(self) -> Source:
        """The file as it would be."""
        return Patched(self.source, self.patches, self.others)

    def differs(self, s: Sum) -> bool:
        return any(True for _ in mismatches(self.now, [s], jobs=1))

    def add(self, damaged: Damaged) -> None:
        """Mend what a look has shown, each checksum by itself, those of few bytes first."""
        for wrong in _smallest_first(damaged):
            if not self.differs(wrong):
                continue  # mended by what another one told
            if new := _from_copy(wrong, self.others):
                self.patches += new
            elif new := _from_bit(self.now, wrong):
                self.patches += new
                self.by_bit.update(dict.fromkeys(new, wrong))

    def written(self, path: str) -> str:
        """The file as it would be, at ``path``."""
        _write(path, self.now, self.source.size)
        return path

    def mended(self, sound: Damaged) -> Mended:
        """``sound`` is the last look, whose checksums all fit now."""
        doubtful = (s for p, s in self.by_bit.items() if not _witnessed(self.now, p, s, self.bench, sound))
        chance = sum(odds(length_of(s)) for s in doubtful)
        return Mended(_words(self.patches, self.by_bit), tuple(self.patches), odds=min(1.0, _up(chance)))


def _up(chance: float) -> float:
    """Two significant digits of a probability, rounded up: it is said, and said back."""
    if not chance:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(chance)) - 1)
    return float(f"{math.ceil(chance / unit) * unit:.1e}")


def _smallest_first(damaged: Damaged) -> list[Sum]:
    """What may not fit: of few bytes a flipped bit is told with less doubt, and CRCs alone tell one."""
    rows = dict.fromkeys((*damaged.wrong, *damaged.beside))
    return sorted(rows, key=lambda s: (crc_of(s) is None, length_of(s)))


def _from_copy(s: Sum, others: dict[str, Source]) -> list[Patch]:
    """The bytes that a sum covers, from the first copy in which they fit it."""
    extents = extents_of(s)
    if extents is None:
        extents = [p for p in s.pieces if not isinstance(p, bytes)]  # type: ignore[misc]
    for path, other in others.items():
        if next(iter(mismatches(other, [s], jobs=1)), None) is None:
            return [Patch(e.offset, e.length, copy_of=path) for e in extents]
    return []


def _from_bit(source: Source, s: Sum) -> list[Patch]:
    """The one byte that fits, if the CRC tells that one bit of it was flipped."""
    crc = crc_of(s)
    if crc is None or not isinstance(s.expected, int):
        return []
    told = next(iter(mismatches(source, [s], jobs=1)), None)
    if told is None or not isinstance(told[1], int):
        return []
    flip = flipped_bit(crc, told[1] ^ s.expected, length_of(s))
    place = place_in_file(s, flip.offset) if flip else None
    if flip is None or place is None:
        return []
    (old,) = source.read(place, 1)
    return [Patch(place, 1, bytes([old ^ 1 << flip.bit]))]


def _witnessed(now: Source, p: Patch, by: Sum, bench: Bench, sound: Damaged) -> bool:
    """Whether another checksum than the one that a bit was worked out from covers it as well, and fits."""
    others = [s for s in sound.sums if s != by and _covers(s, p)]
    if file := bench.sealed(now.path):
        others += (s for pair in crcs_of_chunks(file, now.size) for s in pair if s != by and _covers(s, p))
    return any(next(iter(mismatches(now, [s], jobs=1)), None) is None for s in others)


def _covers(s: Sum, p: Patch) -> bool:
    return any(e.offset <= p.offset < e.offset + e.length for e in extents_of(s) or ())


def _words(patches: Sequence[Patch], used: dict[Patch, Sum]) -> str:
    said = []
    copied = {p.copy_of for p in patches if p.copy_of}
    if copied:
        n = sum(p.length for p in patches if p.copy_of)
        said.append(f"{n:,} bytes from {', '.join(sorted(copied))}, which fit the stored checksums")
    said += (
        f"one flipped bit in byte {p.offset:,}, told by the checksum of {s.what}" for p, s in used.items()
    )
    return "; ".join(said)


def _whole(bench: Bench, damaged: Damaged, copies: Copies) -> Iterator[Mended]:
    """Copies that are sound in the place of the file, and provably of the same save.

    Without a seal only a file of the same name counts, whose content tells the step that the damaged one must
    have, and whose bytes are the same as far as there are any: a backup of an older step, another rank's file
    or another run's is none, however much of it is alike.
    """
    is_sealed = bench.sealed(damaged.path) is not None
    for path in (*copies.named_alike, *copies.beside) if is_sealed else copies.named_alike:
        other = bench.look(path, instead_of=damaged.path)
        if other.is_damaged or other.report.format is None or other.report.format != damaged.report.format:
            continue
        if is_sealed:
            yield Mended(f"as a whole from {path}, which is what was sealed", whole=path)
        elif _of_one_save(bench, damaged, other) and _alike(damaged.path, path):
            yield Mended(f"as a whole from {path}, which is sound, of the same step, and alike", whole=path)


def _of_one_save(bench: Bench, damaged: Damaged, other: Damaged) -> bool:
    """Whether the content of a copy tells where in training it was saved, and that is where the damaged file
    must be from.
    """
    part = bench.parts.get(damaged.path)
    if part is None:
        return False
    nameless = part._replace(step=None, epoch=None, step_in_epoch=None)
    told = bench.session.layouts.of(part).steps(nameless, other.report.metadata)
    pairs = zip(told, (part.step, part.epoch, part.step_in_epoch), strict=True)
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if known:
        return all(a == b for a, b in known)
    named = part.epoch if part.step is None else part.step
    return named is not None and named in counters(other.report.metadata).values()


_BLOCK = 4096
_MANY = 64
_FEW_BYTES = 16


def _alike(damaged: str, other: str) -> bool:
    """Whether a damaged file has the bytes of another: all that are left where it is cut, at least half of
    them; else all but one block of many, or a few bytes.
    """
    with LocalSource(damaged) as a, LocalSource(other) as b:
        if not b.size / 2 <= a.size <= b.size:
            return False
        blocks = [(at, min(_BLOCK, a.size - at)) for at in range(0, a.size, _BLOCK)]
        differing = [(at, n) for at, n in blocks if a.read(at, n) != b.read(at, n)]
        if a.size < b.size or len(differing) > 1:
            return not differing
        if len(blocks) >= _MANY:
            return True
        places = (zip(a.read(at, n), b.read(at, n), strict=True) for at, n in differing)
        return sum(x != y for pairs in places for x, y in pairs) <= _FEW_BYTES
