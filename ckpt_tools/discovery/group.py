"""Group parts into checkpoints. Pure: it works on names, sizes, times and reports alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ckpt_tools.discovery.completeness import is_of_later_ranks
from ckpt_tools.layouts import Layout, Layouts
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Report

Reports = Mapping[str, Report]


def with_content_steps(parts: Iterable[Part], reports: Reports, layouts: Layouts) -> list[Part]:
    """Parts whose piece reads its step from the content get it from their reports; those whose report has
    none keep null. In a directory of its own whose name tells none, all are of the step that one tells.
    """
    parts = parts if isinstance(parts, list) else list(parts)
    pieces = {(p.folder.layout, p.folder.piece) for p in parts}
    silent = {(one, name) for one, name in pieces if layouts[one].piece(name).step_from == "content"}
    if not silent:
        return parts
    told = _told([p for p in parts if (p.layout, p.piece) in silent and not _named(p)], reports, layouts)
    out = []
    for p in parts:
        if not _named(p) and (said := told.get(p.home or p.path)):
            out.append(p._replace(**dict(zip(("step", "epoch", "step_in_epoch"), said, strict=True))))
        else:
            out.append(p)
    return _with_steps_behind_links(out, silent, layouts)


def _with_steps_behind_links(parts: list[Part], silent: set[tuple[str, str]], layouts: Layouts) -> list[Part]:
    """A link that nobody loads, and of whose step neither name nor content tells, is of the step of what it
    leads to: the file of its run that has its size and its time.
    """
    beside = {(one, name) for one, name in silent if not layouts[one].piece(name).loaded}
    lost = {i for i, p in enumerate(parts if beside else ()) if _tells_nothing(p, beside)}
    if not lost:
        return parts
    of = {(p.run, p.size, p.mtime_ns): p for p in parts if _progress(p) != _UNTOLD}
    out = list(parts)
    for i in lost:
        if to := of.get((out[i].run, out[i].size, out[i].mtime_ns)):
            out[i] = out[i]._replace(step=to.step, epoch=to.epoch, step_in_epoch=to.step_in_epoch)
    return out


def _tells_nothing(p: Part, pieces: set[tuple[str, str]]) -> bool:
    return (p.layout, p.piece) in pieces and not p.home and p.size >= 0 and _progress(p) == _UNTOLD


def _told(parts: Iterable[Part], reports: Reports, layouts: Layouts) -> dict[str, _Progress]:
    """What the files of each directory tell; one shard of a set may be the only one that does."""
    told = dict[str, _Progress]()
    for p in parts:
        if report := reports.get(p.path):
            steps = layouts.of(p).steps(p, report.metadata)
            if steps != _UNTOLD or (p.home or p.path) not in told:
                told[p.home or p.path] = steps
    return told


def _named(p: Part) -> bool:
    """Whether the name of a part's own directory tells what it is of: check() compares that with content."""
    return bool(p.home) and (p.step, p.epoch) != (None, None)


_Progress = tuple["int | None", "int | None", "int | None"]
"""Step, epoch and step in the epoch, as names tell them. A bare tuple: every part has one."""
_UNTOLD: _Progress = (None, None, None)


def _progress(p: Part) -> _Progress:
    """What tells the checkpoint of a part; a directory of its own is one whatever its names say: check()
    tells where they disagree.
    """
    when = p.moment
    return (when.step, None, None) if p.folder.home else (when.step, when.epoch, when.step_in_epoch)


def group(parts: Sequence[Part], layouts: Layouts, save_interval: int | None = None) -> list[Checkpoint]:
    """Checkpoints of every run, newest first by modification time. Parts of two runs never mix, nor do kinds.

    A set of which every rank saves its own file is a dying gasp when ranks that other iterations have are
    missing from it, or when its iteration is no multiple of ``save_interval``.
    """
    runs: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for p in parts:
        folder = p.folder
        runs[folder.layout, folder.run].append(p)
    out = list[Checkpoint]()
    for members in runs.values():
        most_ranks = len({p.rank for p in members})
        commit = _commit(members, layouts.of(members[0]))
        saves = _saved_together(members)
        out += (_checkpoint(same, most_ranks, save_interval, layouts, commit) for same in saves)
    return sorted(out, key=lambda c: (-c.mtime_ns, c.path))


def _saved_together(members: list[Part]) -> Iterator[list[Part]]:
    """The parts of one run, by the save that wrote them."""
    restarted = any(p.moment.generation for p in members)
    restarts = _Restarts(members if restarted else [])
    saves: dict[object, list[Part]] = defaultdict(list)
    for p in members:
        folder, when, progress, unnamed = p.folder, p.moment, _progress(p), ""
        counted = restarts.counted(p, progress)
        if not folder.home and progress == _UNTOLD:
            named = folder.prefix or p.name
            unnamed = named if when.generation is None else folder.directory
        saves[folder.kind, folder.home, progress, counted, when.unfinished, unnamed].append(p)
    for same in saves.values():
        if restarted and not same[0].home and len(same) > 1:
            yield from _attempts(same)
        else:
            yield same


