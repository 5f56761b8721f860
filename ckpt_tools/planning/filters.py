"""Which checkpoints a question is about: the filters by layout, run, prefix, kind and step. Pure."""

from __future__ import annotations

from operator import attrgetter

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.choose import StepOf

named_step: StepOf = attrgetter("step")
"""The step as a checkpoint's name tells it; None where only its contents do."""


def belongs(c: Checkpoint, selection: Selection) -> bool:
    """Whether a checkpoint is of the layout, the run and the prefix that were asked for."""
    run, prefix = selection.run, selection.prefix or ""
    if run is not None and run.rstrip("/") not in (c.run, c.parts[0].base, c.run.rpartition("/")[2]):
        return False
    named = is_whole_prefix(c, prefix) or any(p.path.rpartition("/")[2].startswith(prefix) for p in c.parts)
    return named and selection.layout in (None, c.layout)


def is_whole_prefix(c: Checkpoint, prefix: str) -> bool:
    """Whether a prefix is all that keeps the checkpoint's run apart: ``bert`` is not ``bert_large``."""
    return prefix in (c.parts[0].prefix, f"{c.parts[0].prefix}_{c.parts[0].generation}")


def allows(selection: Selection, c: Checkpoint, step_of: StepOf = named_step) -> bool:
    """Return True if --kind and --max-step leave a checkpoint. ``step_of`` may read, and is called last."""
    if selection.kind not in (None, c.kind):
        return False
    return selection.max_step is None or ((step := step_of(c)) is not None and step <= selection.max_step)


def is_requested(c: Checkpoint, selection: Selection) -> bool:
    """Return True if a checkpoint was asked for; of an unfinished save its name alone must tell."""
    return belongs(c, selection) and (not c.unfinished or allows(selection, c))
