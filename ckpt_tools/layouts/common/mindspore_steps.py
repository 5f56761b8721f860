"""What the entries of MindSpore checkpoints say about steps, and whether the files of one run agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.layout import Metadata, Steps, whole
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Report


def steps(part: Part, metadata: Metadata) -> Steps:
    """(global step, epoch, step in epoch). A breakpoint file's ``step_num`` counts inside the epoch, so only ``global_step`` tells its step.

    Source: mindspore/train/callback/_checkpoint.py, entries written by ``append_info`` and by the optimizer.
    """
    counted = whole(metadata.get("global_step")) or None  # some optimizers of 2.0 carry it and leave it at 0
    said = whole(metadata.get("step_num"))
    step = (
        counted
        if part.kind is Kind.DYING_GASP and part.piece.startswith("breakpoint")
        else said
        if said is not None
        else counted
    )
    epoch = part.epoch if part.epoch is not None else whole(metadata.get("epoch_num"))
    return (step if step is not None else part.step), epoch, part.step_in_epoch


def place(part: Part, siblings: Sequence[tuple[Part, Metadata]]) -> int | None:
    """The global step of a part whose content counts inside the epoch: from the steps before its epoch, as its siblings count them."""
    before = {
        p.epoch: step - p.step_in_epoch
        for p, m in reversed(siblings)
        if p.epoch and p.step_in_epoch and (step := whole(m.get("step_num"))) is not None
    }
    if part.epoch is None or part.step_in_epoch is None or not before:
        return None
    if part.epoch in before:
        return before[part.epoch] + part.step_in_epoch
    (a, first), *others = sorted(before.items())
    if not others or (others[-1][1] - first) % (others[-1][0] - a):
        return None
    return first + (part.epoch - a) * ((others[-1][1] - first) // (others[-1][0] - a)) + part.step_in_epoch


def _odd_ones_out(values: Sequence[tuple[Part, int]]) -> Iterator[tuple[Part, int, int]]:
    """(part, its value, the value most have): nothing when there is no clear majority."""
    (common, n), *rest = Counter(v for _, v in values).most_common()
    if rest and rest[0][1] < n:
        yield from ((p, v, common) for p, v in values if v != common)


def _alone(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """Files that lack what other ranks hold, when there are none of other ranks."""
    ranks = {part.rank for part, _ in parts}
    for part, report in parts:
        if len(ranks) == 1 and report.metadata.get("remove_redundancy") == "True":
            what = "it was saved with remove_redundancy, so files of other ranks hold the rest, and there are none"
            yield part.path, finding("missing-rank", what, severity=Severity.WARNING)


def check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Finding]]:
    """Names against ``epoch_num``, ``step_num`` and ``global_step`` over the files of one run.

    A resumed run starts its counters above zero, so only differences between files can contradict: ``epoch_num - E`` is one constant
    per generation, ``step_num - S`` one per epoch, and ``global_step`` grows with (E, S).
    """
    epochs: dict[tuple[bool, int | None], list[tuple[Part, int]]] = defaultdict(list)
    inside: dict[tuple[int | None, int | None], list[tuple[Part, int]]] = defaultdict(list)
    counted: dict[tuple[int | None, int | None], list[tuple[Part, int]]] = defaultdict(list)
    for part, report in parts:
        if part.epoch is None or part.step_in_epoch is None:
            continue
        m, dying = report.metadata, part.kind is Kind.DYING_GASP
        epoch_num, step_num, global_step = (
            whole(m.get("epoch_num")),
            whole(m.get("step_num")),
            whole(m.get("global_step")),
        )
        if epoch_num is not None:
            epochs[dying, part.generation].append((part, epoch_num - part.epoch))
        if step_num is not None and not (dying and step_num == part.step_in_epoch):
            inside[part.generation if not dying else None, part.epoch].append(
                (part, step_num - part.step_in_epoch)
            )
        if global_step and not dying:
            counted[part.rank, part.generation].append((part, global_step))
    yield from _alone(parts)
    wrong: set[str] = set()
    for values in epochs.values():
        for part, value, common in _odd_ones_out(values):
            wrong.add(part.path)
            said = (part.epoch or 0) + value - common
            yield (
                part.path,
                finding(
                    "epoch-mismatch",
                    f"the name says epoch {part.epoch}, the file's epoch_num belongs to epoch {said}",
                ),
            )
    for values in inside.values():
        for part, value, common in _odd_ones_out(values):
            if part.path not in wrong:
                wrong.add(part.path)
                said = (part.step_in_epoch or 0) + value - common
                text = f"the name says step {part.step_in_epoch} of epoch {part.epoch}, the file's step_num belongs to step {said}"
                yield part.path, finding("step-mismatch", text)
    for rows in counted.values():
        rows.sort(key=lambda r: (r[0].epoch or 0, r[0].step_in_epoch or 0))
        for (older, before), (newer, after) in pairwise(rows):
            if after <= before and not {older.path, newer.path} & wrong:
                text = f"global_step is {after}, yet an older file of this rank ({older.path.rpartition('/')[2]}) already has {before}"
                yield newer.path, finding("step-mismatch", text, severity=Severity.WARNING)