# ---- restarts


class _Session(NamedTuple):
    """What one process wrote between two restarts."""

    rank: int | None
    generation: int


class _Span(NamedTuple):
    """When a session saved: the times of its first and last file, in nanoseconds."""

    first: int
    last: int


class _Restarts:
    """Which restart of a run a part was written after. Its own counter says so where all ranks agree on it;
    else the times do, as far as they can.
    """

    def __init__(self, members: list[Part]) -> None:
        self._agreed = _agreed(members)
        self._by_time = _restarts_by_time(members)

    def counted(self, p: Part, progress: _Progress) -> int | None:
        """What tells the part's save from those of the same step after another restart; None where
        _attempts() has to weigh it.
        """
        generation = p.moment.generation
        if self._by_time and generation is not None:
            restart = self._by_time.get((p.piece, p.rank, generation))
            if restart is not None:
                return -1 - restart  # below every counter
        return generation if p.folder.home or generation in self._agreed or progress == _UNTOLD else None


def _agreed(members: Iterable[Part]) -> set[int]:
    """Restart counters that all ranks agree on: they wrote more than one of the same steps under it. (No rank
    is ever two saves ahead of another.)
    """
    steps: dict[int, dict[int | None, set[_Progress]]] = defaultdict(lambda: defaultdict(set))
    for p in members:
        if p.generation is not None and not p.home:
            steps[p.generation][p.rank].add(_progress(p))
    everyone = {rank for ranks in steps.values() for rank in ranks}
    if len(everyone) < 2:
        return set()
    return {
        k
        for k, ranks in steps.items()
        if ranks.keys() == everyone and len(set.intersection(*ranks.values())) > 1
    }


