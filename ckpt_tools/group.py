"""Parts in, checkpoints out, with what is missing from each. Pure: names, sizes, times and reports are all it sees."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ckpt_tools.codes import finding
from ckpt_tools.layouts import BY_NAME, Layout, whole
from ckpt_tools.model import Checkpoint, Finding, Kind, Part, Report, Severity

Reports = Mapping[str, Report]


def with_content_steps(parts: Iterable[Part], reports: Reports) -> list[Part]:
    """Parts whose piece reads its step from the content get it from their reports; those whose report has none keep null."""
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
    """Restart counters that all ranks agree on: they wrote more than one step of the same under it. (No rank is ever two saves ahead of another.)"""
    steps: dict[int, dict[int | None, set[_Told]]] = defaultdict(lambda: defaultdict(set))
    for p in members:
        if p.generation is not None and not p.home:
            steps[p.generation][p.rank].add(_told(p))
    return {k for k, ranks in steps.items() if len(ranks) > 1 and len(set.intersection(*ranks.values())) > 1}


def _attempts(parts: list[Part]) -> Iterator[list[Part]]:
    """The files of one step, apart by the attempts that wrote them.

    MindSpore counts restarts (K) per directory, so after a crash in the middle of a save the ranks' counters differ. What holds is that a rank writes
    a step once per attempt, and that two attempts are a restart apart in time: where a rank has two files, they are parted at the widest gap.
    """
    if len(parts) == len({p.rank for p in parts}) or len(parts) == len({(p.rank, p.piece, p.coords) for p in parts}):
        yield parts
        return
    ordered = sorted(parts, key=lambda p: (p.mtime_ns, p.generation or 0))
    gaps = [(b.mtime_ns - a.mtime_ns, (b.generation or 0) != (a.generation or 0), i) for i, (a, b) in enumerate(pairwise(ordered), 1)]
    at = max(gaps)[2]
    yield from _attempts(ordered[:at])
    yield from _attempts(ordered[at:])


def group(parts: Sequence[Part], fault_ranks: frozenset[int] = frozenset(), save_interval: int | None = None) -> list[Checkpoint]:
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
        for p in members:
            told = _told(p)
            unnamed = (p.prefix or p.path.rpartition("/")[2]) if told == (None, None, None) and not p.home and p.generation is None else ""
            counted = p.generation if p.home or told == (None, None, None) or p.generation in agreed else None  # else _attempts() weighs it
            # id: an enum member's own hash is a Python call, and this is the inner loop over a million parts
            joined[id(p.kind), p.home, told, counted, p.unfinished, unnamed].append(p)
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
    optional = {piece.name for piece in layout.pieces if not piece.required or not piece.loaded}
    required = [p for p in parts if p.piece not in optional] or parts
    generations = {p.generation for p in parts}
    uncommitted = bool(layout.commit) and not any(p.role == layout.commit for p in parts)
    path = first.home or (first.path if len(parts) == 1 else _together(parts, layout) or first.base)
    return Checkpoint(
        first.layout, first.run, kind, tuple(sorted(parts, key=lambda p: (p.rank if p.rank is not None else -1, p.path))), path,
        sorted(p.mtime_ns for p in required)[len(required) // 2], first.step, first.epoch, layout.epoch_base, first.step_in_epoch,
        generations.pop() if len(generations) == 1 else None, first.unfinished or uncommitted,
    )  # fmt: skip


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


def expected_ranks(checkpoints: Iterable[Checkpoint]) -> int | None:
    """The number of ranks in the names, else one more than the highest rank over all checkpoints of a run; None when no name carries a rank."""
    ranks = worlds = -1
    for c in checkpoints:
        for p in c.parts:
            if p.rank is not None and p.rank > ranks:
                ranks = p.rank
            if p.coords and (n := dict(p.coords).get("world", -1)) > worlds:
                worlds = n
    return max(ranks + 1, worlds) if ranks >= 0 else None


def named_world(checkpoint: Checkpoint) -> int | None:
    """The number of ranks that saved a checkpoint, where its files' names tell (``{world}``): jobs grow and shrink between two saves."""
    return max((at for p in checkpoint.parts for axis, at in p.coords if axis == "world"), default=0) or None


