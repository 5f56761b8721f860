"""What the entries of MindSpore checkpoints say about steps, and whether the files of one run agree."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, pairwise

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.layout import Metadata, Steps, whole
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import field, record
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Report


def steps(part: Part, metadata: Metadata) -> Steps:
    """(global step, epoch, step in epoch). A breakpoint file's ``step_num`` counts inside the epoch,
    so only ``global_step`` tells its step. Where a file of any name does not tell, its name does.

    Source: mindspore/train/callback/_checkpoint.py, entries written by ``append_info`` and by the optimizer.
    """
    counted = whole(metadata.get("global_step")) or None  # some optimizers of 2.0 carry it and leave it at 0
    said = whole(metadata.get("step_num"))
    inside = part.kind is Kind.DYING_GASP and part.piece.startswith("breakpoint")
    step = counted if inside or said is None else said
    epoch = part.epoch if part.epoch is not None else whole(metadata.get("epoch_num"))
    if (step, epoch) == (None, None) and part.piece.startswith("callable"):
        return _named(part.name)
    return (step if step is not None else part.step), epoch, part.step_in_epoch


def _named(name: str) -> Steps:
    """What the name of a file of any name tells: the numbers behind the words, else the one at its end."""
    step, epoch = (
        re.search(rf"(?i)(?<![a-z]){word}[-_=]?(\d{{1,18}})", name)
        for word in ("(?:step|iter)", "ep(?:och)?")
    )
    last = None if step or epoch else re.search(r"(?<!\d)(\d{1,18})\.\w+$", name)
    told = step or last
    return int(told[1]) if told else None, int(epoch[1]) if epoch else None, None


def place(part: Part, siblings: Sequence[tuple[Part, Metadata]]) -> int | None:
    """The global step of a part whose content counts inside the epoch:
    from the steps before its epoch, as its siblings since the same restart count them.
    """
    before = {
        p.epoch: step - p.step_in_epoch
        for p, m in reversed(siblings)
        if p.generation == part.generation
        and p.epoch
        and p.step_in_epoch
        and (step := whole(m.get("step_num"))) is not None
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
            what = (
                "it was saved with remove_redundancy, so files of other ranks hold the rest, and there are "
                "none"
            )
            yield part.path, finding("missing-rank", what, severity=Severity.WARNING)


Found = Iterator[tuple[str, Finding]]
Values = list[tuple[Part, int]]


@record
class _Counters:
    """What the files of one run count, grouped so that each group should agree."""

    epochs: dict[object, Values] = field(default_factory=lambda: defaultdict(list))
    """``epoch_num`` less the epoch in the name: one constant per generation."""
    inside: dict[object, Values] = field(default_factory=lambda: defaultdict(list))
    """``step_num`` less the step in the name: one constant per epoch."""
    grown: dict[object, Values] = field(default_factory=lambda: defaultdict(list))
    """``global_step`` of each rank, which grows with the epoch and the step."""
    saves: dict[object, dict[str, Values]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """What the files of one save count, by the name of the entry: it is the same in all."""

    def add(self, part: Part, metadata: Metadata) -> None:
        """Sort in what one file counts."""
        if part.epoch is None or part.step_in_epoch is None:
            return
        dying = part.kind is Kind.DYING_GASP
        epoch_num, step_num = whole(metadata.get("epoch_num")), whole(metadata.get("step_num"))
        global_step = whole(metadata.get("global_step"))
        save = self.saves[part.kind, part.generation, part.epoch, part.step_in_epoch]
        if epoch_num is not None:
            save["epoch_num"].append((part, epoch_num))
            self.epochs[dying, part.generation].append((part, epoch_num - part.epoch))
        if step_num is not None:
            save["step_num"].append((part, step_num))
        if step_num is not None and not (dying and step_num == part.step_in_epoch):
            generation = None if dying else part.generation
            self.inside[generation, part.epoch].append((part, step_num - part.step_in_epoch))
        if global_step and not dying:
            self.grown[part.rank, part.generation].append((part, global_step))


def check(parts: Sequence[tuple[Part, Report]]) -> Found:
    """Names against ``epoch_num``, ``step_num`` and ``global_step`` over the files of one run.

    A resumed run starts its counters above zero, so only differences between files can contradict.
    """
    counters = _Counters()
    for part, report in parts:
        counters.add(part, report.metadata)
    yield from _alone(parts)
    wrong: set[str] = set()
    for path, f in chain(_other_epochs(counters), _other_steps(counters)):
        if path not in wrong:
            wrong.add(path)
            yield path, f
    for path, f in _of_several_saves(counters, frozenset(wrong)):
        wrong.add(path)
        yield path, f
    yield from _not_grown(counters, wrong)


def _other_epochs(counters: _Counters) -> Found:
    """Files of another epoch than their names say."""
    for values in counters.epochs.values():
        for part, value, common in _odd_ones_out(values):
            said = (part.epoch or 0) + value - common
            text = f"the name says epoch {part.epoch}, the file's epoch_num belongs to epoch {said}"
            yield part.path, finding("epoch-mismatch", text)


def _other_steps(counters: _Counters) -> Found:
    """Files of another step of their epoch than their names say."""
    for values in counters.inside.values():
        for part, value, common in _odd_ones_out(values):
            said = (part.step_in_epoch or 0) + value - common
            named = f"step {part.step_in_epoch} of epoch {part.epoch}"
            text = f"the name says {named}, the file's step_num belongs to step {said}"
            yield part.path, finding("step-mismatch", text)


def _of_several_saves(counters: _Counters, wrong: Collection[str]) -> Found:
    """Files of one save that count differently, and are not ``wrong`` anyway: those that differ from most of
    it, or all where nobody knows which are another save's.
    """
    codes = {"epoch_num": "epoch-mismatch", "step_num": "step-mismatch"}
    for save in counters.saves.values():
        for entry, counted in save.items():
            values = [(part, value) for part, value in counted if part.path not in wrong]
            several = sorted({value for _, value in values})
            if len(several) < 2:
                continue
            text = f"the files of one save have different values of {entry}: {', '.join(map(str, several))}"
            odd = [part for part, _, _ in _odd_ones_out(values)] or [part for part, _ in values]
            yield from ((part.path, finding(codes[entry], text)) for part in odd)


def _not_grown(counters: _Counters, wrong: Collection[str]) -> Found:
    """Files whose global step is no higher than that of an older file;
    not beside files that are ``wrong`` anyway.
    """
    for rows in counters.grown.values():
        rows.sort(key=lambda r: (r[0].epoch or 0, r[0].step_in_epoch or 0))
        for (older, before), (newer, after) in pairwise(rows):
            if after <= before and older.path not in wrong and newer.path not in wrong:
                name = older.path.rpartition("/")[2]
                beside = f"yet an older file of this rank ({name}) already has {before}"
                text = f"global_step is {after}, {beside}"
                yield newer.path, finding("step-mismatch", text, severity=Severity.WARNING)