def _restarts_by_time(members: Iterable[Part]) -> dict[tuple[str, int | None, int], int]:
    """(piece, rank, generation) -> a number that sessions of one restart share, as far as the times tell;
    empty where they do not (a tree copied without them).
    """
    pieces: dict[str, dict[_Session, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for p in members:
        if p.generation is not None and not p.home and _progress(p) != _UNTOLD:
            pieces[p.piece][_Session(p.rank, p.generation)].append(p)
    return {
        (piece, session.rank, session.generation): number
        for piece, sessions in pieces.items()
        for session, number in _numbered(sessions)
    }


def _numbered(sessions: Mapping[_Session, Sequence[Part]]) -> Iterator[tuple[_Session, int]]:
    """Sessions with the number of their restart; one that stands alone in time goes by its own counter, and
    is left out.

    A process has one session per restart, so where a rank appears twice in the order of time a restart lies
    between, at the longest pause; and wherever the pause is as long. Sessions of one restart share steps.
    """
    if len({session.rank for session in sessions}) < 2:
        return
    spans = {
        session: _Span(min(p.mtime_ns for p in parts), max(p.mtime_ns for p in parts))
        for session, parts in sessions.items()
    }
    for number, together in enumerate(_by_restart(spans)):
        if len(together) > 1 and _share_steps(together, sessions, spans):
            yield from ((session, number) for session in together)


def _by_restart(spans: Mapping[_Session, _Span]) -> list[list[_Session]]:
    """Sessions in the order of time, those of one restart together; none where no pause parts restarts."""
    ordered = sorted(spans, key=lambda s: (spans[s], -1 if s.rank is None else s.rank, s.generation))
    pauses, end = [0], spans[ordered[0]].last
    for session in ordered[1:]:
        pauses.append(spans[session].first - end)
        end = max(end, spans[session].last)
    cuts = [pauses[at] for at in _cuts([session.rank for session in ordered], pauses)]
    least = min(cuts, default=max(pauses) + 1)
    if least <= 0:
        return []
    restarts: list[list[_Session]] = [[]]
    for session, pause in zip(ordered, pauses, strict=True):
        if pause >= least:
            restarts.append([])
        restarts[-1].append(session)
    return restarts


def _share_steps(
    together: Sequence[_Session],
    sessions: Mapping[_Session, Sequence[Part]],
    spans: Mapping[_Session, _Span],
) -> bool:
    """Whether sessions of several ranks share steps and, where they have more than one, time: ranks of one
    job save together.
    """
    steps = {session: {_progress(p) for p in sessions[session]} for session in together}
    long = [spans[session] for session in together if len(steps[session]) > 1]
    shared = sum(map(len, steps.values())) > len(set[_Progress]().union(*steps.values()))
    return shared and (not long or max(span.first for span in long) <= min(span.last for span in long))


# ---- attempts


class _Pause(NamedTuple):
    """Nanoseconds between two files, and whether the counter of restarts changes between them."""

    nanoseconds: int
    restarted: bool


def _attempts(parts: list[Part]) -> Iterator[list[Part]]:
    """The files of one step, apart by the attempts that wrote them.

    Where restarts (K) are counted per directory, the ranks' counters differ after a crash in the middle of a
    save. What holds is that a rank writes a step once per attempt, and that two attempts are a restart apart
    in time.
    """
    ranks, places = {p.rank for p in parts}, {(p.rank, p.piece, p.coords) for p in parts}
    if len(parts) in (len(ranks), len(places)):
        yield parts
        return
    ordered = sorted(parts, key=lambda p: (p.mtime_ns, p.generation or 0))
    pauses = [_Pause(0, restarted=False)]
    for a, b in pairwise(ordered):
        pauses.append(_Pause(b.mtime_ns - a.mtime_ns, (b.generation or 0) != (a.generation or 0)))
    start = 0
    for at in _cuts([(p.rank, p.piece, p.coords) for p in ordered], pauses):
        yield ordered[start:at]
        start = at
    yield ordered[start:]


def _cuts(keys: Sequence[object], pauses: Sequence[int] | Sequence[_Pause]) -> Iterator[int]:
    """Where a sequence in the order of time is to be parted so that no key comes twice in one part: each time
    at the longest pause between the two.
    """
    start, seen = 0, dict[object, int]()
    for i, key in enumerate(keys):
        before = seen.get(key, -1)
        if before >= start:
            start = max(range(before + 1, i + 1), key=lambda at: pauses[at])
            yield start
        seen[key] = i


# ---- one checkpoint


def _commit(run: Sequence[Part], layout: Layout) -> str:
    """The role of the file that is written last in each save of a run."""
    if not layout.commit_alone or any(p.role in (layout.commit, *layout.commit_beside) for p in run):
        return layout.commit
    return layout.commit_alone


def _checkpoint(
    parts: list[Part], most_ranks: int, save_interval: int | None, layouts: Layouts, commit: str
) -> Checkpoint:
    first = parts[0]
    layout = layouts.of(first)
    times = sorted(p.mtime_ns for p in essential(parts, layout))
    generations = {p.moment.generation for p in parts}
    uncommitted = bool(commit) and not any(p.role == commit for p in parts)
    uncommitted = uncommitted and not is_of_later_ranks(parts, layout)
    return Checkpoint(
        layout=first.layout,
        run=first.run,
        kind=_kind(parts, layout, most_ranks, save_interval),
        parts=tuple(sorted(parts, key=lambda p: (p.rank if p.rank is not None else -1, p.path))),
        path=first.home or _path(parts, layout),
        mtime_ns=times[len(times) // 2],
        step=first.step,
        epoch=first.epoch,
        epoch_base=layout.epoch_base,
        step_in_epoch=first.step_in_epoch,
        generation=next(iter(generations)) if len(generations) == 1 else None,
        restarts=max(g or 0 for g in generations) if layout.counts_restarts else 0,
        unfinished=first.unfinished or uncommitted,
    )


def _kind(parts: list[Part], layout: Layout, most_ranks: int, save_interval: int | None) -> Kind:
    first = parts[0]
    if first.kind is not Kind.PERIODIC or not layout.piece(first.piece).everyone_saves:
        return first.kind
    partial = len({p.rank for p in parts}) < most_ranks
    off = bool(save_interval and first.step is not None and first.step % save_interval)
    return Kind.DYING_GASP if partial or off else first.kind


def essential(parts: Sequence[Part], layout: Layout) -> Sequence[Part]:
    """The parts of a checkpoint whose times are its time: those that resuming needs."""
    optional = {piece.name for piece in layout.pieces if not (piece.required and piece.loaded)}
    return (
        [p for p in parts if p.folder.piece not in optional]
        or [p for p in parts if not layout.piece(p.piece).described]
        or parts
    )


def _path(parts: Sequence[Part], layout: Layout) -> str:
    """What names files of a checkpoint that has no directory of its own; links to them name nothing."""
    own, base = essential(parts, layout), parts[0].base
    if len(parts) == 1:
        return own[0].path
    common = _common_path(parts, layout)
    if common not in ("", base):
        return common
    return own[0].path if len(own) == 1 else base


def _common_path(parts: Sequence[Part], layout: Layout) -> str:
    """What names a set of files that share a directory with those of other steps: the file that others are
    copies of, or what the names have in common.
    """
    pieces = [layout.piece(p.piece) for p in parts]
    if not all(piece.shared for piece in pieces):
        return ""
    if all(piece.single for piece in pieces):
        in_order = layout.pieces.index
        return min(parts, key=lambda p: (p.role != "model", in_order(layout.piece(p.piece)))).path
    first, last = min(p.path for p in parts), max(p.path for p in parts)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:same].rstrip(".-_/")
