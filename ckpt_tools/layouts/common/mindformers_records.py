"""What MindFormers notes beside MindSpore's checkpoints:
``rank_R/meta.json``, and the record that tells all ranks one decision.

Source: mindformers/tools/resume_ckpt.py: get_resume_checkpoint (last_epoch, last_step, last_ckpt_file; the
lowest of all ranks is what it resumes from), get_resume_record_txt (resume_record/).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.layout import whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.notes import Notes
from ckpt_tools.model.part import Kind

_NAME = re.compile(r"[^/\0]{1,250}\.(ckpt|safetensors)")
_LIMIT = 4096
"""Bytes of a note; what is longer is none."""


class Noted(NamedTuple):
    """A rank's last checkpoint."""

    epoch: int
    step: int
    file: str


def records(checkpoints: Sequence[Checkpoint], notes: Notes) -> Iterator[Finding]:
    """What the notes beside the checkpoints of one run get wrong about them."""
    parts = [p for c in checkpoints for p in c.parts if c.kind is Kind.PERIODIC]
    noted: dict[str, Noted] = {}
    for home in sorted({p.path.rpartition("/")[0] for p in parts}):
        yield from _meta(home, noted, notes)
    yield from _ahead(noted)
    names = {p.path.rpartition("/")[2] for p in parts}
    steps = {c.step for c in checkpoints}
    for base in sorted({p.base for p in parts}):
        path = f"{base}/resume_record/latest_checkpointed_iteration.txt"
        if (data := notes.read(path, _LIMIT)) is not None:
            yield from _decision(path, data, names, steps)


def _meta(home: str, noted: dict[str, Noted], notes: Notes) -> Iterator[Finding]:
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
        yield finding("bad-tracker", text, path=path)
        return
    noted[path] = said
    yield from _misnamed(path, home, said, notes)


def read_meta(data: bytes) -> Noted | None:
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
    return Noted(epoch, step, name)


def _misnamed(path: str, home: str, said: Noted, notes: Notes) -> Iterator[Finding]:
    """A note whose file has another number, or is not there."""
    if not said.file.rpartition(".")[0].endswith(f"-{said.epoch}_{said.step}"):
        both = f"epoch {said.epoch} step {said.step} and the file {said.file}"
        yield finding("bad-tracker", f"it notes {both}, which contradict each other", path=path)
        return
    text = f"it notes {said.file}, which is not there"
    if wrong := notes.gone(f"{home}/{said.file}", path, text):
        yield wrong


def _ahead(noted: dict[str, Noted]) -> Iterator[Finding]:
    """Ranks that note a later checkpoint than the one that all of them have."""
    times = {path: (said.epoch, said.step) for path, said in noted.items()}
    if len(set(times.values())) < 2:
        return
    lowest = min(times, key=lambda path: times[path])
    epoch, step = times[lowest]
    ahead = sum(at > times[lowest] for at in times.values())
    common = f"epoch {epoch} step {step}, which is what all of them have"
    text = f"{ahead} of {len(times)} ranks note a later checkpoint than {common}"
    yield finding("step-mismatch", text, path=lowest, severity=Severity.WARNING)


def _decision(path: str, data: bytes | Finding, names: set[str], steps: set[int | None]) -> Iterator[Finding]:
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
        yield finding("bad-tracker", "it holds neither a number nor the name of a checkpoint", path=path)
        return
    if not there:
        yield finding("dangling-tracker", f"it names {text[:200]}, which is not there", path=path)