@dataclass
class Expected:
    """What the checkpoints of one run have between them: the measure for what one of them lacks."""

    ranks: int = 0
    grids: dict[tuple[Kind, str], set[tuple[tuple[str, int], ...]]] = field(default_factory=lambda: defaultdict(set))
    usual: dict[Kind, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    oldest: dict[Kind, int] = field(default_factory=dict)
    count: Counter[Kind] = field(default_factory=Counter)
    checkpoints: Sequence[Checkpoint] = ()
    writers: dict[tuple[Kind, int | None], set[int | None]] = field(default_factory=lambda: defaultdict(set))


def expected(checkpoints: Sequence[Checkpoint], world_size: int | None = None) -> Expected:
    """What the finished checkpoints of one run lead to expect; ``world_size`` when the caller knows it."""
    out = Expected(max(world_size or 0, expected_ranks(checkpoints) or 0), checkpoints=checkpoints)
    for c in sorted(checkpoints, key=lambda c: (c.order, c.mtime_ns)):
        layout = BY_NAME[c.layout]
        out.count[c.kind] += 1
        out.oldest.setdefault(c.kind, id(c))
        for p in c.parts:
            out.writers[c.kind, c.generation].add(p.rank)
            if p.coords and p.rank is None and not layout.piece(p.piece).shared:
                out.grids[c.kind, p.piece].add(p.coords)
        for name in {p.piece for p in c.parts}:
            piece = layout.piece(name)
            if piece.required and piece.step_from == "name":
                out.usual[c.kind][name] += 1
    return out


def missing(checkpoint: Checkpoint, run: Expected) -> list[Finding]:
    """What a checkpoint lacks compared with its run. Not for committed layouts, whose commit says that it is all there.

    A generation that a single rank wrote (it ran alone) is a note: the others never took part in it.
    """
    layout, kind = BY_NAME[checkpoint.layout], checkpoint.kind
    if layout.committed or checkpoint.unfinished:
        return []
    where = checkpoint.parts[0].home or checkpoint.parts[0].path  # not the run's directory, which its other checkpoints share
    pruned = run.count[kind] > 1 and run.oldest.get(kind) == id(checkpoint)
    severity = Severity.WARNING if kind is Kind.DYING_GASP or pruned else Severity.ERROR
    out: list[Finding] = []
    pieces = [
        piece for name in {p.piece for p in checkpoint.parts if p.rank is not None} if not (piece := layout.piece(name)).shared or piece.sharded
    ]
    if any(piece.required and ("dp" not in piece.replicated_over or piece.everyone_saves) for piece in pieces):
        gone = sorted(set(range(named_world(checkpoint) or run.ranks)) - {p.rank for p in checkpoint.parts if p.rank is not None})
        if gone:
            if all(_pruned(checkpoint, rank, run) for rank in gone):
                severity = Severity.WARNING
            alone = bool(checkpoint.generation) and len(run.writers[kind, checkpoint.generation]) == 1
            text = f"{label(checkpoint)} has no file of {_ranks(gone)}"
            out.append(finding("missing-rank", text, severity=Severity.NOTE if alone else severity, path=where))
    have: dict[str, set[tuple[tuple[str, int], ...]]] = defaultdict(set)
    for p in checkpoint.parts:
        have[p.piece].add(p.coords)
    for name, coordinates in have.items():
        if layout.piece(name).shared:
            continue
        if lost := sorted(run.grids[kind, name] - coordinates):
            names = ", ".join(" ".join(f"{k}={v}" for k, v in coords) for coords in lost[:4])
            text = f"{label(checkpoint)} lacks the {name} of {names}{' …' if len(lost) > 4 else ''}"
            out.append(finding("missing-rank", text, severity=severity, path=where))
    roles = {layout.piece(name).role for name in have}
    lacking = [role for role in layout.needs if role not in roles]
    out += (finding("missing-part", f"{label(checkpoint)} has no {role} file", severity=severity, path=where) for role in lacking)
    for name, n in run.usual[kind].items():
        role = layout.piece(name).role
        if role not in roles and role not in layout.needs and 2 * n >= run.count[kind]:
            text = f"{label(checkpoint)} has no {name} file, which the run's other checkpoints have"
            out.append(finding("missing-part", text, severity=severity, path=where))
    return out


def _pruned(checkpoint: Checkpoint, rank: int, run: Expected) -> bool:
    """Whether a rank has removed all it had up to this checkpoint: each removes its own files, MindSpore's per restart."""
    mine = [(c.order, p.generation or 0) for c in run.checkpoints if c.kind is checkpoint.kind for p in c.parts if p.rank == rank]
    newer = [row for row in mine if row[0] > checkpoint.order]
    return bool(newer) and not any(at < checkpoint.order and k == min(newer)[1] for at, k in mine)


def straddled(checkpoints: Sequence[Checkpoint]) -> Iterator[tuple[Checkpoint, Checkpoint]]:
    """(checkpoint, another whose files were all written between two of its own): the files of one save never lie around another save."""
    spans = sorted(
        (min(times), max(times), i) for i, c in enumerate(checkpoints) if c.parts[0].home and (times := [p.mtime_ns for p in c.parts if p.size >= 0])
    )
    starts = [first for first, _, _ in spans]
    for first, last, i in spans:
        for other_first, other_last, j in spans[bisect_right(starts, first) : bisect_left(starts, last)]:
            if other_last < last and other_first > first and i != j:
                yield checkpoints[i], checkpoints[j]
                break


def replicas(checkpoint: Checkpoint, reports: Reports) -> Iterator[tuple[Part, Part, str]]:
    """(odd part, typical part, what differs) among files that the layout says hold the same: tensors, or a size far from the others'."""
    layout = BY_NAME[checkpoint.layout]
    groups: dict[object, list[Part]] = defaultdict(list)
    for p in checkpoint.parts:
        piece = layout.piece(p.piece)
        if p.rank is not None and "dp" in piece.replicated_over and not piece.sharded and p.size > 0:
            groups[p.piece, p.coords].append(p)
    for same in groups.values():
        if len(same) < 3:  # of two nobody knows which is odd
            continue
        for what, value in (("tensors", lambda p: r.signature if (r := reports.get(p.path)) else ""), ("size", lambda p: p.size)):
            usual, n = Counter(value(p) for p in same).most_common(1)[0]
            if 2 * n <= len(same) or not usual:
                continue
            typical = next(p for p in same if value(p) == usual)
            for p in same:
                near = what == "size" and abs(p.size - typical.size) * 100 <= typical.size
                if value(p) and value(p) != usual and not near:
                    yield p, typical, what


def doubled(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Files that share rank and coordinates with another of the same piece in a checkpoint that has a directory of its own."""
    seen: dict[object, str] = {}
    layout = BY_NAME[checkpoint.layout]
    for p in checkpoint.parts:
        if layout.piece(p.piece).shared:
            continue  # a set: its names need not tell its files apart
        first = seen.setdefault((p.piece, p.rank, p.coords), p.path)
        if p.home and first != p.path:
            yield finding("extra-file", f"{first.rpartition('/')[2]} is there as well for the same rank", path=p.path)


def _ranks(ranks: Sequence[int]) -> str:
    text = ", ".join(str(r) for r in ranks[:8])
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}{' …' if len(ranks) > 8 else ''} ({len(ranks)} in all)"


def label(c: Checkpoint) -> str:
    where = (
        f"step {c.step}"
        if c.step is not None
        else f"epoch {c.epoch}" + (f" step {c.step_in_epoch}" if c.step_in_epoch is not None else "")
        if c.epoch is not None
        else f"save {c.generation}"
        if c.generation is not None
        else c.path.rpartition("/")[2]
    )
    return f"the {c.kind} checkpoint of {where}"


def consistency(parts: Sequence[Part], reports: Reports) -> Iterator[tuple[str, Finding]]:
    """(path, finding) where names contradict contents, over the parts of one run that were read."""
    layout = BY_NAME[parts[0].layout]
    yield from layout.check([(p, r) for p in parts if (r := reports.get(p.path)) and r.format])


def signatures(parts: Sequence[Part], reports: Reports) -> Iterator[tuple[Part, Part]]:
    """(odd part, typical part) where a rank's tensors differ from those of most of its files in the run (the oldest wins a tie)."""
    rows: dict[object, list[tuple[Part, Report]]] = defaultdict(list)
    for p in parts:
        layout, report = BY_NAME[p.layout], reports.get(p.path)
        if (
            report
            and report.tensors
            and layout.compare_steps
            and not layout.piece(p.piece).weak
            and not any(f.code in ("truncated", "bad-header") for f in report.findings)
        ):
            role = p.role if p.layout == "mindspore" else p.piece
            rows[p.layout, p.run, role, p.rank, p.coords, p.generation, report.format, p.kind is Kind.RELEASE].append((p, report))
    for same in rows.values():
        same.sort(key=lambda row: (row[0].step or 0, row[0].epoch or 0, row[0].step_in_epoch or 0))
        usual = Counter(r.signature for _, r in same).most_common(1)[0][0]
        typical = next(p for p, r in same if r.signature == usual)
        yield from ((p, typical) for p, r in same if r.signature != usual)


def trackers(checkpoints: Sequence[Checkpoint], said: int | str | None, path: str, incomplete: set[str]) -> Iterator[Finding]:
    """What the tracker at ``path`` gets wrong about the checkpoints of its directory. ``incomplete`` are paths of checkpoints that lack parts."""
    if said is None:
        yield finding("bad-tracker", "the tracker is empty, or not what its framework writes", path=path)
        return
    tracked = BY_NAME[checkpoints[0].layout].tracked
    named = [c for c in checkpoints if tracked(c) == said]
    if not named:
        yield finding("dangling-tracker", f"the tracker names {said}, which is not there", path=path)
        return
    if all(c.path in incomplete for c in named):
        yield finding("dangling-tracker", f"the tracker names {said}, which is not complete", path=path)
    if any(c.kind is Kind.RELEASE for c in named):
        return
    highest = max(c.order for c in named)
    if newer := [c for c in checkpoints if c.order > highest and c.path not in incomplete and c.kind is Kind.PERIODIC]:
        yield finding("stale-tracker", f"the tracker names {said}, but {label(max(newer, key=lambda c: c.order))} is there and complete", path=path)


def saved_world_size(reports: Iterable[Report]) -> int | None:
    """The number of ranks that the files themselves say wrote them: Megatron's ``args.world_size``, DeepSpeed's data times model parallel size."""
    for r in reports:
        n = whole(r.metadata.get("args.world_size"))
        if not n and (dp := whole(r.metadata.get("dp_world_size"))):
            n = dp * (whole(r.metadata.get("mp_world_size")) or 1)
        if n and 0 < n <= 1 << 24:
            return n
    return None
