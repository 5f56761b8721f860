"""MindSpore's ModelCheckpoint: ``prefix[_K]-E_S.ckpt`` in one directory, in ``rank_R/``, or in ``<dir>_R/``
beside each other; MindFormers from 1.7 on; and MindIO TTP's dying gasps.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from json import dumps
from typing import Annotated

from msgspec import Meta, MsgspecError, Struct, json

from ckpt_tools.layouts.common.counters import as_int
from ckpt_tools.layouts.common.layout import (
    Counting,
    Flaws,
    Found,
    Metadata,
    Records,
    Rows,
    Saves,
    Steps,
    read_number,
)
from ckpt_tools.layouts.common.lost_files import check_optimizer, loss
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Flaw, Notes, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.ranges import gaps, words


def _read_counters(part: Part, metadata: Metadata) -> Steps:
    """Return a file's (global step, epoch, step in epoch), else those in its name.

    Source: mindspore/train/callback/_checkpoint.py, entries written by ``append_info`` and by the optimizer.
    """
    # some optimizers of 2.0 carry global_step and leave it at 0
    global_step, step_num = as_int(metadata.get("global_step")) or None, as_int(metadata.get("step_num"))
    # there step_num counts inside the epoch
    is_breakpoint = part.kind is Kind.DYING_GASP and part.piece.startswith("breakpoint")
    step = global_step if is_breakpoint or step_num is None else step_num
    epoch = part.epoch if part.epoch is not None else as_int(metadata.get("epoch_num"))
    if (step, epoch) == (None, None) and part.piece.startswith("callable"):
        # the numbers behind the words, else the one at the end of the name
        step_match = re.search(r"(?i)(?<![a-z])(?:step|iter)[-_=]?(\d{1,18})", part.name)
        epoch_match = re.search(r"(?i)(?<![a-z])ep(?:och)?[-_=]?(\d{1,18})", part.name)
        if not (step_match or epoch_match):
            step_match = re.search(r"(?<!\d)(\d{1,18})\.\w+$", part.name)
        return int(step_match[1]) if step_match else None, int(epoch_match[1]) if epoch_match else None, None
    return (step if step is not None else part.step), epoch, part.step_in_epoch


def _compute_step(part: Part, siblings: Sequence[tuple[Part, Metadata]]) -> int | None:
    """Return the global step of a part that counts inside its epoch, as siblings since its restart tell."""
    before = {  # epoch -> the steps before it
        p.epoch: step - p.step_in_epoch
        for p, m in reversed(siblings)
        if p.generation == part.generation
        and p.epoch
        and p.step_in_epoch
        and (step := as_int(m.get("step_num"))) is not None
    }
    if part.epoch is None or part.step_in_epoch is None or not before:
        return None
    if part.epoch in before:
        return before[part.epoch] + part.step_in_epoch
    (first, steps), *others = sorted(before.items())
    if not others:
        return None
    steps_per_epoch, rest = divmod(others[-1][1] - steps, others[-1][0] - first)
    return None if rest else steps + (part.epoch - first) * steps_per_epoch + part.step_in_epoch


_Values = list[tuple[Part, int]]
"""Files with one number each, which should be the same for all."""


def _find_outliers(values: _Values) -> Iterator[tuple[Part, int]]:
    """Yield parts whose value is not the most common one, and the difference; none without a majority."""
    (common, n), *rest = Counter(v for _, v in values).most_common()
    if rest and rest[0][1] < n:
        yield from ((p, v - common) for p, v in values if v != common)


def _check_counters(parts: Rows) -> Found:
    """Yield files whose counters contradict other files: a resumed run starts them above zero."""
    ranks = {part.rank for part, _ in parts}
    for part, report in parts:
        if len(ranks) == 1 and report.metadata.get("remove_redundancy") == "True":
            text = "it was saved with remove_redundancy, so files of other ranks hold the rest"
            yield part.path, Flaw("missing-rank", f"{text}, and there are none", severity=Severity.WARNING)
    named = [(p, r) for p, r in parts if p.epoch is not None and p.step_in_epoch is not None]
    wrong = dict[str, Flaw]()
    for path, f in _find_other_counts(named):
        wrong.setdefault(path, f)
    yield from wrong.items()
    mixed = list(_find_mixed_saves(named, frozenset(wrong)))
    yield from mixed
    yield from _find_standstills(named, wrong.keys() | {path for path, _ in mixed})


def _find_other_counts(parts: Rows) -> Found:
    """Yield files whose numbers differ otherwise from their names than those of their generation or epoch."""
    epochs, steps = defaultdict[object, _Values](list), defaultdict[object, _Values](list)
    for part, report in parts:
        epoch, step, dying = part.epoch or 0, part.step_in_epoch or 0, part.kind is Kind.DYING_GASP
        epoch_num, step_num = (as_int(report.metadata.get(key)) for key in ("epoch_num", "step_num"))
        if epoch_num is not None:
            epochs[dying, part.generation].append((part, epoch_num - epoch))
        if step_num is not None and not (dying and step_num == step):
            steps[None if dying else part.generation, epoch].append((part, step_num - step))
    for part, away in chain.from_iterable(map(_find_outliers, epochs.values())):
        text = f"the name says epoch {part.epoch}, the file's epoch_num belongs to epoch"
        yield part.path, Flaw("epoch-mismatch", f"{text} {(part.epoch or 0) + away}")
    for part, away in chain.from_iterable(map(_find_outliers, steps.values())):
        text = f"the name says step {part.step_in_epoch} of epoch {part.epoch}, the file's step_num belongs"
        yield part.path, Flaw("step-mismatch", f"{text} to step {(part.step_in_epoch or 0) + away}")


def _find_mixed_saves(parts: Rows, wrong: Collection[str]) -> Found:
    """Yield files of one save that count differently from most, or all of them without a majority."""
    saves = defaultdict[tuple[Kind, int | None, int | None, int | None, str], _Values](list)
    for part, report in parts:
        for entry in ("epoch_num", "step_num"):
            if (value := as_int(report.metadata.get(entry))) is not None and part.path not in wrong:
                save = part.kind, part.generation, part.epoch, part.step_in_epoch, entry
                saves[save].append((part, value))
    for (_, _, _, _, entry), values in saves.items():
        several = sorted({value for _, value in values})
        if len(several) > 1:
            text = f"the files of one save have different values of {entry}: {', '.join(map(str, several))}"
            code = "epoch-mismatch" if entry == "epoch_num" else "step-mismatch"
            reported = [part for part, _ in _find_outliers(values)] or [part for part, _ in values]
            yield from ((part.path, Flaw(code, text)) for part in reported)


def _find_standstills(parts: Rows, wrong: Collection[str]) -> Found:
    """Yield files with no higher global step than an older file of their rank, but no ``wrong`` paths."""
    grown = defaultdict[object, _Values](list)
    for part, report in parts:
        global_step = as_int(report.metadata.get("global_step"))
        if global_step and part.kind is not Kind.DYING_GASP:
            grown[part.rank, part.generation].append((part, global_step))
    for rows in grown.values():
        rows.sort(key=lambda r: (r[0].epoch or 0, r[0].step_in_epoch or 0))
        for (older, before), (newer, after) in pairwise(rows):
            if after <= before and older.path not in wrong and newer.path not in wrong:
                beside = f"yet an older file of this rank ({older.name}) already has {before}"
                text = f"global_step is {after}, {beside}"
                yield newer.path, Flaw("step-mismatch", text, severity=Severity.WARNING)


# ---- notes that MindFormers writes beside checkpoints (mindformers/tools/resume_ckpt.py)


_NAME = re.compile(r"[^/\0]{1,250}\.(ckpt|safetensors)")
_LIMIT = 4096
"""The most bytes of a note."""


class _Noted(Struct, frozen=True):
    """A rank's last checkpoint, as its meta.json says."""

    last_epoch: int
    last_step: int
    last_ckpt_file: Annotated[str, Meta(pattern=rf"^{_NAME.pattern}\Z")]


