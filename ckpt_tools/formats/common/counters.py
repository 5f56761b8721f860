"""The count of updates that an optimizer keeps for each parameter: in many optimizer files, only this count
says at which step they were saved.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ckpt_tools.model.report import Tensor

if TYPE_CHECKING:
    from ckpt_tools.storage import Source

_MANY = 16  # counters that are read at most
_CODES = {("float32", 4): "<f", ("float64", 8): "<d", ("int64", 8): "<q", ("int32", 4): "<i"}
_WHOLE = (("int64", 8), ("int32", 4))
_MOST = 1 << 53
_WORDS = (
    r"exp_avg(_sq)?|exp_inf|max_exp_avg_sq|momentum_buffer|square_avg|sum_sq|adam_[mv]|moments?\d?|opt_state"
    r"|state\.param_states"
)
_PADDLE = r"_(moment\d?|beta\d_pow_acc|velocity|inf_norm|momentum|mean_square|mean_grad)_\d+$"
_KERAS = r"^optimizer/vars/\d+$"
_OWN = r"^(opt|adamw?)\.state\.\d+\."
STATE = re.compile(rf"(^|[./])({_WORDS})([./]|$)|{_PADDLE}|{_KERAS}|{_OWN}")
"""Names of a parameter's optimizer state in torch (torch/optim/*.py), Megatron, MindSpore, optax, T5X, Paddle
(paddle/optimizer/*.py) and Keras (keras/src/optimizers/base_optimizer.py), and in files of fastai
(fastai/optimizer.py), which puts states of users' own optimizers below a key named after the optimizer.
"""


def optimizer_step(source: Source, tensors: Iterable[Tensor]) -> int | None:
    """Return the highest of the first counters (torch/optim/adam.py: ``step`` of each parameter), or None."""
    counts = []
    for t in tensors:
        code = _CODES.get((t.dtype, t.nbytes))
        if code and t.name.endswith(".step") and t.offset is not None and not t.pieces:
            (value,) = struct.unpack(code, source.read(t.offset, t.nbytes))
            if 0 <= value < _MOST and value == int(value):  # a NaN fails as well
                counts.append(int(value))
            if len(counts) == _MANY:
                break
    return max(counts, default=None)


def scalar_counters(source: Source, tensors: Iterable[Tensor], keys: Collection[str]) -> dict[str, int]:
    """Return the whole numbers that a file keeps as tensors without a dimension at its top level
    (``{"step": tensor(5)}``), whose names are ``keys``; {} for a state_dict, where such a tensor is a buffer.
    """
    top = [t for t in tensors if t.name in keys]
    if any(t.shape for t in top) or len(top) > _MANY:
        return {}
    found = dict[str, int]()
    for t in top:
        if t.offset is not None and not t.pieces and (t.dtype, t.nbytes) in _WHOLE:
            (found[t.name],) = struct.unpack(_CODES[t.dtype, t.nbytes], source.read(t.offset, t.nbytes))
    return found


def is_optimizer_state(name: str) -> bool:
    """Return whether a name is that of a parameter's optimizer state, which changes at every step."""
    return STATE.search(name) is not None
