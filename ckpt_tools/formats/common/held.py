"""The parts of a training state that one file holds, as its structure tells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ckpt_tools.formats.common.counters import STATE
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Held, Report, Tensor

_OTHER_STATE = re.compile(r"optim|sched|rng|random|scaler", re.IGNORECASE)
_SCHEDULER = frozenset({"base_lrs", "last_epoch", "_step_count", "_last_lr"})
_CLASSES = frozenset({"needs-trust", "suspect-call", "unsafe-pickle"})
"""Codes of findings for a pickle that names classes."""
_ARRAYS = frozenset({"safetensors", "npz", "npy", "eqx", "pickle_plain", "joblib"})
_OF_NAMED_TENSORS = frozenset(
    {"safetensors", "torch_zip", "torch_legacy", "pickle_plain", "gguf", "hdf5", "mindspore_ckpt"}
)
"""Formats in which the names of tensors tell an optimizer's from others."""
OF_ONE_ARRAY = frozenset({"zarr"})
"""Formats of one array, whose only name is its directory's."""
_MLX_COUNTERS = frozenset({"step", "learning_rate"})


def find_held(path: str, format_name: str, anatomy: Anatomy, findings: Iterable[Finding]) -> Held:
    """Return the parts of a training state in a file, by its keys and the names of its tensors."""
    keys, tensors = anatomy.keys, anatomy.tensors
    moments, groups = any(map(STATE.search, [t.name for t in tensors])), "param_groups" in keys
    only_optimizer = path.lower().endswith(".pdopt") or (format_name in _ARRAYS and _is_of_mlx(tensors))
    has_key = any("optim" in k.lower() and anatomy.metadata.get(k, k) is not None for k in keys)
    weights = _is_model(path.lower(), tensors, findings) or (not groups and _are_weights(tensors))
    return Held(
        weights=weights and not only_optimizer,
        optimizer=only_optimizer or groups or moments or has_key,
        moments=moments,
        settings=not (only_optimizer or tensors or groups),
        scheduler=not tensors and not keys.isdisjoint(_SCHEDULER),
    )


def _is_model(name: str, tensors: Sequence[Tensor], findings: Iterable[Finding]) -> bool:
    """Return whether a pickle is a whole model, an object of a class, by its file's name and findings."""
    classes = not tensors and any(f.code in _CLASSES for f in findings)
    return name.endswith(".joblib") or (classes and name.endswith(".pkl"))


def _are_weights(tensors: Sequence[Tensor]) -> bool:
    """Return whether tensors are a network's weights; a lone number is not: it is SAC's temperature."""
    return any(map(_is_weight, tensors)) and (len(tensors) > 1 or bool(tensors[0].shape))


def _is_of_mlx(tensors: Iterable[Tensor]) -> bool:
    """Return whether tensors are an optimizer's in MLX: a counter, and states whose names end in a letter."""
    names = {t.name for t in tensors}
    has_counter = not names.isdisjoint(_MLX_COUNTERS) and len(names) > 1
    return has_counter and all(n in _MLX_COUNTERS or n.endswith((".m", ".v", ".u")) for n in names)


def _is_weight(t: Tensor) -> bool:
    """Return False for an optimizer's tensors, counters and states of random number generators."""
    counter = not t.shape and t.dtype.startswith(("int", "uint"))
    other = _OTHER_STATE.search(t.name.partition(".")[0]) or STATE.search(t.name)
    random = t.dtype == "uint8" and len(t.shape) == 1
    return t.nbytes > 0 and not (counter or other or random or t.name.endswith(".step"))


def find_state(files: Sequence[tuple[str, Report]]) -> str:
    """Return ``resumable`` or ``weights-only`` for a save's files (role, report), "" if these do not tell."""
    reports = [report for _, report in files]
    if any(r.held.trained for r in reports):
        return "resumable"
    names_tell = all(r.format in _OF_NAMED_TENSORS for r in reports if r.tensors)
    only_model = {role for role, _ in files} <= {"model", "index", "config"}
    for r in reports:  # an optimizer's state, or its settings, as MindSpore saves them
        optimizer = r.held.optimizer or not r.metadata.keys().isdisjoint(("learning_rate", "global_step"))
        only_model = only_model and not optimizer
    return "weights-only" if names_tell and only_model and any(r.held.weights for r in reports) else ""
