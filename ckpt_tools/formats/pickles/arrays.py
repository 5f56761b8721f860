"""NumPy arrays in a pickle: their names, types and shapes, and whether each has the bytes that it needs.

Facts: numpy/_core/src/multiarray/methods.c (array_reduce: version, shape, dtype, order, data), descriptor.c
(arraydescr_reduce) of numpy 2.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.formats.pickles.joblib_arrays import WRAPPER
from ckpt_tools.formats.pickles.stubs import Call, Filled, Global, Long, Pickled
from ckpt_tools.formats.torch.names import list_tensors
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.tensor import Tensor

_MAKERS = {Global(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
_DTYPE = Global("numpy", "dtype")
_TYPES = {
    **{f"f{n}": f"float{8 * n}" for n in (2, 4, 8)},
    **{f"i{n}": f"int{8 * n}" for n in (1, 2, 4, 8)},
    **{f"u{n}": f"uint{8 * n}" for n in (1, 2, 4, 8)},
    **{f"c{n}": f"complex{8 * n}" for n in (8, 16)},
    "b1": "bool",
}
"""Types of one number; arrays of others (texts, records, objects) are not listed."""
_DIMENSIONS, _HUGE = 64, 1 << 62


def arrays(pickled: Pickled, anatomy: Anatomy) -> Iterator[Finding]:
    """List the arrays that the value reaches, by dotted name; of a damaged one say what is wrong."""
    filled = {id(f.call): f for f in pickled.filled}
    made: dict[int, Tensor] = {}
    for call in pickled.calls:
        if call.func not in _MAKERS and call.func != WRAPPER:
            continue
        array = _read_array(call, filled.get(id(call)))
        if isinstance(array, Finding):
            yield array
        elif array is not None:
            made[id(call)] = array
    if made:
        yield from list_tensors(pickled.value, made, anatomy, "")


def _read_array(call: Call, filled: Filled | None) -> Tensor | Finding | None:
    """The array that a call and its state describe; None for one whose type is not looked at."""
    state = _find_state(call, filled)
    if len(state) != 4:
        return finding("bad-pickle", "an array has no state as numpy writes it", offset=call.offset)
    shape, dtype, _, data = state
    code = _find_code(dtype)
    if code is None:
        return finding("bad-pickle", "an array's type is none of numpy's", offset=call.offset)
    if code not in _TYPES or not isinstance(data, bytes):
        return None
    if type(shape) is not tuple or len(shape) > _DIMENSIONS or not all(map(_is_length, shape)):
        return finding("bad-pickle", "an array's shape is not a tuple of lengths", offset=call.offset)
    nbytes = min(math.prod(shape) * int(code[1:]), _HUGE)
    have = filled.nbytes if filled else len(data)
    if have != nbytes and (filled or type(data) is not Long):  # of a long one the bytes were not kept
        why = f"an array of {_TYPES[code]} {list(shape)} needs {nbytes:,} bytes and has {have:,}"
        return finding("tensor-size", why, offset=call.offset)
    order = dtype.state[1:2] if type(dtype.state) is tuple else ()
    offset = filled.offset if filled and order in (("<",), ("|",)) else None  # as this machine has numbers
    return Tensor("", _TYPES[code], shape, nbytes, offset)


def _find_state(call: Call, filled: Filled | None) -> tuple[Any, ...]:
    """(shape, type, order, bytes) of an array; those of joblib, which the machine counted, without bytes."""
    if call.func == WRAPPER and isinstance(call.state, dict):
        return call.state.get("shape"), call.state.get("dtype"), False, b"" if filled else None
    return call.state[-4:] if type(call.state) is tuple else ()


def _is_length(n: Any) -> bool:
    return type(n) is int and 0 <= n < _HUGE


def _find_code(dtype: Any) -> str | None:
    """What numpy calls an element type ("f4"), None where it is none."""
    if type(dtype) is not Call or dtype.func != _DTYPE or not dtype.args:
        return None
    kind = dtype.args[0]
    return str(kind) if type(kind) in (str, Global) else None
