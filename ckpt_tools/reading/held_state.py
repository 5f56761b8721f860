"""What one file holds of a training state, as its structure tells."""

from __future__ import annotations

import re

from msgspec import Struct

from ckpt_tools import formats
from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.layouts import files
from ckpt_tools.layouts.common.held import Holds
from ckpt_tools.layouts.common.loop_counters import EPOCHS, STEPS, numbers
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.reading.session import Session

_OTHER_STATE = re.compile(r"optim|sched|rng|random|scaler", re.IGNORECASE)
_SCHEDULER = frozenset({"base_lrs", "last_epoch", "_step_count", "_last_lr"})
_CLASSES = frozenset({"needs-trust", "suspect-call", "unsafe-pickle"})
"""What is said of a pickle that names classes."""
_ARRAYS = (*files.ARRAYS, *files.OBJECTS, "eqx")
_MLX_COUNTERS = frozenset({"step", "learning_rate"})


class State(Struct, frozen=True):
    """What a file tells: ``holds`` is None if it could not be read, ``strange`` says that it is in no format
    of states, ``count`` how many steps its optimizer took.
    """

    part: Part
    holds: Holds | None = None
    steps: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()
    count: int | None = None
    role: str = ""
    strange: bool = False


def read_state(p: Part, s: Session, inside: bool) -> State:
    """Return what a file holds, which is only looked into if ``inside``."""
    if not inside or p.size <= 0:
        return State(p)
    report, anatomy = s.inspect(p.path, Level.STRUCTURE, p.findings)
    s.reports[p.path] = report
    if report.format is None and not formats.names.only_state(p.name):
        return State(p, strange=True)
    if report.format is None or report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
        return State(p)
    if report.metadata.get("torchscript") or report.format not in s.layouts.piece_of(p).formats:
        return State(p, strange=True)  # a program, as those of ONNX are; or data
    return _by_content(p, report, anatomy)


def _by_content(p: Part, report: Report, anatomy: Anatomy) -> State:
    steps, epochs = numbers(report.metadata, STEPS), numbers(report.metadata, EPOCHS)
    scheduler = not anatomy.tensors and not anatomy.keys.isdisjoint(_SCHEDULER)
    alone = p.path.lower().endswith(".pdopt") or _is_optimizer_of_arrays(report, anatomy)
    optimizer = alone or has_optimizer(report, anatomy)
    weights = not alone and _has_weights(p, report, anatomy)
    holds = Holds(weights, optimizer, counters=not scheduler and bool(steps or epochs))
    role = "model" if weights else "optimizer" if optimizer else "scheduler" if scheduler else "other"
    count = report.metadata.get("optimizer_step")
    return State(p, holds, steps, epochs, count if isinstance(count, int) else None, role)


def _is_optimizer_of_arrays(report: Report, anatomy: Anatomy) -> bool:
    """Return True for arrays that MLX writes of an optimizer: a count, and values called by a letter."""
    names = {t.name for t in anatomy.tensors}
    counted = report.format in _ARRAYS and not names.isdisjoint(_MLX_COUNTERS) and len(names) > 1
    return counted and all(n in _MLX_COUNTERS or n.endswith((".m", ".v", ".u")) for n in names)


def has_optimizer(report: Report, anatomy: Anatomy) -> bool:
    """Return True if a file holds the state of an optimizer, by its keys and the names of its tensors."""
    if "param_groups" in anatomy.keys or any(is_optimizer_state(t.name) for t in anatomy.tensors):
        return True
    return any("optim" in k.lower() and report.metadata.get(k, k) is not None for k in anatomy.keys)


def _has_weights(p: Part, report: Report, anatomy: Anatomy) -> bool:
    """Return True for a pickle that is a model as a whole, and for tensors that are no optimizer's, counters
    or random numbers.
    """
    ending, tensors = p.path.lower().rpartition(".")[2], anatomy.tensors
    classes = any(f.code in _CLASSES for f in report.findings)
    if ending == "joblib" or (ending == "pkl" and classes and not tensors):
        return True
    if "param_groups" in anatomy.keys or (len(tensors) == 1 and not tensors[0].shape):
        return False  # one number is no network: SAC keeps its temperature so
    return any(map(_is_weight, tensors))


def _is_weight(t: Tensor) -> bool:
    counter = not t.shape and t.dtype.startswith(("int", "uint"))
    other = _OTHER_STATE.search(t.name.partition(".")[0]) or is_optimizer_state(t.name)
    random = t.dtype == "uint8" and len(t.shape) == 1
    return t.nbytes > 0 and not (counter or other or random or t.name.endswith(".step"))