def check_records(checkpoints: Saves, notes: Notes) -> Iterator[Flaw | Finding]:
    """Yield contradictions between the checkpoints of one run and the notes beside them."""
    parts = [p for c in checkpoints for p in c.parts if c.kind is Kind.PERIODIC]
    noted: dict[str, _Noted] = {}
    for home in sorted({p.path.rpartition("/")[0] for p in parts}):
        path = f"{home}/meta.json"
        data = notes.read(path, _LIMIT)
        if isinstance(data, Finding):
            yield data
        elif data is not None:
            yield from _check_record(data, path, home, noted, notes)
    yield from _find_ranks_ahead(noted)
    names, steps = {p.name for p in parts}, {c.step for c in checkpoints}
    for base in sorted({p.base for p in parts}):
        path = f"{base}/resume_record/latest_checkpointed_iteration.txt"
        if (data := notes.read(path, _LIMIT)) is not None:
            yield from _check_resume_note(path, data, names, steps)


def _check_record(
    data: bytes, path: str, home: str, noted: dict[str, _Noted], notes: Notes
) -> Iterator[Flaw | Finding]:
    """Yield errors in the note of one rank, ``meta.json``; its content is added to ``noted``."""
    try:
        note = noted[path] = json.decode(data, type=_Noted)
    except (MsgspecError, ValueError, RecursionError):
        text = "it is not a JSON object with last_epoch, last_step and last_ckpt_file"
        yield Flaw("bad-tracker", text, path=path)
        return
    file = note.last_ckpt_file
    if not file.rpartition(".")[0].endswith(f"-{note.last_epoch}_{note.last_step}"):
        both = f"epoch {note.last_epoch} step {note.last_step} and the file {file}"
        yield Flaw("bad-tracker", f"it notes {both}, which contradict each other", path=path)
    elif wrong := notes.gone(f"{home}/{file}", path, f"it notes {file}, which is not there"):
        yield wrong


