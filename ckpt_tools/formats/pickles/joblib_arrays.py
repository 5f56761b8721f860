"""Arrays as joblib.dump writes them: their elements lie in the pickle's stream, behind the object that
describes them.

Facts: joblib/numpy_pickle.py (NumpyArrayWrapper: write_array, read_array) of joblib 1.6; before 1.2 nothing
pads. numpy/_core/src/multiarray/descriptor.c (arraydescr_reduce).
"""

from __future__ import annotations

import math
from typing import Any

from ckpt_tools.formats.numpy.header import HUGE, element_of
from ckpt_tools.formats.pickles.machine import Machine
from ckpt_tools.formats.pickles.stubs import Call, Global, NeedMore, Nested, StateBytes

WRAPPER = Global("joblib.numpy_pickle", "NumpyArrayWrapper")
ALIGNMENT = 16
"""joblib aligns an array's elements to this many bytes: a byte counts the bytes 0xff that pad them. No opcode
has a number as low, so an unpickler that does not know joblib's arrays stops there.
"""
DTYPE = Global("numpy", "dtype")
_ODD = "the type of an array of joblib is none that NumPy writes"
_HAS_OBJECTS = 1  # NPY_ITEM_REFCOUNT
_ML_DTYPES = {"bfloat16": 2}
"""Bytes per element of the types of ml_dtypes; a type that is not listed takes one."""


class JoblibMachine(Machine):
    """A machine that passes over the elements that lie behind the object of each array."""

    def build(self) -> None:
        """Give an object its state; go on behind the elements of an array. Raise Nested if these are a
        pickle.
        """
        target = self.stack[-2]
        if type(target) is not Call or target.func != WRAPPER:
            super().build()
            return
        state, at = self.stack[-1], self.pos
        nbytes, padded = _measure_elements(state)
        if padded:
            at = self._find_end_of_padding()
        if self.frame not in (-1, self.pos):
            raise self.make_damage("an array lies inside a frame")
        self.frame = -1
        self.stack.pop()
        target.state = state
        self.unpadded_arrays += not padded
        if nbytes < 0:
            raise Nested
        self.state_bytes.append(StateBytes(target, self.base + at, nbytes))
        self.pos = at + nbytes

    def _find_end_of_padding(self) -> int:
        """Return where the elements begin: behind a byte n, and n bytes 0xff of padding."""
        at, size = self.pos, len(self.data)
        end = at + 1 if at >= size else at + 1 + self.data[at]
        if end > size or at >= size:
            raise NeedMore(end, self.base + at)
        padding = self.data[at + 1 : end]
        if not 0 < len(padding) <= ALIGNMENT or padding.strip(b"\xff"):
            raise self.make_damage("the padding before an array is not joblib's")
        return end


def _measure_elements(state: Any) -> tuple[int, bool]:
    """Return the bytes of an array's elements (-1 for a pickle of Python objects), and whether padding comes
    first. Raise ValueError for a state that joblib does not write: the pickle goes on at an unknown place.
    """
    if not isinstance(state, dict) or not {"shape", "dtype", "order"} <= state.keys():
        raise ValueError("an array of joblib has no shape or no type")
    shape, alignment = state["shape"], state.get("numpy_array_alignment_bytes")
    if not is_shape(shape):
        raise ValueError("the shape of an array of joblib is not a tuple of lengths")
    if alignment not in (None, ALIGNMENT):
        raise ValueError("an array of joblib is aligned in a way that joblib does not know")
    size = _find_item_size(state["dtype"])
    return (-1, False) if size is None else (min(math.prod(shape) * size, HUGE), alignment is not None)


def is_shape(shape: Any) -> bool:
    """Return whether a value is the shape of an array: a tuple of at most 64 lengths, none absurdly large."""
    fits = type(shape) is tuple and len(shape) <= 64
    return fits and all(type(n) is int and 0 <= n < HUGE for n in shape)


def _find_item_size(dtype: Any) -> int | None:
    """Return the bytes of one element, None for a Python object. Raise ValueError for no type of NumPy's."""
    if not _is_dtype(dtype):
        raise ValueError(_ODD)
    kind, flags, stated_size = dtype.args[0], dtype.state[7], dtype.state[5]
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
    if stated_size not in (-1, size):
        raise ValueError(_ODD)
    return size


def _is_dtype(dtype: Any) -> bool:
    """Return whether ``dtype`` is a call and a state as NumPy pickles dtypes, of a type without subarrays."""
    if type(dtype) is not Call or dtype.func != DTYPE or not dtype.args or type(dtype.state) is not tuple:
        return False
    state = dtype.state
    return len(state) >= 8 and type(state[5]) is int and type(state[7]) is int and state[2] is None
