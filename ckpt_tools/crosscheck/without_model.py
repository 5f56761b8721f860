"""Checkpoints that have no file of any of the roles that their layout needs, or none of a model that was
trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ckpt_tools.discovery import completeness
from ckpt_tools.findings import finding
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session

_MOMENT = re.compile(r"(?:.*\.)?(?:exp_avg|momentum_buffer)")
"""What an optimizer keeps of a parameter in the shape of it, once (torch/optim/adam.py, sgd.py)."""
Shapes = list[tuple[int, ...]]


def without_model(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Nothing where other files lie in its directory: a script's own hooks save models under any name."""
    layout, home = s.layouts.of(c), c.parts[0].home
    if c.unfinished or not home or not layout.needs_any:
        return
    if any(p.role in layout.needs_any for p in c.parts) or _holds_others(s, c):
        return
    text = f"{completeness.label(c)} has no {layout.needs_any[0]} file"
    yield finding("missing-part", text, path=home)


def _holds_others(s: Session, c: Checkpoint) -> bool:
    """Whether files that are none of its own lie in its directory."""
    home = c.parts[0].home
    mine, above = {p.path for p in c.parts}, f"{home}/"
    others = [p.path for p in s.parts] + [file.path for file in s.found.bare]
    return home in s.found.strange or any(path.startswith(above) and path not in mine for path in others)


def trained_without_model(s: Session, c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """What a lone save shows of a model that is gone: an optimizer of other parameters than the files beside
    it hold, or optimizers of more. Some keep less of a parameter than its shape, and a loop may train what it
    does not save, so a warning.
    """
    trainers = s.layouts.of(c).trainers
    if beside or c.unfinished or not any(p.piece in trainers for p in c.parts) or _holds_others(s, c):
        return
    optimizers, held = dict[str, Shapes](), Shapes()
    for p in (p for p in c.parts if not s.layouts.piece_of(p).survivable):  # no random numbers
        shapes = _shapes(s, p, moments=p.piece in trainers)
        if shapes is None:
            return
        if p.piece in trainers:
            optimizers[p.path] = shapes
        else:
            held += shapes
    yield from _more_than(held, optimizers, c)


def _more_than(held: Shapes, optimizers: Mapping[str, Shapes], c: Checkpoint) -> Iterator[Finding]:
    known = set(held)
    if strange := next((path for path, own in optimizers.items() if own and known.isdisjoint(own)), None):
        text = "it is the optimizer of a model that is not there: nothing beside it has its shapes"
        yield finding("missing-part", text, path=strange, severity=Severity.WARNING)
        return
    # a temperature, or the weight of a loss, need not be saved
    trained = sum(prod(shape) for own in optimizers.values() for shape in own if prod(shape) > 1)
    if trained > (there := sum(map(prod, held))):
        text = f"its optimizers have states of {trained:,} numbers, and its other files hold {there:,}"
        yield finding("missing-part", text, path=c.path, severity=Severity.WARNING)


def _shapes(s: Session, p: Part, *, moments: bool) -> Shapes | None:
    """Of the tensors in a file, of an optimizer one for each parameter; None where it cannot be read."""
    report, anatomy = s.inspect(p.path, Level.STRUCTURE, expect=s.layouts.piece_of(p).formats)
    if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
        return None
    return [t.shape for t in anatomy.tensors if not moments or _MOMENT.fullmatch(t.name)]
