"""The order in which files are read when only a part of the contents is read. Nothing is read here."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from ckpt_tools.cache.codec import Seen
from ckpt_tools.checksum import Blocks, Picked
from ckpt_tools.model.finding import Verdict, worst
from ckpt_tools.model.frozen import field, record, replace
from ckpt_tools.reading.history import turn
from ckpt_tools.reading.request import Request
from ckpt_tools.settings.sample_size import Share
from ckpt_tools.storage import Identity


@record
class File:
    """``home`` is a number that its place in the tree gives it, ``times`` has one for each of its ``blocks``,
    ``done`` those that this run has read. ``picked`` is being read, of the file that ``identity`` tells.
    """

    request: Request
    home: int
    seen: Seen | None = None
    blocks: Blocks = field(default_factory=Blocks)
    times: array[int] = field(default_factory=lambda: array("q"))
    done: set[int] = field(default_factory=set)
    picked: Picked | None = None
    identity: Identity | None = None
    looks: int = 0

    def size(self, numbers: Iterable[int]) -> int:
        """The bytes of some blocks."""
        return sum(self.blocks.lengths[k] for k in numbers)


Todo = list[tuple[File, Sequence[int]]]
"""Blocks of files, in the order in which they are to be read."""


def in_turn(files: Sequence[File], share: Share | None, seed: int) -> Todo:
    """All blocks that belong to the share: those least recently checked first, files that were begun before
    others, and then at random, so that no file is always the last.
    """
    import xxhash

    rows: list[tuple[int, bool, int, int, array[int]]] = []
    for i, f in enumerate(files):
        groups: dict[int, array[int]] = {}
        for k, t in enumerate(f.times):
            if share is None or share.has(f.home, k):
                groups.setdefault(turn(t), array("q")).append(k)
        chance, new = xxhash.xxh3_64_intdigest(i.to_bytes(8, "big"), seed), not any(t > 0 for t in f.times)
        rows += ((key, new, chance, i, numbers) for key, numbers in groups.items())
    rows.sort(key=lambda row: row[:4])
    return [(files[i], numbers) for *_, i, numbers in rows]


def first(rows: Todo, limit: int | None) -> Todo:
    """The first of them that have ``limit`` bytes together, or a block more."""
    if limit is None:
        return rows
    out = Todo()
    for f, numbers in rows:
        if limit <= 0:
            break
        some = list(_until(f, numbers, limit))
        limit -= f.size(some)
        out.append((f, some))
    return out


def _until(f: File, numbers: Iterable[int], room: int) -> Iterator[int]:
    for k in numbers:
        if room <= 0:
            return
        room -= f.blocks.lengths[k]
        yield k


def by_file(todo: Todo) -> Todo:
    """Each file in one go, by their paths: for where all is read in any case."""
    out: dict[str, tuple[File, list[int]]] = {}
    for f, numbers in todo:
        out.setdefault(f.request.path, (f, []))[1].extend(numbers)
    return [out[path] for path in sorted(out)]


def rounds(todo: Todo) -> Iterator[Todo]:
    """The same in as many pieces as are needed for no file to be twice in one."""
    out, paths = Todo(), set[str]()
    for f, numbers in todo:
        if f.request.path in paths:
            yield out
            out, paths = Todo(), set()
        out.append((f, numbers))
        paths.add(f.request.path)
    yield out


def joined(before: Seen | None, seen: Seen) -> Seen:
    """Two looks at one file: what either found."""
    if before is None:
        return seen
    findings = tuple(dict.fromkeys((*before.report.findings, *seen.report.findings)))
    verdict = (
        Verdict.UNKNOWN
        if Verdict.UNKNOWN in (before.report.verdict, seen.report.verdict)
        else worst(findings)
    )
    report = replace(
        seen.report,
        findings=findings,
        verdict=verdict,
        bytes_read=before.report.bytes_read + seen.report.bytes_read,
    )
    return Seen(report, seen.places, seen.identity if seen.identity == before.identity else None)
