"""MindSpore's ModelCheckpoint: ``prefix[_K]-E_S.ckpt`` in one directory, in ``rank_R/``,
or in ``<dir>_R/`` beside each other.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.layouts.common.layout import (
    Beside,
    Compared,
    Counting,
    Layout,
    Metadata,
    Ranks,
    Records,
    Steps,
    whole,
)
from ckpt_tools.layouts.common.piece import OWN, Changes, Claim, Content, Piece, Readers, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Flaw, Notes, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.report import Report

CKPT = ("mindspore_ckpt", "mindspore_encrypted")
ST = ("safetensors",)


# ---- steps, as its entries tell them


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


def _alone(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Files that lack what other ranks hold, when there are none of other ranks."""
    ranks = {part.rank for part, _ in parts}
    for part, report in parts:
        if len(ranks) == 1 and report.metadata.get("remove_redundancy") == "True":
            what = (
                "it was saved with remove_redundancy, so files of other ranks hold the rest, and there are "
                "none"
            )
            yield part.path, Flaw("missing-rank", what, severity=Severity.WARNING)


_Found = Iterator[tuple[str, Flaw]]
_Values = list[tuple[Part, int]]


class _Counters(Struct):
    """What the files of one run count, grouped so that each group should agree."""

    epochs: dict[object, _Values] = field(default_factory=lambda: defaultdict(list))
    """``epoch_num`` less the epoch in the name: one constant per generation."""
    inside: dict[object, _Values] = field(default_factory=lambda: defaultdict(list))
    """``step_num`` less the step in the name: one constant per epoch."""
    grown: dict[object, _Values] = field(default_factory=lambda: defaultdict(list))
    """``global_step`` of each rank, which grows with the epoch and the step."""
    saves: dict[object, dict[str, _Values]] = field(
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


def check(parts: Sequence[tuple[Part, Report]]) -> _Found:
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


def _other_epochs(counters: _Counters) -> _Found:
    """Files of another epoch than their names say."""
    for values in counters.epochs.values():
        for part, value, common in _odd_ones_out(values):
            said = (part.epoch or 0) + value - common
            text = f"the name says epoch {part.epoch}, the file's epoch_num belongs to epoch {said}"
            yield part.path, Flaw("epoch-mismatch", text)


def _other_steps(counters: _Counters) -> _Found:
    """Files of another step of their epoch than their names say."""
    for values in counters.inside.values():
        for part, value, common in _odd_ones_out(values):
            said = (part.step_in_epoch or 0) + value - common
            named = f"step {part.step_in_epoch} of epoch {part.epoch}"
            text = f"the name says {named}, the file's step_num belongs to step {said}"
            yield part.path, Flaw("step-mismatch", text)


def _of_several_saves(counters: _Counters, wrong: Collection[str]) -> _Found:
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
            yield from ((part.path, Flaw(codes[entry], text)) for part in odd)


def _not_grown(counters: _Counters, wrong: Collection[str]) -> _Found:
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
                yield newer.path, Flaw("step-mismatch", text, severity=Severity.WARNING)


# ---- what MindFormers notes beside them (mindformers/tools/resume_ckpt.py)


_NAME = re.compile(r"[^/\0]{1,250}\.(ckpt|safetensors)")
_LIMIT = 4096
"""Bytes of a note; what is longer is none."""


class _Noted(NamedTuple):
    """A rank's last checkpoint."""

    epoch: int
    step: int
    file: str


def records(checkpoints: Sequence[Checkpoint], notes: Notes) -> Iterator[Flaw | Finding]:
    """What the notes beside the checkpoints of one run get wrong about them."""
    parts = [p for c in checkpoints for p in c.parts if c.kind is Kind.PERIODIC]
    noted: dict[str, _Noted] = {}
    for home in sorted({p.path.rpartition("/")[0] for p in parts}):
        yield from _meta(home, noted, notes)
    yield from _ahead(noted)
    names = {p.path.rpartition("/")[2] for p in parts}
    steps = {c.step for c in checkpoints}
    for base in sorted({p.base for p in parts}):
        path = f"{base}/resume_record/latest_checkpointed_iteration.txt"
        if (data := notes.read(path, _LIMIT)) is not None:
            yield from _decision(path, data, names, steps)


def _meta(home: str, noted: dict[str, _Noted], notes: Notes) -> Iterator[Flaw | Finding]:
    """What is wrong with the note of one rank; what it says is added to ``noted``."""
    path = f"{home}/meta.json"
    data = notes.read(path, _LIMIT)
    if data is None:
        return
    if isinstance(data, Finding):
        yield data
        return
    said = read_meta(data)
    if said is None:
        text = "it is no JSON object with last_epoch, last_step and last_ckpt_file"
        yield Flaw("bad-tracker", text, path=path)
        return
    noted[path] = said
    yield from _misnamed(path, home, said, notes)


def read_meta(data: bytes) -> _Noted | None:
    """What a ``meta.json`` says; None where it is none."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    epoch, step = whole(fields.get("last_epoch")), whole(fields.get("last_step"))
    name = fields.get("last_ckpt_file")
    if epoch is None or step is None or not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    return _Noted(epoch, step, name)


def _misnamed(path: str, home: str, said: _Noted, notes: Notes) -> Iterator[Flaw | Finding]:
    """A note whose file has another number, or is not there."""
    if not said.file.rpartition(".")[0].endswith(f"-{said.epoch}_{said.step}"):
        both = f"epoch {said.epoch} step {said.step} and the file {said.file}"
        yield Flaw("bad-tracker", f"it notes {both}, which contradict each other", path=path)
        return
    text = f"it notes {said.file}, which is not there"
    if wrong := notes.gone(f"{home}/{said.file}", path, text):
        yield wrong


def _ahead(noted: dict[str, _Noted]) -> Iterator[Flaw]:
    """Ranks that note a later checkpoint than the one that all of them have."""
    times = {path: (said.epoch, said.step) for path, said in noted.items()}
    if len(set(times.values())) < 2:
        return
    lowest = min(times, key=lambda path: times[path])
    epoch, step = times[lowest]
    ahead = sum(at > times[lowest] for at in times.values())
    common = f"epoch {epoch} step {step}, which is what all of them have"
    text = f"{ahead} of {len(times)} ranks note a later checkpoint than {common}"
    yield Flaw("step-mismatch", text, path=lowest, severity=Severity.WARNING)


def _decision(
    path: str, data: bytes | Finding, names: set[str], steps: set[int | None]
) -> Iterator[Flaw | Finding]:
    """The checkpoint that all ranks were told to resume from, where it is not there."""
    if isinstance(data, Finding):
        yield data
        return
    text = data.decode("utf-8", "replace").strip()
    if text.isdigit() and len(text) <= 18:
        there = int(text) in steps or None in steps
    elif _NAME.fullmatch(text.rpartition("/")[2]):
        there = text.rpartition("/")[2] in names
    else:
        yield Flaw("bad-tracker", "it holds neither a number nor the name of a checkpoint", path=path)
        return
    if not there:
        yield Flaw("dangling-tracker", f"it names {text[:200]}, which is not there", path=path)


# ---- the layout


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    """Scripts read the file, the epoch and the step from CKPT_PATH, CKPT_EPOCH and CKPT_STEP_IN_EPOCH; what
    lies beside the only model they find by its name.
    """
    models = [p.path for p in checkpoint.parts if p.role == "model"]
    return Resume(path or (models[0] if len(models) == 1 else None))


def _write_record(part: Part) -> bytes:
    """MindFormers' meta.json (mindformers/core/callback:
    last_epoch and last_step are those of the file's name).
    """
    name = json.dumps(part.path.rpartition("/")[2])
    counters = f'"last_epoch": {part.epoch}, "last_step": {part.step_in_epoch}'
    return f'{{{counters}, "last_ckpt_file": {name}}}'.encode()


def _pieces(prefix: str) -> Iterator[Piece]:
    saved, moment = partial(Piece, role="model", formats=CKPT, readers=OWN), "-{epoch}_{step_in_epoch}"
    # of MindCV and MindYOLO, beside weights with a number
    optimizer = Piece("optimizer", "optimizer", f"optim_{prefix}.ckpt", CKPT, changes=Changes.ROLLING)
    yield replace(optimizer, readers=Readers(survivable=True), required=False)
    gasp = f"{prefix}{moment}_breakpoint.ckpt"
    yield saved("breakpoint", template=gasp, kind=Kind.DYING_GASP)
    yield saved("iteration", template=f"iteration{moment}[{{tmp}}].ckpt", kind=Kind.DYING_GASP)
    for kind, suffix, formats in (("", "ckpt", CKPT), ("_st", "safetensors", ST)):
        released = partial(saved, formats=formats, kind=Kind.RELEASE)
        # of the weights alone, which MindFormers saves into checkpoint_network/ and checkpoint_trainable/
        weights = f"{prefix}-<network|trainable_params>{moment}.{suffix}"
        yield released(f"export{kind}", template=weights)
        # of MindYOLO's average of the weights, which it saves beside them
        yield released(f"average{kind}", template=f"EMA_{prefix}{moment}.{suffix}")
        # of MindCV's best weights so far, of whatever epoch (mindcv/utils/callbacks.py)
        yield released(f"best{kind}", template=f"{prefix}_best.{suffix}")
        yield saved(f"model{kind}", template=f"{prefix}{moment}.{suffix}", formats=formats)


_CALLABLE = replace(
    Piece("callable", "model", "{name}.ckpt", CKPT, readers=OWN, claim=Claim.WEAK),
    content=Content(step=True, state_told=("global_step", "step_num", "epoch_num")),
)
"""A name of one's own. MindOne saves weights under such, beside the whole state of train_resume.ckpt."""
LAYOUT = Layout(
    name="mindspore",
    title="MindSpore ModelCheckpoint",
    pieces=(
        *nest("rank_{rank}", _pieces("{prefix}[_rank_{rank}][_{generation}]"), "_rank"),
        *_pieces("{prefix}[_{generation}]"),
        replace(_CALLABLE, name="callable_rank", template="rank_{rank}/{name}.ckpt"),
        _CALLABLE,
    ),
    resume=_resume,
    ranks=Ranks(directories=True),  # MindFormers looks into those of all ranks for a step that all have
    # append_info goes on from the value that was loaded
    counting=Counting(place=place, first_epoch=1, restarts="step_num"),
    # the graph as protobuf: where checkpoints are, a new run gives it another name
    beside=Beside(stateless=("-graph.meta",), unneeded=(("-graph.meta", "-"),)),
    # MindFormers' note of a rank's last checkpoint
    records=Records(check=records, names=("meta.json",), write=_write_record),
    compared=Compared.BY_ROLE,
    steps=steps,
    check=check,
    reference=(
        "mindspore/train/callback/_checkpoint.py ModelCheckpoint, _get_file_prefix; "
        "mindspore/train/serialization.py save_checkpoint"
    ),
    limits=(
        (
            "names count the step inside the epoch; the global step comes from step_num or global_step in the"
            " file, else it is unknown"
        ),
        "<dir>_R counts as rank R only when the siblings number 0, 1, 2, … without a gap",
        (
            "optim_NAME.ckpt of MindCV and MindYOLO is of the save whose steps it tells, else of the one"
            " that was written within seconds of it"
        ),
        "a .ckpt with remove_redundancy does not say so: only its tensors tell that it is no replica",
    ),
)
