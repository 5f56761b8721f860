"""One file's bytes under two names of a run: what nothing inside a file shows when it was copied over that of another step or rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ckpt_tools.codes import finding
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model import Finding, Level, Part, Severity, Verdict
from ckpt_tools.storage import Identity, LocalSource, ShortRead

if TYPE_CHECKING:
    from ckpt_tools.pipeline.session import Session

_COUNTERS = frozenset({"optimizer_step", "global_step", "step_num", "save_id"})
_Pages = tuple[bytes, ...]
_Steps = dict[tuple[int, ...], tuple[_Pages, Part]]
"""Step -> digests of some pages of the file that one place has at it, and the file."""
_SAMPLE = 4096
_AT = (2, 4, 6, 8)
"""Where those pages lie, in eighths of the file."""
_TOGETHER_NS = 2_000_000_000
_BLOCK = 1 << 20


def _order(p: Part) -> tuple[int, ...]:
    """When in training. A restarted job may save the same step again, and the same bytes: its restarts count only where nothing else tells the time."""
    generation = p.generation if p.step is None and p.epoch is None else None
    return tuple(-1 if v is None else v for v in (p.step, p.epoch, p.step_in_epoch, generation))


def same_content(parts: Sequence[Part], s: Session) -> Iterator[tuple[str, Finding]]:
    """Parts of one run that are byte for byte a file of another step or of another rank, although training moved on between the two.

    Only files with tensors; copies that their layout makes (``single``) and replicas are expected. What shows that training moved on: the files of
    that rank differ at other steps, or the file holds an optimizer's counter, which changes with every step.
    """
    looked = []
    for p in parts:
        piece, report = BY_NAME[p.layout].piece(p.piece), s.reports.get(p.path)
        holds = report and (report.tensors or p.role in ("model", "data"))
        if report and holds and p.size > 0 and piece.loaded and not piece.single and report.verdict is not Verdict.BROKEN:
            looked.append(p)
    prints = _prints(looked, s)
    places: dict[object, _Steps] = defaultdict(dict)
    same: dict[_Pages, list[Part]] = defaultdict(list)
    for p in sorted((p for p in looked if p.path in prints), key=lambda p: (_order(p), p.rank or 0)):
        places[_place(p)][_order(p)] = prints[p.path], p
        same[prints[p.path]].append(p)
    siblings: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for p in looked:
        siblings[_order(p)].append(p.mtime_ns)
    for group in same.values():
        for p in group[1:]:
            older = next((o for o in group if _order(o) < _order(p) and _place(o) == _place(p)), group[0])
            found = list(_copied(older, p, places[_place(p)], places[_place(older)], siblings, s)) if older is not p else []
            if found and _equal(older, p, s):  # last, because it reads both files to the end
                yield from found


def _copied(
    older: Part, p: Part, mine: _Steps, theirs: _Steps, siblings: Mapping[tuple[int, ...], list[int]], s: Session
) -> Iterator[tuple[str, Finding]]:
    at = _order(p)
    if _order(older) == at:
        if (severity := _of_two_ranks(older, p, mine, theirs, s)) is not None:
            yield (
                p.path,
                finding("same-content", f"byte for byte {_where(older, p)}, from which this rank's files differ at other steps", severity=severity),
            )
        return
    own = mine[at][0]
    others = [(print_, part) for print_, part in mine.values() if print_ != own and _sound(part, s) is not False]
    proven = any(_sound(part, s) or _unlike(print_, own) for print_, part in others)
    sure = p.role == "optimizer" or _moves(p, s) or proven
    # a part of a model may hold nothing that is trained, and so may a whole one that never changes
    whole = p.role == "model" and p.rank is None and not p.coords and len(mine) == 2
    if not (sure or others or whole) or (p.role == "rng" and len(mine) < 3):
        return
    copy, original, known = p, older, True
    strays = [_stray(part, siblings) for part in (older, p)]
    if max(strays) < _TOGETHER_NS or strays[0] == strays[1]:
        known = False  # the times do not tell which is the copy
    elif strays[0] > strays[1]:
        copy, original = older, p
    severity = Severity.ERROR if sure and p.role not in ("rng", "data") else Severity.WARNING
    which = "an older" if original is older else "a newer"
    yield copy.path, finding("same-content", f"byte for byte the {p.role} file of {which} checkpoint, {_where(original, copy)}", severity=severity)
    if not known:
        what = f"byte for byte the {p.role} file of a newer checkpoint, {_where(p, older)}: either is the copy"
        yield older.path, finding("same-content", what, severity=Severity.NOTE)


def _of_two_ranks(older: Part, p: Part, mine: _Steps, theirs: _Steps, s: Session) -> Severity | None:
    """Whether equal files of two ranks are no replicas: at all other steps they differ, and not because one of those is damaged."""
    at = _order(p)
    pairs = [(mine[o], theirs[o]) for o in mine.keys() & theirs.keys() - {at}]
    if _place(p) == _place(older) or any(a == b for (a, _), (b, _) in pairs):
        return None  # replicas
    sound = [pair for pair in pairs if all(_sound(part, s) is not False for _, part in pair)]
    if not sound:
        return None
    early = min(_order(a) for (_, a), _ in sound) < at  # all ranks may begin alike, and part ways later
    proven = all(_unlike(a, b) or (_sound(one, s) and _sound(other, s)) for (a, one), (b, other) in sound)
    return Severity.ERROR if len(sound) > 1 and early and proven else Severity.WARNING


def _stray(p: Part, siblings: Mapping[tuple[int, ...], list[int]]) -> int:
    """How far in time a file lies from those of its own step, in ns: a copy is younger than they, or has the age of its original."""
    times = sorted(siblings[_order(p)])
    return abs(p.mtime_ns - times[len(times) // 2])


def _unlike(a: _Pages, b: _Pages) -> bool:
    """Whether most of the pages differ: other numbers, and not a flipped bit or a lost page."""
    return len(a) == len(b) == len(_AT) and sum(x != y for x, y in zip(a, b, strict=True)) > len(_AT) // 2


def _sound(p: Part, s: Session) -> bool | None:
    """Whether a file that differs does so because it holds something else, and not because it is damaged; None when no checksum can tell."""
    report = s.report(p, Level.CONTENT) if BY_NAME[p.layout].piece(p.piece).role == p.role else s.reports[p.path]
    return False if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN) else True if report.coverage > 0.5 else None


def _place(p: Part) -> object:
    """What is the same for a file at all steps: its rank, its coordinates, its name in a directory of the checkpoint's own."""
    return p.role, p.rank, p.coords, p.base, p.path.removeprefix(p.home) if p.home else ""


