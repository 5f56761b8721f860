"""Group parts into checkpoints. Pure: it works on names, sizes and times alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from posixpath import commonprefix

from ckpt_tools.discovery.completeness import is_of_later_ranks
from ckpt_tools.layouts import Claim, Layout, Layouts
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind, Part

_Progress = tuple["int | None", "int | None", "int | None"]
"""Step, epoch and step in the epoch, as names tell them; a bare tuple, as every part has one."""
_NO_PROGRESS: _Progress = (None, None, None)


def _read_progress(p: Part) -> _Progress:
    """Return the progress in a part's name; only its step if the save has its own directory, ``home``."""
    when = p.moment
    return (when.step, None, None) if p.folder.home else (when.step, when.epoch, when.step_in_epoch)


def group(parts: Sequence[Part], layouts: Layouts, save_interval: int | None = None) -> list[Checkpoint]:
    """Return the checkpoints of every run, newest first by modification time. A set that each rank saves is a
    dying gasp if other iterations have more ranks, or if its own is no multiple of ``save_interval``.
    """
    runs: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for p in parts:
        folder = p.folder
        runs[folder.layout, folder.run].append(p)
    out = list[Checkpoint]()
    for members in runs.values():
        most_ranks, layout = len({p.rank for p in members}), layouts.of(members[0])
        commit, beside = layout.complete.commit, (layout.complete.commit, *layout.complete.commit_beside)
        if layout.complete.commit_alone and not any(p.role in beside for p in members):
            commit = layout.complete.commit_alone
        saves = _group_by_save(members)
        out += (_make_checkpoint(same, most_ranks, save_interval, layouts, commit) for same in saves)
    return sorted(out, key=lambda c: (-c.mtime_ns, c.path))


def _group_by_save(members: list[Part]) -> Iterator[list[Part]]:
    """Yield the parts of one run, one list for each save that wrote them."""
    restarted = any(p.moment.generation for p in members)
    counters = _find_agreed_counters(members) if restarted else set[int]()
    saves: dict[object, list[Part]] = defaultdict(list)
    for p in members:
        folder, when, progress = p.folder, p.moment, _read_progress(p)
        tells_apart = folder.home or when.generation in counters or progress == _NO_PROGRESS
        generation = when.generation if tells_apart else None
        label = "" if folder.home else _label_file(p, progress)
        saves[folder.kind, folder.home, progress, generation, when.unfinished, label].append(p)
    for same in saves.values():
        if restarted and not same[0].home and len(same) > 1:
            yield from _split_attempts(same)
        else:
            yield same


def _label_file(p: Part, progress: _Progress) -> str:
    """Return what files of one save have in common that lie among those of others, beside its numbers."""
    if progress != _NO_PROGRESS:
        return p.folder.prefix
    return (p.folder.prefix or p.name) if p.moment.generation is None else p.folder.directory


def _find_agreed_counters(members: Iterable[Part]) -> set[int]:
    """Return restart counters on which ranks agree: under each all ranks wrote several of the same steps."""
    steps: dict[int, dict[int | None, set[_Progress]]] = defaultdict(lambda: defaultdict(set))
    for p in members:
        if p.generation is not None and not p.home:
            steps[p.generation][p.rank].add(_read_progress(p))
    everyone = {rank for ranks in steps.values() for rank in ranks}
    complete = {k: ranks for k, ranks in steps.items() if ranks.keys() == everyone and len(everyone) > 1}
    return {k for k, ranks in complete.items() if len(set.intersection(*ranks.values())) > 1}


def _split_attempts(parts: list[Part]) -> Iterator[list[Part]]:
    """Return the files of one step by attempt: by equal counts of restarts if a rank has the step twice."""
    ranks, shards = {p.rank for p in parts}, {(p.rank, p.piece, p.coords) for p in parts}
    if len(parts) in (len(ranks), len(shards)):
        return iter((parts,))
    by_restarts: dict[int, list[Part]] = defaultdict(list)
    for p in parts:
        by_restarts[p.generation or 0].append(p)
    return (by_restarts[n] for n in sorted(by_restarts))


def _make_checkpoint(
    parts: list[Part], most_ranks: int, save_interval: int | None, layouts: Layouts, commit: str
) -> Checkpoint:
    """Return the checkpoint of the parts of one save; without a part of the role ``commit`` unfinished."""
    first = parts[0]
    layout = layouts.of(first)
    times = sorted(p.mtime_ns for p in list_essential(parts, layout))
    generations = {p.moment.generation for p in parts}
    uncommitted = bool(commit) and not any(p.role == commit for p in parts)
    return Checkpoint(
        layout=first.layout,
        run=first.run,
        kind=_find_kind(parts, layout, most_ranks, save_interval),
        parts=tuple(sorted(parts, key=lambda p: (p.rank if p.rank is not None else -1, p.path))),
        path=first.home or _find_path(parts, layout),
        mtime_ns=times[len(times) // 2],
        step=first.step,
        epoch=first.epoch,
        epoch_base=layout.counting.first_epoch,
        step_in_epoch=first.step_in_epoch,
        generation=next(iter(generations)) if len(generations) == 1 else None,
        restarts=max(g or 0 for g in generations) if layout.counting.restarts else 0,
        unfinished=first.unfinished or (uncommitted and not is_of_later_ranks(parts, layout)),
    )


def _find_kind(parts: list[Part], layout: Layout, most_ranks: int, save_interval: int | None) -> Kind:
    """Return the kind of a checkpoint: a set that every rank saves is a dying gasp if ranks are missing."""
    first = parts[0]
    if first.kind is not Kind.PERIODIC or not layout.piece(first.piece).readers.everyone_saves:
        return first.kind
    is_partial = len({p.rank for p in parts}) < most_ranks
    is_irregular = bool(save_interval and first.step is not None and first.step % save_interval)
    return Kind.DYING_GASP if is_partial or is_irregular else first.kind


def list_essential(parts: Sequence[Part], layout: Layout) -> Sequence[Part]:
    """Return the parts of a checkpoint that resuming needs: their times are the time of the checkpoint."""
    optional = {piece.name for piece in layout.pieces if not (piece.required and piece.loaded)}
    needed = [p for p in parts if p.folder.piece not in optional]
    needed = needed or [p for p in parts if layout.piece(p.piece).claim is not Claim.DESCRIBED] or [*parts]
    # of files of which one is enough only the one that is loaded first
    single = {piece.name: i for i, piece in enumerate(layout.pieces) if piece.readers.single}
    ordered = sorted(needed, key=lambda p: (-single.get(p.piece, 0), p.mtime_ns))
    return list({(p.role, p.rank) if p.piece in single else p.path: p for p in ordered}.values())


def _find_path(parts: Sequence[Part], layout: Layout) -> str:
    """Return the path of a checkpoint without a directory: the file others are copies of, or a prefix."""
    own, base = list_essential(parts, layout), parts[0].base
    pieces = [layout.piece(p.piece) for p in parts]
    if len(parts) > 1 and all(piece.readers.shared for piece in pieces):
        if all(piece.readers.single for piece in pieces):
            in_order = layout.pieces.index
            return min(parts, key=lambda p: (p.role != "model", in_order(layout.piece(p.piece)))).path
        if (common := commonprefix([p.path for p in parts]).rstrip(".-_/")) not in ("", base):
            return common
    return own[0].path if len(own) == 1 or len(parts) == 1 else base