def _find_ranks_ahead(noted: Mapping[str, _Noted]) -> Flaws:
    """Yield a warning if ranks note a later checkpoint than the last one that all ranks have."""
    times = {path: (note.last_epoch, note.last_step) for path, note in noted.items()}
    if len(set(times.values())) > 1:
        lowest = min(times, key=lambda path: times[path])
        epoch, step = times[lowest]
        ahead = sum(at > times[lowest] for at in times.values())
        text = f"{ahead} of {len(times)} ranks note a later checkpoint than epoch {epoch} step {step}"
        text += ", which is what all of them have"
        yield Flaw("step-mismatch", text, path=lowest, severity=Severity.WARNING)


def _check_resume_note(
    path: str, data: bytes | Finding, names: set[str], steps: set[int | None]
) -> Iterator[Flaw | Finding]:
    """Yield a flaw if the checkpoint that all ranks were told to resume from is not there."""
    if isinstance(data, Finding):
        yield data
        return
    text = data.decode("utf-8", "replace").strip()
    name = text.rpartition("/")[2]
    if (number := read_number(text.encode())) is None and not _NAME.fullmatch(name):
        yield Flaw("bad-tracker", "it holds neither a number nor the name of a checkpoint", path=path)
    elif not (name in names if number is None else steps & {number, None}):
        yield Flaw("dangling-tracker", f"it names {text[:200]}, which is not there", path=path)


def _write_record(part: Part) -> bytes:
    """Return MindFormers' meta.json of a file, with the numbers in its name (mindformers/core/callback)."""
    counters = f'"last_epoch": {part.epoch}, "last_step": {part.step_in_epoch}'
    return f'{{{counters}, "last_ckpt_file": {dumps(part.name)}}}'.encode()


# ---- the layout


def _resume(checkpoint: Checkpoint, path: str | None) -> Resume:
    """Return the file of all ranks, else a lone model, by whose name a script finds the files beside it."""
    models = [p.path for p in checkpoint.parts if p.role == "model"]
    return Resume(path or (models[0] if len(models) == 1 else None))


MINDSPORE = declare(
    "mindspore",
    "mindspore",
    resume=_resume,
    # append_info goes on from the value that was loaded
    counting=Counting(place=_compute_step, first_epoch=1, restarts="step_num"),
    # MindFormers' note of a rank's last checkpoint
    records=Records(check=check_records, names=("meta.json",), write=_write_record),
    steps=_read_counters,
    check=_check_counters,
)


def _find_lost_of_mindformers(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield missing numbers among the files of a role, and metadata.json, which tells what is in them."""
    kinds = defaultdict[str, list[dict[str, int]]](list)
    for part in c.parts:
        if part.coords:
            kinds[part.role].append(dict(part.coords))
    for role, files in kinds.items():
        n = max(at["of"] for at in files)
        if gone := gaps((at["shard"] for at in files if at["of"] == n), n):
            yield loss(f"of the {n} files of the {role} number {words(gone)} (from 0) are not there", c.path)
    if max(map(len, kinds.values()), default=1) > 1 and "index" not in {p.role for p in c.parts}:
        yield loss("there is no metadata.json, without which files of several ranks are not loaded", c.path)
    yield from check_optimizer(c, beside, ("model",))


MINDFORMERS = declare("mindspore", "mindformers", lost=_find_lost_of_mindformers)


def _check_mindio(parts: Rows) -> Found:
    """Yield files whose ``epoch_num`` or ``step_num`` contradicts the names of files or directories."""
    homes = defaultdict[str, _Values](list)
    for part, report in parts:
        step_num, batch_num = (as_int(report.metadata.get(key)) for key in ("step_num", "batch_num"))
        if step_num is None:
            continue
        homes[part.home].append((part, step_num))
        expected = ((part.epoch or 0) - 1) * (batch_num or 0) + (part.step_in_epoch or 0)
        if batch_num and expected != step_num:
            text = f"the name says step {expected} ({batch_num} steps per epoch)"
            yield part.path, Flaw("step-mismatch", f"{text}, the file's step_num is {step_num}")
    for rows in homes.values():
        yield from _find_odd_offsets(rows)


def _find_odd_offsets(rows: _Values) -> Found:
    """Yield files, given with ``step_num``, for which the directory's step less it is negative or unusual."""
    offsets = [(part.step or 0) - step_num for part, step_num in rows]
    usual = max(set(offsets), key=lambda offset: (offset >= 0, offsets.count(offset)))
    for (part, step_num), offset in zip(rows, offsets, strict=True):
        if offset < 0 or offset != usual:
            text = f"the directory says step {part.step}, the file's step_num is {step_num}"
            others = "" if offset == usual else f"; the other ranks differ from it by {usual}"
            yield part.path, Flaw("step-mismatch", text + others)


MINDIO_TTP = declare("mindspore", "mindio-ttp", resume=lambda _c, path: Resume(path), check=_check_mindio)