def _moves(p: Part, s: Session) -> bool:
    """Whether the file holds what is another at every save: a count of steps, or the save's own number."""
    return not s.reports[p.path].metadata.keys().isdisjoint(_COUNTERS)


def _where(older: Part, p: Part) -> str:
    a, b = older.path.split("/"), p.path.split("/")
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    return "/".join(a[common:])


def _prints(parts: Sequence[Part], s: Session) -> dict[str, _Pages]:
    """Digests of a few pages of each file of a size that another has too: its end, where archives keep their checksums, and between."""
    sizes = Counter(p.size for p in parts)
    out: dict[str, _Pages] = {}
    for p in parts:
        if sizes[p.size] < 2:
            out[p.path] = (str(p.size).encode(),)
            continue
        try:
            pages = s.reader.keep(p.path, f"pages {_SAMPLE} {_AT}", partial(_pages, p.path))
        except (OSError, ShortRead):
            continue
        distinct = len(set(_starts(p.size))) == len(_AT)
        out[p.path] = tuple(pages[at : at + 8] for at in range(0, len(pages), 8)) if distinct else (pages,)
    return out


def _starts(size: int) -> list[int]:
    return [max(0, min(size * part // 8, size - _SAMPLE)) for part in _AT]


def _pages(path: str) -> tuple[bytes, Identity | None]:
    """Their digests, eight bytes each."""
    import xxhash

    with LocalSource(path) as source:
        pages = [xxhash.xxh3_64_digest(source.read(start, min(_SAMPLE, source.size))) for start in _starts(source.size)]
        return b"".join(pages), source.identity()


def _equal(a: Part, b: Part, s: Session) -> bool:
    """Whether two files of one size have the same bytes, by comparing them until they differ. When the budget ends first, one of them counts as unread."""
    try:
        with LocalSource(a.path) as one, LocalSource(b.path) as other:
            if one.size != other.size or (one.stat.st_dev, one.stat.st_ino) == (other.stat.st_dev, other.stat.st_ino):
                return False  # a link to another is no second save either, but somebody meant it
            for at in range(0, one.size, _BLOCK):
                n = min(_BLOCK, one.size - at)
                if one.read(at, n) != other.read(at, n):
                    return False
                if s.reader.spent:
                    s.reader.unread.update({a.path: a.size, b.path: b.size})
                    return False
            return True
    except (OSError, ShortRead):
        return False
