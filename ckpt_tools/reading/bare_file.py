"""One file that follows no known layout: what its name and its content say."""

from __future__ import annotations

import re

from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.formats.torch.cut import keys_of_cut
from ckpt_tools.layouts import files
from ckpt_tools.layouts.common.bare_names import BareName, bare_name_of, stem_of
from ckpt_tools.layouts.common.held import BEGUN, Holds
from ckpt_tools.layouts.common.layout import whole
from ckpt_tools.layouts.common.loop_counters import EPOCHS, STEPS, number, numbers
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.frozen import frozen, replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import ShortRead, opened

_OTHER_STATE = re.compile(r"optim|sched|rng|random|scaler", re.IGNORECASE)
_OF_MODEL = re.compile(r"model|net|weight|param", re.IGNORECASE)
_SCHEDULER = frozenset({"base_lrs", "last_epoch", "_step_count", "_last_lr"})
_NO_MODEL = frozenset({"rng", "normalizer", "buffer"})
"""Roles of arrays that are no weights: nobody trains what normalizes inputs, or what was played."""
_DIGITS = re.compile(r"\d+")
_CLASSES = frozenset({"needs-trust", "suspect-call", "unsafe-pickle"})
"""What is said of a pickle that names classes."""
_ARRAYS = (*files.ARRAYS, *files.OBJECTS, "eqx")
_TAR = re.compile(r"(?<!\.pth)\.tar$", re.IGNORECASE)
"""An archive, or what torch.save has written, as PyTorch's tutorials call it: its content tells."""
_MAY_BE_DATA = re.compile(rf"\.(?:{'|'.join(files.MAY_BE_DATA)}|pkl)$|{_TAR.pattern}", re.IGNORECASE)


@frozen
class Bare:
    """One file: what its name and its content say. ``holds`` is None where it could not be read; ``steps``
    are its counters of steps, ``count`` is its optimizer's.
    """

    part: Part
    name: BareName
    holds: Holds | None = None
    steps: tuple[int, ...] = ()
    epoch: int | None = None
    count: int | None = None
    role: str = "model"
    run: tuple[str, ...] = ()
    kind: Kind = Kind.PERIODIC

    @property
    def step(self) -> int | None:
        """The step that it tells, by the first of its counters."""
        return next(iter(self.steps), None)

    @property
    def rolling(self) -> bool:
        """Whether it is written over by each save."""
        return not self.name.numbered

    @property
    def pattern(self) -> str:
        return self.name.pattern.lower()

    @property
    def is_state(self) -> bool:
        """Whether it holds weights, and an optimizer's state to go on training with."""
        return self.holds is not None and self.holds.weights and self.holds.optimizer

    @property
    def is_export(self) -> bool:
        """Whether it holds weights and nothing to go on training with."""
        return self.holds is not None and self.holds.weights and not self.holds.optimizer


def read_bare_file(p: Part, s: Session, inside: bool) -> Bare | None:
    """The file by its name and content; None where neither is that of a checkpoint."""
    name = bare_name_of(p)
    if _is_data(p, name, s, inside):
        return None
    by_name = Bare(p, name, role=name.role or "model")
    if not inside or p.size <= 0:
        return by_name
    report, anatomy = s.inspect(p.path, Level.STRUCTURE, p.findings)
    s.reports[p.path] = report
    if report.verdict is Verdict.BROKEN and report.format == "torch_zip" and _began_a_state(p):
        return replace(by_name, part=p._replace(piece=BEGUN))
    if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
        return by_name
    if report.metadata.get("torchscript"):
        return None  # a program, as those of ONNX are
    if report.format in (*files.FORMATS, *s.layouts.piece_of(p).formats):
        return _by_content(p, name, report, anatomy)
    if report.format is None and name.says_something and p.piece != files.NUMBERED:
        return by_name
    return None


def _is_data(p: Part, name: BareName, s: Session, inside: bool) -> bool:
    """Whether a file of an ending that data have is no checkpoint; ``001000.tar`` is a shard, or NeRF's."""
    if not _MAY_BE_DATA.search(p.path):
        return False
    archive = _TAR.search(p.path) is not None
    if not name.calls_it_a_state and not (archive and inside and name.numbered and not name.words):
        return True
    return archive and not _is_saved_by_torch(p, s)


def _is_saved_by_torch(p: Part, s: Session) -> bool:
    report, _ = s.inspect(p.path, Level.STRUCTURE, p.findings)
    return report.format in files.TORCH


def numbers_of(b: Bare) -> tuple[int, ...]:
    """All numbers in the name of its file, or of the directory that is its save; fractions are two."""
    name = b.part.home.rpartition("/")[2] or b.part.name
    return tuple(int(number[:18]) for number in _DIGITS.findall(stem_of(name)))


