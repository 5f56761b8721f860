"""SpeechBrain's Checkpointer: a directory ``CKPT+<time>+NN`` for each save, with ``CKPT.yaml`` and a file
``<name>.ckpt`` for each object that is recovered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt_tools.layouts.common.counters import borrowed, steps_taken
from ckpt_tools.layouts.common.layout import (
    Complete,
    Counting,
    Layout,
    Metadata,
    Steps,
    resume_directory,
    whole,
)
from ckpt_tools.layouts.common.lost_files import without_names
from ckpt_tools.layouts.common.piece import TELLS_STEP, Piece, nest
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

TORCH = ("torch_zip", "torch_legacy")
TEXT = ("text_member",)
HOME = "CKPT+{name}"
DATE = re.compile(r"CKPT\+([0-9]{4}-[0-9]{2}-[0-9]{2}\+[0-9]{2}-[0-9]{2}-[0-9]{2})\+[0-9]+")
"""Such a home; the number after the second is the first that no other home has."""
COUNTERS = "<counter|epoch_counter|epoch|epochs>"
"""What recipes call their EpochCounter."""


def _steps(part: Part, metadata: Metadata) -> Steps:
    """The Brain counts the steps of its optimizer, the counter of a recipe its epochs."""
    epoch = whole(metadata.get("value")) if part.role == "counter" else None
    return whole(metadata.get("optimizer_step")) if part.role == "progress" else None, epoch, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """The Brain counts the steps that its optimizer takes."""
    taken = steps_taken([row for row in parts if row[0].role == "optimizer"])
    counted = [row for row in parts if row[0].home in taken]
    beside = "the optimizer beside it"
    yield from borrowed(counted, {"brain": ("optimizer_step",)}, lambda p: taken[p.home], beside=beside)
    copied = list(_copied_times(parts))
    yield from copied
    told = {path for path, _ in copied}
    yield from _other_epochs([row for row in parts if row[0].path not in told])


def _other_epochs(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Counters of another epoch than the one that a recipe noted of the save, where most saves' agree."""
    noted = {p.home: whole(r.metadata.get("epoch")) for p, r in parts if p.piece == "meta"}
    counted = ((p, whole(r.metadata.get("value"))) for p, r in parts if p.role == "counter")
    rows = [(p, n, of) for p, n in counted if None not in (n, of := noted.get(p.home))]
    odd = [row for row in rows if row[1] != row[2]]
    for p, n, of in odd if 2 * len(odd) < len(rows) else ():
        text = f"it counts epoch {n}, CKPT.yaml beside it notes {of}, and elsewhere in the run both agree"
        yield p.path, Flaw("epoch-mismatch", text)


def _copied_times(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """Each save notes when it was made, by which recovery finds the newest: of two that note the same moment,
    the one whose other files were written further from it has the notes of the other. A save that was copied
    as a whole is at the step of the other.
    """
    steps = {p.home: r.metadata.get("optimizer_step") for p, r in parts if p.role == "progress"}
    homes: dict[str, list[int]] = {}
    noted: dict[float, list[Part]] = {}
    for p, report in parts:
        if p.piece != "meta":
            homes.setdefault(p.home, []).append(p.mtime_ns)
        elif isinstance(at := report.metadata.get("unixtime"), float):
            noted.setdefault(at, []).append(p)
    for at, same in noted.items():
        away = {p.path: abs(min(homes.get(p.home, [p.mtime_ns])) - int(at * 1e9)) for p in same}
        own, *others = sorted(same, key=lambda p: (away[p.path], p.path))
        for p in others:
            if steps.get(p.home) != steps.get(own.home):
                text = "its unixtime is that of another save, as which SpeechBrain would find it"
                yield p.path, Flaw("step-mismatch", text)


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    yield from without_names(c, beside, lambda o: frozenset(p.name for p in o.parts))
    if not beside and not any("opt" in p.name.lower() for p in c.parts):  # recipes name their own
        text = "no file is called an optimizer's, and no other save tells whether there was one"
        yield Flaw("missing-part", text, path=c.path, severity=Severity.WARNING)


_HOOKS = (*TEXT, *TORCH)
"""A recipe saves its own by a hook."""
_PIECES = (
    Piece("brain", "progress", "brain.ckpt", _HOOKS, required=False, content=TELLS_STEP),
    Piece("counter", "counter", f"{COUNTERS}.ckpt", _HOOKS, required=False),
    Piece("data", "data", "dataloader-{name}.ckpt", _HOOKS, required=False),
    Piece("model", "model", "<model|modules>.ckpt", TORCH, required=False),
    Piece("optimizer", "optimizer", "<optimizer|opt>.ckpt", TORCH, required=False),
    Piece("state", "state", "{name}.ckpt", _HOOKS, required=False),
)
LAYOUT = Layout(
    name="speechbrain",
    title="SpeechBrain Checkpointer",
    pieces=tuple(nest(HOME, (Piece("meta", "metadata", "CKPT.yaml", TEXT), *_PIECES))),
    resume=resume_directory,  # what Checkpointer.find_checkpoint() is to find
    steps=_steps,
    check=_check,
    lost=_lost,
    complete=Complete(needs=("metadata",)),
    counting=Counting(
        first_epoch=1, dated=DATE
    ),  # of EpochCounter; between two epochs it is the one under way
    reshardable=True,
    reference=(
        "speechbrain 1.1.2: utils/checkpoints.py Checkpointer; core.py Brain._save(), "
        "_save_intra_epoch_ckpt(); utils/epoch_loop.py EpochCounter"
    ),
    limits=(
        "recover_if_possible() takes the newest unixtime there is: move a damaged one away, or give a view",
        "CKPT.yaml is written first: of a lone save that died nothing tells that files are missing",
        "what a recoverable's own hook writes must be a file of torch or a text",
    ),
)
