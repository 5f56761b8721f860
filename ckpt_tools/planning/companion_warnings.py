"""What training would begin anew from the choice: the state beside its weights that is of another save, such
as what each save writes over (``optim_NAME.ckpt``, ``optimizer.pt``), or that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_tools.discovery.completeness import label
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.layouts.common.lost_files import is_weights_alone, weights_of_a_trainer
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_HYPERPARAMETERS = ("learning_rate", "global_step")
"""Entries of every optimizer of MindSpore, which the network that is trained saves with its weights."""


def of_companions(s: Session, c: Checkpoint, saves: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Return warnings about companions that are of another save, damaged or gone: a loop that finds them
    loads them with the weights of the choice, or begins anew.
    """
    others = [o for o in saves if o.key != c.key and (o.layout, o.run) == (c.layout, c.run)]
    found = list(_find_left(s, c, others))
    yield from found
    if others and all(map(is_weights_alone, others)):  # of a lone save its layout says it
        yield from weights_of_a_trainer(c, ())
    if not found and _lost_optimizer(s, c):
        text = "none of its files holds an optimizer's state: that would begin anew"
        hint = "bring its file back, if the job saves one"
        yield finding("missing-part", text, path=c.path, severity=Severity.WARNING, hint=hint)


def _find_left(s: Session, c: Checkpoint, others: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Return a warning for each companion of another save or of none, if the choice lacks its role."""
    mine = {p.role for p in c.parts}
    for o in others:
        over = [p for p in o.parts if s.layouts.piece_of(p).rolling]
        for p in over if len(over) < len(o.parts) else ():
            if p.role not in mine:
                yield _left(p, f"it is of {label(o)}")
    for p in s.companions:
        ours = (p.layout, p.run) == (c.layout, c.run) and s.layouts.piece_of(p).loaded
        if ours and p.role not in mine:
            damaged = s.report_file(p.path, Level.STRUCTURE).verdict is Verdict.BROKEN
            yield _left(p, "it is damaged" if damaged else "nothing tells of which save it is")


def _left(p: Part, why: str) -> Finding:
    text = f"{why}, and is not loaded: the state of the {p.role} would begin anew"
    hint = "move it away where the job would load it by itself: it is not of the model's save"
    return finding("passed-over", text, path=p.path, severity=Severity.WARNING, hint=hint)


def _lost_optimizer(s: Session, c: Checkpoint) -> bool:
    """Whether the weights are alone, of a layout that keeps optimizers in such files."""
    layout = s.layouts.of(c)
    keeps = any(piece.rolling and piece.role == "optimizer" for piece in layout.pieces)
    of_weights = c.kind is Kind.PERIODIC and {p.role for p in c.parts} == {"model"}
    if layout.last_resort or not (keeps and of_weights):
        return False
    report, anatomy = s.inspect(c.parts[0].path, Level.STRUCTURE)
    told = any(key in report.metadata for key in _HYPERPARAMETERS)
    return bool(anatomy.tensors) and not told and not any(is_optimizer_state(t.name) for t in anatomy.tensors)