def numbers_in(p: Part, s: Session) -> frozenset[int]:
    """The steps, updates and epochs that a file tells; none of one that is not whole."""
    if p.size <= 0:
        return frozenset()
    report, _ = s.inspect(p.path, Level.STRUCTURE, p.findings)
    if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
        return frozenset()
    count = whole(report.metadata.get("optimizer_step"))
    told = {*numbers(report.metadata, STEPS), *numbers(report.metadata, (*EPOCHS, "last_epoch"))}
    return frozenset(told if count is None else {*told, count})


def _began_a_state(p: Part) -> bool:
    """Whether a file that was cut held more than a model: the names in it come first."""
    try:
        with opened(p.path) as source:
            keys = keys_of_cut(source)
    except (OSError, ShortRead):
        return False  # the report says it
    return "param_groups" not in keys and any("optim" in key.lower() for key in keys)


def _by_content(p: Part, name: BareName, report: Report, anatomy: Anatomy) -> Bare:
    steps, epoch = numbers(report.metadata, STEPS), number(report.metadata, EPOCHS)
    scheduler = not anatomy.tensors and not anatomy.keys.isdisjoint(_SCHEDULER)
    of_optimizer = p.path.lower().endswith(".pdopt") or _named_after_optimizer(name, report)
    of_optimizer = of_optimizer or _is_state_of_mlx(report, anatomy)
    optimizer = of_optimizer or has_optimizer(report, anatomy)
    is_object = _is_object(p, name, report, anatomy)
    holds = Holds(
        weights=is_object or (not of_optimizer and _has_weights(anatomy, name, optimizer)),
        optimizer=optimizer,
        counters=not scheduler and (bool(steps) or epoch is not None),
    )
    count = report.metadata.get("optimizer_step")
    if not isinstance(count, int):
        count = None
    return Bare(p, name, holds, steps, epoch, count, _role(name, holds, scheduler))


def _is_object(p: Part, name: BareName, report: Report, anatomy: Anatomy) -> bool:
    """Whether a pickle is a model as a whole, whatever its classes are; one without any is a value."""
    ending = p.path.lower().rpartition(".")[2]
    classes = any(f.code in _CLASSES for f in report.findings)
    return ending == "joblib" or (ending == "pkl" and classes and not (anatomy.tensors or name.role))


def _named_after_optimizer(name: BareName, report: Report) -> bool:
    """Whether a set of arrays alone is called an optimizer's, and no model's: MLX writes ``0.weight.m``."""
    return name.role == "optimizer" and report.format in _ARRAYS and not _OF_MODEL.search(name.pattern)


_MLX_COUNTERS = frozenset({"step", "learning_rate"})


def _is_state_of_mlx(report: Report, anatomy: Anatomy) -> bool:
    """Whether a set of arrays alone is the state of an optimizer of MLX (mlx/optimizers/optimizers.py): a
    count, and for each parameter one value or two, called by a letter.
    """
    names = {t.name for t in anatomy.tensors}
    counted = report.format in _ARRAYS and not names.isdisjoint(_MLX_COUNTERS)
    return (
        counted
        and len(names) > 1
        and all(n in _MLX_COUNTERS or n.endswith((".m", ".v", ".u")) for n in names)
    )


def _role(name: BareName, holds: Holds, scheduler: bool) -> str:
    if holds.weights:
        return "ema" if name.role == "ema" else "model"
    if holds.optimizer:
        return "optimizer"
    return name.role or ("scheduler" if scheduler else "other")


def _is_optimizer_alone(anatomy: Anatomy) -> bool:
    return "param_groups" in anatomy.keys


def has_optimizer(report: Report, anatomy: Anatomy) -> bool:
    """Whether a file holds the state of an optimizer, by its keys and the names of its tensors."""
    if _is_optimizer_alone(anatomy) or any(is_optimizer_state(t.name) for t in anatomy.tensors):
        return True
    present = (key for key in anatomy.keys if report.metadata.get(key, key) is not None)
    return any("optim" in key.lower() for key in present)


def _has_weights(anatomy: Anatomy, name: BareName, optimizer: bool) -> bool:
    if _is_optimizer_alone(anatomy) or (name.role in _NO_MODEL and not optimizer):
        return False
    alone = anatomy.tensors[0] if len(anatomy.tensors) == 1 else None
    if alone is not None and not alone.shape:
        return False  # one number is no network: SAC keeps its temperature so
    return any(map(_is_weight, anatomy.tensors))


def _is_weight(t: Tensor) -> bool:
    """Whether a tensor is a model's: no optimizer's, no counter, and no generator's state, which is a row of
    bytes.
    """
    if not t.shape and t.dtype.startswith(("int", "uint")):
        return False
    other = (
        _OTHER_STATE.search(t.name.partition(".")[0])
        or is_optimizer_state(t.name)
        or t.name.endswith(".step")
    )
    return t.nbytes > 0 and not other and not (t.dtype == "uint8" and len(t.shape) == 1)
