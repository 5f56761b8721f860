"""The count of updates that an optimizer keeps beside each parameter: the only thing in many optimizer files
that says which step they are of.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ckpt_tools.model.report import Tensor

if TYPE_CHECKING:
    from ckpt_tools.storage import Source

_LOOKED_AT = 16
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
"""What torch's optimizers (torch/optim/*.py), Megatron's, MindSpore's, optax, T5X', Paddle's
(paddle/optimizer/*.py) and Keras' (keras/src/optimizers/base_optimizer.py) call their state of a parameter,
and that of optimizers of one's own, as fastai saves them (fastai/optimizer.py), below a key called after one.
"""


def optimizer_step(source: Source, tensors: Iterable[Tensor]) -> int | None:
    """The highest of the first counters (torch/optim/adam.py: ``step`` of each parameter), None without."""
    counts = []
    for t in tensors:
        if (
            t.name.endswith(".step")
            and t.offset is not None
            and not t.pieces
            and (code := _CODES.get((t.dtype, t.nbytes)))
        ):
            (value,) = struct.unpack(code, source.read(t.offset, t.nbytes))
            if 0 <= value < _MOST and value == int(value):  # not a NaN either
                counts.append(int(value))
            if len(counts) == _LOOKED_AT:
                break
    return max(counts, default=None)


def scalar_counters(source: Source, tensors: Iterable[Tensor], keys: Collection[str]) -> dict[str, int]:
    """Whole numbers that a file keeps as tensors without a dimension at its top level
    (``{"step": tensor(5)}``), by its ``keys``; none of a state_dict, of which such a tensor is a buffer.
    """
    top = [t for t in tensors if t.name in keys]
    if any(t.shape for t in top) or len(top) > _LOOKED_AT:
        return {}
    found = dict[str, int]()
    for t in top:
        if t.offset is not None and not t.pieces and (t.dtype, t.nbytes) in _WHOLE:
            (found[t.name],) = struct.unpack(_CODES[t.dtype, t.nbytes], source.read(t.offset, t.nbytes))
    return found


def is_optimizer_state(name: str) -> bool:
    """Whether a name is that of what an optimizer keeps of a parameter, another at every step."""
    return STATE.search(name) is not None
