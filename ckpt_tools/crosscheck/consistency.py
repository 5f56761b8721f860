"""Where files contradict their names, each other, or the tracker beside them. Pure: parts and the reports made of them are all it sees."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ckpt_tools.discovery.completeness import label
from ckpt_tools.findings import finding
from ckpt_tools.layouts import BY_NAME, whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Report

Reports = Mapping[str, Report]


def consistency(parts: Sequence[Part], reports: Reports) -> Iterator[tuple[str, Finding]]:
    """(path, finding) where names contradict contents, over the parts of one run that were read."""
    if not parts:
        return
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
            rows[
                p.layout, p.run, role, p.rank, p.coords, p.generation, report.format, p.kind is Kind.RELEASE
            ].append((p, report))
    for same in rows.values():
        same.sort(key=lambda row: (row[0].step or 0, row[0].epoch or 0, row[0].step_in_epoch or 0))
        usual = Counter(r.signature for _, r in same).most_common(1)[0][0]
        typical = next(p for p, r in same if r.signature == usual)
        yield from ((p, typical) for p, r in same if r.signature != usual)


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
        for what, value in (
            ("tensors", lambda p: r.signature if (r := reports.get(p.path)) else ""),
            ("size", lambda p: p.size),
        ):
            usual, n = Counter(value(p) for p in same).most_common(1)[0]
            if 2 * n <= len(same) or not usual:
                continue
            typical = next(p for p in same if value(p) == usual)
            for p in same:
                near = what == "size" and abs(p.size - typical.size) * 100 <= typical.size
                if value(p) and value(p) != usual and not near:
                    yield p, typical, what


def straddled(checkpoints: Sequence[Checkpoint]) -> Iterator[tuple[Checkpoint, Checkpoint]]:
    """(checkpoint, another whose files were all written between two of its own): the files of one save never lie around another save."""
    spans = sorted(
        (min(times), max(times), i)
        for i, c in enumerate(checkpoints)
        if c.parts[0].home and (times := [p.mtime_ns for p in c.parts if p.size >= 0])
    )
    starts = [first for first, _, _ in spans]
    for first, last, i in spans:
        for other_first, other_last, j in spans[bisect_right(starts, first) : bisect_left(starts, last)]:
            if other_last < last and other_first > first and i != j:
                yield checkpoints[i], checkpoints[j]
                break


def trackers(
    checkpoints: Sequence[Checkpoint], said: int | str | None, path: str, incomplete: set[str]
) -> Iterator[Finding]:
    """What the tracker at ``path`` gets wrong about the checkpoints of its directory. ``incomplete`` are paths of checkpoints that lack parts."""
    if said is None:
        yield finding("bad-tracker", "the tracker is empty, or not what its framework writes", path=path)
        return
    tracked = BY_NAME[checkpoints[0].layout].tracked
    named = [c for c in checkpoints if tracked(c) == said]
    if not named:
        text = f"the tracker names {said}, which is not there"
        begun = [
            c
            for c in checkpoints
            if (told := tracked(c)) is not None and isinstance(said, int) and str(said).startswith(str(told))
        ]
        if (
            begun
        ):  # MindIO ACP writes over a longer number without cutting it off: 500 over 10000 leaves 50000
            text += f"; its first digits name {tracked(max(begun, key=lambda c: c.order))}, which is: a longer number may have been written over"
        yield finding("dangling-tracker", text, path=path)
        return
    if all(c.path in incomplete for c in named):
        yield finding(
            "dangling-tracker", f"the tracker names {said}, which is damaged or not complete", path=path
        )
    if any(c.kind is Kind.RELEASE for c in named):
        return
    highest = max(c.order for c in named)
    if newer := [
        c for c in checkpoints if c.order > highest and c.path not in incomplete and c.kind is Kind.PERIODIC
    ]:
        yield finding(
            "stale-tracker",
            f"the tracker names {said}, but {label(max(newer, key=lambda c: c.order))} is there and complete",
            path=path,
        )


AXES = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
         "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size", "dp": "data_parallel_size"}  # fmt: skip
"""Parallel axis -> what Megatron-LM's args call its size."""
_RANKS = 1 << 20
"""No job has more."""


def saved_world_size(reports: Iterable[Report]) -> int | None:
    """The number of ranks that the files themselves say wrote them: Megatron's ``args.world_size``, DeepSpeed's data times model parallel size."""
    for r in reports:
        n = whole(r.metadata.get("args.world_size"))
        if not n and (dp := whole(r.metadata.get("dp_world_size"))):
            n = dp * (whole(r.metadata.get("mp_world_size")) or 1)
        if n and 0 < n <= _RANKS:
            return n
    return None


def saved_sizes(reports: Iterable[Report]) -> dict[str, int]:
    """What the files of one checkpoint say about the job that saved it: "world" and the sizes of parallel axes, as far as they do."""
    out: dict[str, int] = {}
    for r in reports:
        said = {
            "world": saved_world_size([r]),
            **{axis: whole(r.metadata.get(f"args.{key}")) for axis, key in AXES.items()},
        }
        if mp := whole(r.metadata.get("mp_world_size")):
            said.update(tp=mp, dp=whole(r.metadata.get("dp_world_size")))
        for axis, n in said.items():
            if n and 0 < n <= _RANKS:
                out.setdefault(axis, n)
    if "dp" not in out and "world" in out and "tp" in out:
        out["dp"] = max(1, out["world"] // (out["tp"] * out.get("pp", 1) * out.get("cp", 1)))
    return out
