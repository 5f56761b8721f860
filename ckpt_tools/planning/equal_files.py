"""Which files of a run are equal: by digests of a few pages of each, then by all bytes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.inspection.digests import PAGE, PAGES, page_digests
from ckpt_tools.inspection.recognise import gives_format
from ckpt_tools.layouts import Changes
from ckpt_tools.layouts.common.counters import read_all_steps
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level, Tensor
from ckpt_tools.planning.facts import StateFile
from ckpt_tools.planning.rules.pair.same_content import RULE, check
from ckpt_tools.planning.rules.rule import Effect, finding_of
from ckpt_tools.reading.scheduler import FILES_OF_STORE
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import Identity, ShortRead, Source, opened
from ckpt_tools.storage.stalls import Threads
from ckpt_tools.storage.urls import is_url

if TYPE_CHECKING:
    from concurrent.futures import Future

_WRITERS = 4
"""Files that a rank writes at the same time, at most (DCP's thread_count, 2 in Megatron-core)."""
_FEW = 32
"""Bytes of a file, at most, that may hold no more than a number."""
_NO_STATE = ("rng", "scheduler", "metadata", "index", "data")
_COUNTED = re.compile(r"/(?:iter|iteration|step|global_step|checkpoint)[_-]?([0-9]{1,18})(?=/)")
_ASKED = 64
"""How many tensors of a file in a store are compared at most: each is a request."""
_BLOCK = 1 << 20
_LEAST = 512
"""How many other files are read for digests, or twice as many as there are parts if that is more."""


class Contradiction(NamedTuple):
    """What is wrong with a file beside others; ``twin`` is the equal file if either may be the copy."""

    path: str
    finding: Finding
    twin: Part | None = None


class EqualFiles:
    """Finds equal files of one run. Each file is opened once for its digest, however often it is asked."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._pages: dict[str, bytes] = {}
        self._equal_pairs: dict[frozenset[str], bool] = {}  # by two paths, if all bytes were compared

    def find_copies(self, parts: Sequence[Part], others: Sequence[Part] = ()) -> Iterator[Contradiction]:
        """Yield ``parts`` that equal a file (of ``others`` too) of another step, rank or role."""
        read = [p for p in parts if p.path in self.session.reports]
        if not any(is_compared(p, self.session) for p in read):
            return
        known, done = {p.path: p for p in (*read, *others)}, set[tuple[str, Severity | None]]()
        for hit in check(self._make_facts(read, others)):
            if (hit.path, hit.severity) in done:
                continue
            pair = frozenset((hit.path, hit.other))
            if pair not in self._equal_pairs:
                self._equal_pairs[pair] = are_equal(known[hit.path], known[hit.other], self.session)
            if self._equal_pairs[pair]:
                done.add((hit.path, hit.severity))
                twin = known[hit.other] if hit.effect is Effect.ASK else None
                yield Contradiction(hit.path, finding_of(RULE, hit), twin)

    def _make_facts(self, parts: Sequence[Part], others: Sequence[Part]) -> list[StateFile]:
        """Return the facts of files whose content is known; reads pages of them."""
        reports = [self.session.reports.get(p.path) for p in (*parts, *others)]
        self._pages |= {r.path: r.pages for r in reports if r is not None and r.pages}
        contents = digest_pages(parts, others, self.session, self._pages)
        mine = {p.path for p in parts} - find_files_of_one_tensor(parts, self.session)
        files = defaultdict[bytes, list[Part]](list)
        for p in (*parts, *others):
            if p.path in contents:
                files[contents[p.path]].append(p)
        rows = ((p, content, len(same) > 1) for content, same in files.items() for p in same)
        return [self._make_fact(p, content, p.path in mine, shared=shared) for p, content, shared in rows]

    def _make_fact(self, p: Part, content: bytes, mine: bool, *, shared: bool) -> StateFile:
        """Return the facts of a file; if no other has its ``content`` (not ``shared``), only that counts."""
        s, report = self.session, self.session.reports.get(p.path)
        compared = shared and mine and is_compared(p, s)
        dated = s.layouts.of(p).counting.dated
        date = dated.fullmatch(p.home.rpartition("/")[2]) if dated is not None else None
        has_tensors = report is not None and report.tensors > 0
        return StateFile(
            path=p.path,
            role=p.role,
            kind=p.kind,
            home=p.home,
            when=(*find_when(p), int("".join(filter(str.isdigit, date[1]))) if date else -1),
            series=make_series_key(p),
            content=content,
            compared=compared,
            broken=not p.size or (report is not None and report.verdict is Verdict.BROKEN),
            trained=compared and self._is_trained(p),
            indexed=is_indexed(p, s),
            fits=shared and p.size > 0 and self._tells_its_name(p),
            state=compared
            or p.role in ("model", "optimizer")
            or (has_tensors and p.role not in _NO_STATE and p.path not in s.indexes.known),
        )

    def _is_trained(self, p: Part) -> bool:
        """Return True if a file is an optimizer's state, or has one among its tensors."""
        always_changes = self.session.layouts.piece_of(p).changes is Changes.MOVES
        is_optimizer = p.role == "optimizer" or is_optimizer_state(p.name)
        return always_changes or is_optimizer or self.session.known(p).held.moments

    def _tells_its_name(self, p: Part) -> bool:
        """Return True if a file's content tells the name or the step that its path has."""
        metadata = self.session.known(p).metadata
        name = metadata.get("archive_name")
        return bool(name and p.name.startswith(f"{name}.")) or (p.step in read_all_steps(metadata))


def is_compared(p: Part, s: Session) -> bool:
    """Return True if a file holds a model or an optimizer's state that would be loaded and may change.

    Metadata and indexes may be equal in all saves: they are compared with names instead. So may files that
    only an index names (``data``): many hold a setting, or one tensor that is frozen.
    """
    piece, report = s.layouts.piece_of(p), s.reports.get(p.path)
    if report is None or report.verdict is Verdict.BROKEN or p.size <= _FEW:
        return False
    if piece.changes is Changes.CONSTANT or not piece.loaded:
        return False
    if piece.changes is Changes.MOVES:
        return True
    if p.role in _NO_STATE or p.path in s.indexes.known:
        return False
    return report.tensors > 0 or p.role == "model"


def is_indexed(p: Part, s: Session) -> bool:
    """Return True if an index lists the tensors of a file."""
    return any(map(gives_format, s.indexes.described(p.path)))


def find_files_of_one_tensor(parts: Sequence[Part], s: Session) -> set[str]:
    """Return paths of files that an index names, one tensor in each, of which a rank has many."""
    of_rank = defaultdict[tuple[str, int | None], list[Part]](list)
    for p in parts:
        if is_indexed(p, s):
            of_rank[p.home, p.rank].append(p)
    many = (files for files in of_rank.values() if len(files) > _WRITERS)
    with_several = {path for path, report in s.reports.items() if report.tensors > 1}
    return {p.path for files in many if with_several.isdisjoint(p.path for p in files) for p in files}


def find_when(p: Part) -> tuple[int, ...]:
    """Return when a file was saved: ``When`` without date. Restarts count if no step or epoch is known."""
    generation = p.generation if p.step is None and p.epoch is None else None
    return tuple(-1 if v is None else v for v in (p.step, p.epoch, p.step_in_epoch, generation))


def make_series_key(p: Part) -> tuple[object, ...]:
    """Return a key that a file has in all saves of a run: role, rank, coordinates, name without the step."""
    special_kind = p.kind if p.kind in (Kind.BEST, Kind.RELEASE) else None
    name = p.path.removeprefix(p.home) if p.home else ""
    if name.count("/") > 1 and (m := _COUNTED.match(name)) and int(m[1]) == p.step:
        name = name[m.end() :]
    return p.role, p.rank, p.coords, special_kind, p.base, name


# ---- pages, and all bytes


def digest_pages(
    parts: Sequence[Part], others: Sequence[Part], s: Session, known: dict[str, bytes]
) -> dict[str, bytes]:
    """Return by path digests of pages of files. The size stands for a file that can equal no other: none has
    its size, or it is broken and one of the ``others``. Digests that are read are added to ``known``.
    Of the ``others`` a limited number is read, the first ones; the rest and unreadable files are left out.
    """
    mine, all_sizes = {p.size for p in parts}, Counter(p.size for p in (*parts, *others))
    broken = {path for path, report in s.reports.items() if report.verdict is Verdict.BROKEN}
    unique = {size for size, n in all_sizes.items() if size <= 0 or n < 2 or size not in mine}
    digests, wanted, more = dict[str, bytes](), list[Part](), list[Part]()
    for i, p in enumerate((*parts, *others)):
        if p.size in unique or (i >= len(parts) and p.path in broken):
            digests[p.path] = b"%d" % p.size
        elif p.path in known:
            digests[p.path] = known[p.path]
        else:
            (wanted if i < len(parts) else more).append(p)
    wanted += more[: max(_LEAST, 2 * len(parts))]
    read = dict(_read_pages(wanted, s))
    known |= read
    return digests | read


def _read_pages(wanted: Sequence[Part], s: Session) -> Iterator[tuple[str, bytes]]:
    """Yield (path, digest of some pages) of files; unreadable ones are noted in ``s.unread``."""
    pending = _ask_store(wanted, s) if is_url(s.root) else {}
    for p in wanted:
        read = pending[p.path].result if p.path in pending else partial(_digest_file, p.path)
        try:
            yield p.path, s.reader.keep(p.path, PAGES, read)
        except (OSError, ShortRead) as e:
            s.unread[p.path] = f"cannot be compared with others: {getattr(e, 'strerror', None) or e}"


class _NotKept(Exception):
    """No earlier run has kept the digest."""


def _ask_store(parts: Sequence[Part], s: Session) -> dict[str, Future[tuple[bytes, Identity | None]]]:
    """Return by path the finished requests for digests of files in a store that no earlier run has kept."""

    def refuse() -> tuple[bytes, Identity | None]:
        raise _NotKept

    missing = list[Part]()
    for p in parts:
        try:
            s.reader.keep(p.path, PAGES, refuse)
        except _NotKept:
            missing.append(p)
    pool = Threads(s.options.jobs or FILES_OF_STORE)
    requests = {p.path: pool.submit(_digest_file, p.path) for p in missing}
    for future in requests.values():
        future.exception()  # waits; ``result`` raises it later
    pool.close(wait=False)
    return requests


def _digest_file(path: str) -> tuple[bytes, Identity | None]:
    """Return the digest of some pages of a file, and the identity (version) of what was read."""
    with opened(path) as source:
        return page_digests(source), source.identity()


def are_equal(a: Part, b: Part, s: Session) -> bool:
    """Return True if two files of one size have the same bytes; they are compared until they differ.

    When the budget ends first, both count as unread. A link to another file is no copy: somebody meant it.
    """
    try:
        with opened(a.path) as one, opened(b.path) as other:
            inodes = {(file.stat.st_dev, file.stat.st_ino) for file in (one, other)}
            if one.size != other.size or len(inodes) == 1:
                return False
            for at in range(0, one.size, _BLOCK):
                n = min(_BLOCK, one.size - at)
                if one.read(at, n) != other.read(at, n):
                    return False
                if s.reader.spent:
                    s.reader.unread.update({p.path: p.size for p in (a, b)})
                    return False
            return True
    except (OSError, ShortRead) as e:
        return _note_unread(a, b, e, s)


def are_other_models(a: Part, b: Part, s: Session, *, same_tensors: bool = False) -> bool:
    """Return True if two files hold other weights, as far as the beginnings of their tensors tell. Tensors
    that one file has besides all of the other (an optimizer's state) make no other model; with
    ``same_tensors`` only tensors of the same names and shapes do.
    """
    of_a, of_b = _find_weights(a, s), _find_weights(b, s)
    both = [(t, of_b[name]) for name, t in of_a.items() if name in of_b]
    if not (of_a and of_b):
        return False
    names_differ = len(both) < min(len(of_a), len(of_b))
    if names_differ or any((t.dtype, t.shape, t.nbytes) != (u.dtype, u.shape, u.nbytes) for t, u in both):
        return not same_tensors
    pairs = [(t, u) for t, u in both if None not in (t.offset, u.offset) and not (t.pieces or u.pieces)]
    stride = len(pairs) // _ASKED + 1 if is_url(s.root) else 1
    try:
        with opened(a.path) as one, opened(b.path) as other:
            return any(_read_beginning(one, t) != _read_beginning(other, u) for t, u in pairs[::stride])
    except (OSError, ShortRead) as e:
        return _note_unread(a, b, e, s)


def _find_weights(p: Part, s: Session) -> dict[str, Tensor]:
    """Return tensors that training changes: no scalars (counters, scores) and no random states."""
    tensors = s.inspect(p.path, Level.STRUCTURE)[1].tensors
    return {t.name: t for t in tensors if t.shape and "float" in t.dtype}


def _read_beginning(source: Source, t: Tensor) -> bytes:
    return source.read(t.offset or 0, min(t.nbytes, PAGE))


def _note_unread(a: Part, b: Part, e: OSError | ShortRead, s: Session) -> bool:
    """Note in ``s.unread`` that two files cannot be compared, and return False: nothing was found."""
    why = f"cannot be compared: {getattr(e, 'strerror', None) or e}"
    s.unread.update(dict.fromkeys((a.path, b.path), why))
    return False
