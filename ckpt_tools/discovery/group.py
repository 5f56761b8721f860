"""Parts in, checkpoints out, with what is missing from each. Pure: names, sizes, times and reports are all it sees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from ckpt_tools.layouts import BY_NAME, Layout
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Report

Reports = Mapping[str, Report]


def with_content_steps(parts: Iterable[Part], reports: Reports) -> list[Part]:
    """Parts whose piece reads its step from the content get it from their reports; those whose report has none keep null."""
    parts = parts if isinstance(parts, list) else list(parts)
    if not any(
        BY_NAME[layout].piece(name).step_from == "content"
        for layout, name in {(p.layout, p.piece) for p in parts}
    ):
        return parts
    out = []
    for p in parts:
        if BY_NAME[p.layout].piece(p.piece).step_from == "content" and (report := reports.get(p.path)):
            step, epoch, inside = BY_NAME[p.layout].steps(p, report.metadata)
            out.append(p._replace(step=step, epoch=epoch, step_in_epoch=inside))
        else:
            out.append(p)
    return out


_Told = tuple[int | None, int | None, int | None]


def _told(p: Part) -> _Told:
    """What tells the checkpoint of a part; a directory of its own is one whatever its names say: check() tells where they disagree."""
    return (p.step, None, None) if p.home else (p.step, p.epoch, p.step_in_epoch)


def _agreed(members: Iterable[Part]) -> set[int]:
    """Restart counters that all ranks agree on: they wrote more than one of the same steps under it. (No rank is ever two saves ahead of another.)"""
    steps: dict[int, dict[int | None, set[_Told]]] = defaultdict(lambda: defaultdict(set))
    for p in members:
        if p.generation is not None and not p.home:
            steps[p.generation][p.rank].add(_told(p))
    everyone = {rank for ranks in steps.values() for rank in ranks}
    return {
        k
        for k, ranks in steps.items()
        if len(everyone) > 1 and ranks.keys() == everyone and len(set.intersection(*ranks.values())) > 1
    }


def _cuts(keys: Sequence[object], pauses: Sequence[tuple[int, bool]]) -> Iterator[int]:
    """Where a sequence in the order of time is to be parted so that no key comes twice in one part: each time at the longest pause between the two."""
    start, seen = 0, dict[object, int]()
    for i, key in enumerate(keys):
        before = seen.get(key, -1)
        if before >= start:
            start = max(range(before + 1, i + 1), key=lambda at: pauses[at])
            yield start
        seen[key] = i


def _attempts(parts: list[Part]) -> Iterator[list[Part]]:
    """The files of one step, apart by the attempts that wrote them.

    MindSpore counts restarts (K) per directory, so after a crash in the middle of a save the ranks' counters differ. What holds is that a rank writes
    a step once per attempt, and that two attempts are a restart apart in time.
    """
    if len(parts) == len({p.rank for p in parts}) or len(parts) == len(
        {(p.rank, p.piece, p.coords) for p in parts}
    ):
        yield parts
        return
    ordered = sorted(parts, key=lambda p: (p.mtime_ns, p.generation or 0))
    pauses = [
        (0, False),
        *(
            (b.mtime_ns - a.mtime_ns, (b.generation or 0) != (a.generation or 0))
            for a, b in pairwise(ordered)
        ),
    ]
    start = 0
    for at in _cuts([(p.rank, p.piece, p.coords) for p in ordered], pauses):
        yield ordered[start:at]
        start = at
    yield ordered[start:]


_Session = tuple[int | None, int]
"""(rank, K): what one process wrote between two restarts."""


def _restarts(members: Iterable[Part]) -> dict[tuple[str, int | None, int], int]:
    """(piece, rank, K) -> a number that sessions of one restart share, as far as the times tell; empty where they do not (a tree copied without them).

    A process has one session per restart, so where a rank appears twice in the order of time a restart lies between, at the longest pause; and wherever
    the pause is as long. Sessions of one restart share steps.
    """
    pieces: dict[str, dict[_Session, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for p in members:
        if p.generation is not None and not p.home and _told(p) != (None, None, None):
            pieces[p.piece][p.rank, p.generation].append(p)
    out: dict[tuple[str, int | None, int], int] = {}
    for piece, sessions in pieces.items():
        if len({rank for rank, _ in sessions}) < 2:
            continue
        spans = {
            key: (min(times), max(times))
            for key, ps in sessions.items()
            if (times := [p.mtime_ns for p in ps])
        }
        keys = sorted(spans, key=lambda key: (spans[key], -1 if key[0] is None else key[0], key[1]))
        pauses, end = [(0, False)], spans[keys[0]][1]
        for key in keys[1:]:
            pauses.append((spans[key][0] - end, False))
            end = max(end, spans[key][1])
        shortest = min((pauses[at][0] for at in _cuts([rank for rank, _ in keys], pauses)), default=1 << 63)
        if shortest <= 0:
            continue
        n, together = 0, defaultdict[int, list[_Session]](list)
        for key, (pause, _) in zip(keys, pauses, strict=True):
            n += pause >= shortest
            together[n].append(key)
        for number, mine in together.items():  # a session that stands alone in time goes by its own number
            if len(mine) > 1 and _concurrent(mine, sessions, spans):
                out.update(((piece, rank, k), number) for rank, k in mine)
    return out


def _concurrent(
    keys: Sequence[_Session],
    sessions: Mapping[_Session, Sequence[Part]],
    spans: Mapping[_Session, tuple[int, int]],
) -> bool:
    """Whether sessions of several ranks share steps and, where they have more than one, time: ranks of one job save together."""
    steps = {key: {_told(p) for p in sessions[key]} for key in keys}
    long = [spans[key] for key in keys if len(steps[key]) > 1]
    shared = sum(map(len, steps.values())) > len(set[_Told]().union(*steps.values()))
    return shared and (not long or max(first for first, _ in long) <= min(last for _, last in long))


def group(parts: Sequence[Part], save_interval: int | None = None) -> list[Checkpoint]:
    """Checkpoints of every run, newest first by modification time. Parts of two runs never mix, nor do kinds.

    A Megatron per-rank set is a dying gasp when ranks that other iterations have are missing from it, or when its
    iteration is no multiple of ``save_interval``.
    """
    runs: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for p in parts:
        runs[p.layout, p.run].append(p)
    out: list[Checkpoint] = []
    for members in runs.values():
        joined: dict[object, list[Part]] = defaultdict(list)
        restarted = any(p.generation for p in members)
        agreed = _agreed(members) if restarted else set[int]()
        told_by_time = _restarts(members) if restarted else {}
        for p in members:
            home, generation = p.home, p.generation
            told = _told(p)
            unnamed, counted = "", generation
            if not home and told == (None, None, None):
                unnamed = (p.prefix or p.path.rpartition("/")[2]) if generation is None else ""
            elif not home and generation not in agreed:
                counted = None  # _attempts() weighs it
            if (
                restarted
                and (n := told_by_time.get((p.piece, p.rank, -1 if p.generation is None else p.generation)))
                is not None
            ):
                counted = -1 - n
            # id: an enum member's own hash is a Python call, and this is the inner loop over a million parts
            joined[id(p.kind), home, told, counted, p.unfinished, unnamed].append(p)
        most = len({p.rank for p in members})
        for same in joined.values():
            split = _attempts(same) if restarted and not same[0].home and len(same) > 1 else (same,)
            out += [_checkpoint(attempt, most, save_interval) for attempt in split]
    return sorted(out, key=lambda c: (-c.mtime_ns, c.path))


def _checkpoint(parts: list[Part], most_ranks: int, save_interval: int | None) -> Checkpoint:
    first = parts[0]
    layout = BY_NAME[first.layout]
    kind = first.kind
    if layout.piece(first.piece).everyone_saves and kind is Kind.PERIODIC:
        partial = len({p.rank for p in parts}) < most_ranks
        off = bool(save_interval and first.step is not None and first.step % save_interval)
        kind = Kind.DYING_GASP if partial or off else kind
    required = essential(parts)
    generations = {p.generation for p in parts}
    uncommitted = bool(layout.commit) and not any(p.role == layout.commit for p in parts)
    path = first.home or (first.path if len(parts) == 1 else _together(parts, layout) or first.base)
    return Checkpoint(
        first.layout, first.run, kind, tuple(sorted(parts, key=lambda p: (p.rank if p.rank is not None else -1, p.path))), path,
        sorted(p.mtime_ns for p in required)[len(required) // 2], first.step, first.epoch, layout.epoch_base, first.step_in_epoch,
        generations.pop() if len(generations) == 1 else None, first.unfinished or uncommitted,
    )  # fmt: skip


def essential(parts: Sequence[Part]) -> Sequence[Part]:
    """The parts of a checkpoint whose times are its time: those that resuming needs."""
    layout = BY_NAME[parts[0].layout]
    optional = {piece.name for piece in layout.pieces if not piece.required or not piece.loaded}
    return (
        [p for p in parts if p.piece not in optional]
        or [p for p in parts if not layout.piece(p.piece).described]
        or parts
    )


def _together(parts: Sequence[Part], layout: Layout) -> str:
    """What names a set of files that share a directory with those of other steps: the file that others are copies of, or what the names have in common."""
    pieces = [layout.piece(p.piece) for p in parts]
    if not all(piece.shared for piece in pieces):
        return ""
    if all(piece.single for piece in pieces):
        return min(parts, key=lambda p: layout.pieces.index(layout.piece(p.piece))).path
    first, last = min(p.path for p in parts), max(p.path for p in parts)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:same].rstrip(".-_")
