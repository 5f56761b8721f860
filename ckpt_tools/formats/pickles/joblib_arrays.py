"""Arrays as joblib.dump writes them: their elements lie in the pickle's stream, behind the object that
describes them.

Facts: joblib/numpy_pickle.py (NumpyArrayWrapper: write_array, read_array) of joblib 1.6; before 1.2 nothing
pads. numpy/_core/src/multiarray/descriptor.c (arraydescr_reduce).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ckpt_tools.formats.numpy.header import HUGE, element_of
from ckpt_tools.formats.pickles.stubs import Call, Global

WRAPPER = Global("joblib.numpy_pickle", "NumpyArrayWrapper")
ALIGNMENT = 16
"""To so many bytes joblib aligns elements, by a byte that counts the bytes 0xff behind it. No opcode has a
number as low, so an unpickler that does not know of arrays stops there.
"""
_DTYPE = Global("numpy", "dtype")
_ODD = "the type of an array of joblib is none that NumPy writes"
_HAS_OBJECTS = 1  # NPY_ITEM_REFCOUNT
_ML_DTYPES = {"bfloat16": 2}
"""Bytes of the types of ml_dtypes; all others take one."""


class Behind(NamedTuple):
    """What follows the description of an array: so many bytes, or a pickle of its objects; ``padded`` says
    whether a padding comes first.
    """

    nbytes: int
    objects: bool
    padded: bool


def behind(state: Any) -> Behind:
    """What the state of joblib's object says about the bytes that follow it. Raises ValueError where it is
    not as joblib writes it: then nobody knows where the pickle goes on.
    """
    if not isinstance(state, dict) or not {"shape", "dtype", "order"} <= state.keys():
        raise ValueError("an array of joblib has no shape or no type")
    shape, alignment = state["shape"], state.get("numpy_array_alignment_bytes")
    if (
        type(shape) is not tuple
        or len(shape) > 64
        or not all(type(n) is int and 0 <= n < HUGE for n in shape)
    ):
        raise ValueError("the shape of an array of joblib is no tuple of lengths")
    if alignment not in (None, ALIGNMENT):
        raise ValueError("an array of joblib is aligned in a way that joblib does not know")
    size = _size(state["dtype"])
    if size is None:
        return Behind(0, True, False)
    return Behind(min(math.prod(shape) * size, HUGE), False, alignment is not None)


def _size(dtype: Any) -> int | None:
    """Bytes of an element, None of a Python object. Raises ValueError."""
    if not _is_dtype(dtype):
        raise ValueError(_ODD)
    kind, flags, told = dtype.args[0], dtype.state[7], dtype.state[5]
    if type(kind) is Global and kind.module == "ml_dtypes":
        size = _ML_DTYPES.get(kind.name, 1)
    else:
        element = element_of(kind) if type(kind) is str else None
        has_objects = bool(flags & _HAS_OBJECTS)
        if element is None or (element.objects != has_objects and not (has_objects and kind[:1] == "V")):
            raise ValueError(_ODD)
        if has_objects:
            return None
        size = element.size
    if told not in (-1, size):
        raise ValueError(_ODD)
    return size


def _is_dtype(dtype: Any) -> bool:
    """Whether it is a call and a state as dtypes are pickled, of no type with subarrays."""
    if type(dtype) is not Call or dtype.func != _DTYPE or not dtype.args or type(dtype.state) is not tuple:
        return False
    state = dtype.state
    return len(state) >= 8 and type(state[5]) is int and type(state[7]) is int and state[2] is None
