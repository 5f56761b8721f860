"""What MindFormers notes beside MindSpore's checkpoints: ``rank_R/meta.json``, and the resume record that tells all ranks one decision.

Source: mindformers/tools/resume_ckpt.py get_resume_checkpoint (last_epoch, last_step, last_ckpt_file; the lowest of all ranks is what it resumes from),
get_resume_record_txt (resume_record/).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.discovery.sidecars import gone, read_note
from ckpt_tools.findings import finding
from ckpt_tools.layouts import whole
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind

_NAME = re.compile(r"[^/\0]{1,250}\.(ckpt|safetensors)")


def records(checkpoints: Sequence[Checkpoint]) -> Iterator[Finding]:
    """What the notes beside the checkpoints of one MindSpore run get wrong about them."""
    parts = [p for c in checkpoints for p in c.parts if c.kind is Kind.PERIODIC]
    if not parts or parts[0].layout != "mindspore":
        return
    homes = {p.path.rpartition("/")[0]: p.rank for p in parts}
    said: dict[str, tuple[int, int]] = {}
    for home in sorted(homes):
        path = f"{home}/meta.json"
        if (data := read_note(path)) is not None:
            yield from _meta(path, data, home, said)
    if len(set(said.values())) > 1:
        lowest = min(said.values())
        ahead = sum(at > lowest for at in said.values())
        text = f"{ahead} of {len(said)} ranks note a later checkpoint than epoch {lowest[0]} step {lowest[1]}, which is what all of them have"
        yield finding("step-mismatch", text, path=min(said, key=lambda p: said[p]), severity=Severity.WARNING)
    names = {p.path.rpartition("/")[2] for p in parts}
    for base in sorted({p.base for p in parts}):
        path = f"{base}/resume_record/latest_checkpointed_iteration.txt"
        if (data := read_note(path)) is not None:
            yield from _decision(path, data, names, {c.step for c in checkpoints})


def _meta(path: str, data: bytes | Finding, home: str, said: dict[str, tuple[int, int]]) -> Iterator[Finding]:
    if isinstance(data, Finding):
        yield data
        return
    import json  # most runs have no such notes

    try:
        noted = json.loads(data)
    except (ValueError, RecursionError):
        noted = None
    fields = noted if isinstance(noted, dict) else {}
    epoch, step, name = (
        whole(fields.get("last_epoch")),
        whole(fields.get("last_step")),
        fields.get("last_ckpt_file"),
    )
    if epoch is None or step is None or not isinstance(name, str) or not _NAME.fullmatch(name):
        yield finding(
            "bad-tracker", "it is no JSON object with last_epoch, last_step and last_ckpt_file", path=path
        )
        return
    said[path] = epoch, step
    if not name.rpartition(".")[0].endswith(f"-{epoch}_{step}"):
        yield finding(
            "bad-tracker",
            f"it notes epoch {epoch} step {step} and the file {name}, which contradict each other",
            path=path,
        )
    elif wrong := gone(f"{home}/{name}", path, f"it notes {name}, which is not there"):
        yield wrong


def _decision(path: str, data: bytes | Finding, names: set[str], steps: set[int | None]) -> Iterator[Finding]:
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
