"""Lightning: ``epoch=E-step=S.ckpt`` with E from 0, ``last.ckpt`` a copy of the newest,
and names of the user's own.
"""

from __future__ import annotations

from ckpt_tools.layouts import deepspeed
from ckpt_tools.layouts.common.counters import check_steps
from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves, as_int, loss
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity


def _check_counters(parts: Rows) -> Found:
    """Yield files of another step or epoch than their names; and the newest ``last.ckpt`` if a checkpoint
    beside it has a later step. A run that began anew renews ``last-v1.ckpt`` instead; a ``last.ckpt`` written
    before that checkpoint is of another callback, or the job died between the two, so a note.
    """
    yield from check_steps(parts, "global_step")
    yield from deepspeed.find_lost_optimizers(parts)
    for part, report in parts:
        epoch = as_int(report.metadata.get("epoch"))
        if None not in (epoch, part.epoch) and epoch != part.epoch:
            text = f"the name says epoch {part.epoch}, the file says {epoch}"
            yield part.path, Flaw("epoch-mismatch", text)
    numbered = [
        (p.step, p.mtime_ns) for p, _ in parts if p.piece in ("checkpoint", "called") and p.step is not None
    ]
    newest, newest_ns = max(numbered, default=(0, 0))
    rows = [(as_int(r.metadata.get("global_step")), p) for p, r in parts if p.piece == "last"]
    last_files = [(step, p) for step, p in rows if step is not None]
    step, last = max(last_files, key=lambda row: row[0], default=(newest, None))
    if last is not None and step < newest:
        is_early = last.mtime_ns < newest_ns
        text = f"it is of step {step}, and a checkpoint of step {newest} beside it"
        text += "" if is_early else f": every save renews {last.name}"
        severity = Severity.NOTE if is_early else Severity.WARNING
        yield last.path, Flaw("step-mismatch", text, severity=severity)


def _find_lost_files(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield lost model states of an engine, and directories without a file that Lightning needs to load."""
    yield from deepspeed.check_model(c, beside)
    # WandbLogger logs a directory for each version of a save, with the file in it
    exempt = ("tag", "model") if any(p.piece == "artifact" for p in c.parts) else ("tag",)
    files = [p for p in c.parts if p.home and p.role not in exempt and deepspeed.MARK not in p.piece]
    for role, name in (("metadata", ".metadata"), ("state", "meta.pt")) if files else ():
        if all(part.role != role for part in files):
            text = f"{files[0].home.rpartition('/')[2]} has no {name}: Lightning does not load it"
            yield loss(text, files[0].path)


LIGHTNING = declare(
    __name__,
    "lightning",
    steps=lambda _part, metadata: (as_int(metadata.get("global_step")), as_int(metadata.get("epoch")), None),
    check=_check_counters,
    lost=_find_lost_files,
)
