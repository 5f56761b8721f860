"""How far the numbers of changed tensors are apart. Needs numpy."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ckpt_tools.comparison.difference import Side
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.storage import Source, opened

_FLOATS = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
_BLOCK = 1 << 20


def find_largest(a: Side, b: Side, names: Iterable[str]) -> dict[str, float]:
    """Return the largest difference of two numbers in one place, NaN left out, by the names of tensors: of
    floats that lie in one run of bytes on both sides. Raises OSError and ShortRead.
    """
    out, in_a, in_b = dict[str, float](), a.forms, b.forms
    with opened(a.report.path) as one, opened(b.report.path) as other:
        for name in names:
            both = [*in_a[name], *in_b[name]]
            if len(both) == 2 and all(
                t.dtype in _FLOATS and t.offset is not None and not t.pieces for t in both
            ):
                starts = range(0, both[0].nbytes, _BLOCK)
                with np.errstate(invalid="ignore"):
                    apart = [np.abs(_read(one, both[0], at) - _read(other, both[1], at)) for at in starts]
                    out[name] = max((float(np.fmax.reduce(x, initial=0.0)) for x in apart), default=0.0)
    return out


def _read(source: Source, t: Tensor, at: int) -> npt.NDArray[np.float64]:
    data = np.frombuffer(source.read((t.offset or 0) + at, min(_BLOCK, t.nbytes - at)), _FLOATS[t.dtype])
    if t.dtype == "bfloat16":
        data = (data.astype(np.uint32) << 16).view(np.float32)
    return data.astype(np.float64)
