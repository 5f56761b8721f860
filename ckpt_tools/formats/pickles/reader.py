"""Reads pickles of protocols 0 to 5 into plain values and stubs: imports nothing, calls nothing that the
stream names.

The opcodes are those of CPython's Lib/pickletools.py. The result is bounded by the stream's length and by
MAX_OPS, but it may be deep, shared or refer to itself: walk it with a stack of your own and a set of the ids
already visited.
"""

from __future__ import annotations

import gc
import math
import re
import struct
from collections.abc import Callable
from typing import Any

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.numpy.header import HUGE, element_of
from ckpt_tools.formats.pickles.machine import LONG, Machine, Step
from ckpt_tools.formats.pickles.stubs import (
    Call,
    Global,
    Long,
    NeedMore,
    Nested,
    Offsets,
    Pickled,
    StateBytes,
)
from ckpt_tools.storage import Source

WINDOW = 4 << 20
"""The most bytes of a pickle that are in memory at a time, unless a single line is longer."""
_NESTED = 4096
"""Bytes that are read at first of a nested pickle, and of the outer pickle behind it."""


def read_pickle(
    data: bytes, start: int = 0, *, seen: Offsets | None = None, called: Offsets | None = None
) -> Pickled:
    """Read the pickle at ``data[start:]``. Raise Damage (NeedMore). ``seen`` and ``called`` collect the
    globals that it names and calls, also if it is damaged: an unpickler makes the calls that come before the
    damage.
    """
    return _run_machine(Machine(data, start, 0, {} if seen is None else seen, called))


def read_from(
    source: Source, start: int, end: int, head: bytes, seen: Offsets, *, called: Offsets, arrays: bool = False
) -> Pickled:
    """Read the pickle of a file from ``start`` to ``end`` at most, one window at a time; ``head`` has its
    first bytes. If ``arrays``, pass over the elements of joblib's arrays. Raise Damage (NeedMore), ShortRead.
    """
    kind = JoblibMachine if arrays else Machine
    return _read_to_stop(kind(head, 0, start, seen, called), source, end)


def _read_to_stop(machine: Machine, source: Source, stop: int) -> Pickled:
    """Run a machine to the opcode STOP; whenever it needs more bytes, feed it from a file up to ``stop``."""
    while True:
        try:
            return _run_machine(machine)
        except Nested:
            _read_nested(machine, source, stop)
        except NeedMore as e:
            at, need = machine.base + machine.op, machine.base + e.upto
            if need > stop:
                machine.forget()
                raise
            at_hand = len(machine.data) - machine.op
            # if the bytes at hand were not enough, they are the beginning of a line of unknown length
            n = max(4 * at_hand, min(4 * len(machine.data), WINDOW), need - at)
            machine.feed(source.read(at, min(n, stop - at)))
        except Damage:
            machine.forget()
            raise


def _read_nested(outer: Machine, source: Source, stop: int) -> None:
    """Read the pickle of an array's objects, which begins where ``outer`` is; move ``outer`` behind it."""
    at = outer.base + outer.pos
    head = source.read(at, min(_NESTED, stop - at))
    inner = Machine(head, 0, at, outer.seen, outer.called)
    inner.ticks, inner.left = outer.ticks, outer.left
    pickled = _read_to_stop(inner, source, stop)
    outer.left = inner.left
    outer.calls += pickled.calls
    outer.stack[-1].items = [pickled.value]
    end = at + pickled.end
    outer.op = end - outer.base
    outer.feed(source.read(end, min(_NESTED, stop - end)))


def _run_machine(machine: Machine) -> Pickled:
    """Run a machine to STOP, and turn the errors of a damaged stream into Damage."""
    collecting = gc.isenabled()
    # all objects made here stay in use: collections would take a third of the time and free nothing
    gc.disable()
    try:
        return machine.run(STEPS)
    except IndexError:
        raise machine.make_damage("an opcode takes more values than there are") from None
    except KeyError:
        raise machine.make_damage("it refers to a memo entry that was never stored") from None
    except ValueError as e:  # also UnicodeDecodeError
        raise machine.make_damage(str(e)[:200]) from None  # the message may quote the whole stream
    finally:
        if collecting:
            gc.enable()


STEPS: list[Step | None] = [None] * 256
_DIGITS = 20
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def _decode_str(raw: bytes) -> str | bytes:
    """Return a ``str`` of Python 2: as a text if it is ASCII, as names are, else as bytes."""
    return raw.decode("ascii") if raw.isascii() and type(raw) is bytes else raw


def _read_long(m: Machine, n: int) -> int | bytes:
    """Read an integer of ``n`` bytes; of one that is longer than is kept, return the first bytes."""
    raw = m.read_bytes(n)
    return raw if type(raw) is Long else int.from_bytes(raw, "little", signed=True)


def _unescape(match: re.Match[bytes]) -> bytes:
    """Return the byte that an escape in a string of Python 2 stands for: hexadecimal, octal or a letter."""
    escape = match[1]
    if len(escape) > 1 or escape.isdigit():
        return bytes([int(escape[1:], 16) if escape[:1] == b"x" else int(escape, 8) & 255])
    return _ESCAPES.get(escape, escape)


def _read_quoted(m: Machine) -> str | bytes:
    """Read the argument of STRING: a line with a string as Python 2 quotes it."""
    raw = m.read_line().strip()
    if len(raw) < 2 or raw[0] != raw[-1] or raw[:1] not in (b"'", b'"'):
        raise m.make_damage("a string without quotes")
    return _decode_str(_ESCAPE.sub(_unescape, raw[1:-1]))


def _read_slot(m: Machine) -> int:
    """Return the number of a memo entry. Raise Damage for digits that unpicklers may read otherwise."""
    raw = m.read_line()
    if len(raw) > _DIGITS:
        raise m.make_damage("the number of a memo entry has too many digits")
    return int(raw)


def _read_decimal(m: Machine) -> int:
    """Read the argument of INT or LONG: a line of digits; ``00`` and ``01`` are False and True."""
    raw = m.read_line()
    if len(raw) > 4300:  # conversion takes quadratic time; newer Pythons have the same limit
        raise m.make_damage("a number of too many digits")
    return bool(int(raw)) if raw in (b"00", b"01") else int(raw.rstrip(b"L"))


def _read_global(m: Machine) -> Global:
    """Read the argument of GLOBAL or INST: a line with a module and a line with a name."""
    return m.note_global(str(m.read_line(), "utf-8"), str(m.read_line(), "utf-8"))


def _add_push_step(opcode: bytes, read: Callable[[Machine], Any]) -> None:
    """Add a step for an opcode that pushes the value that ``read`` returns."""

    def step(m: Machine) -> None:
        v = read(m)  # before m.stack is looked up: pop_mark() puts another list there
        m.stack.append(v)

    STEPS[opcode[0]] = step


def _make_extension(m: Machine, code: int) -> Global:
    """Return a stand-in for the global that copyreg knows by this number. Raise Damage."""
    if not 0 < code < 1 << 31:  # signed, and refused by every unpickler
        raise m.make_damage("the number of an extension is below 1")
    return m.note_global("copyreg", f"extension {code}")


def _add_number_step(opcode: bytes, layout: str) -> None:
    """Add a step for an opcode that pushes the number behind it, of this layout of the module struct."""
    unpack, n = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def step(m: Machine) -> None:
        at = m.pos
        if at + n > len(m.data):
            m.take(n)  # raises NeedMore
        m.pos = at + n
        m.charge(1)
        m.stack.append(unpack(m.data, at)[0])

    STEPS[opcode[0]] = step


def _read_text(m: Machine, n: int) -> str | bytes:
    """Read a text of ``n`` bytes in UTF-8; of one that is longer than is kept, return the first bytes."""
    return m.decode_text(m.take(n)) if n <= LONG else m.read_bytes(n)


for _op, _layout in ((b"M", "<H"), (b"J", "<i"), (b"G", ">d")):  # BININT2, BININT, BINFLOAT
    _add_number_step(_op, _layout)
# BINUNICODE (if Machine.run does not read it: long, or cut off), SHORT_BINUNICODE, BINUNICODE8
for _op, _n in ((b"X", 4), (b"\x8c", 1), (b"\x8d", 8)):
    _add_push_step(_op, lambda m, n=_n: _read_text(m, m.read_uint(n)))  # type: ignore[misc]
# BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8
for _op, _n in ((b"B", 4), (b"C", 1), (b"\x8e", 8), (b"\x96", 8)):
    _add_push_step(_op, lambda m, n=_n: m.read_bytes(m.read_uint(n)))  # type: ignore[misc]
for _op, _n in ((b"T", 4), (b"U", 1)):  # BINSTRING, SHORT_BINSTRING
    _add_push_step(_op, lambda m, n=_n: _decode_str(m.read_bytes(m.read_uint(n))))  # type: ignore[misc]
for _op, _n in ((b"\x8a", 1), (b"\x8b", 4)):  # LONG1, LONG4
    _add_push_step(_op, lambda m, n=_n: _read_long(m, m.read_uint(n)))  # type: ignore[misc]
# EXT1, EXT2, EXT4: a number that the loading program's copyreg maps to a global
for _op, _n in ((b"\x82", 1), (b"\x83", 2), (b"\x84", 4)):
    _add_push_step(_op, lambda m, n=_n: _make_extension(m, m.read_uint(n)))  # type: ignore[misc]
for _op in (b"I", b"L"):  # INT, LONG
    _add_push_step(_op, _read_decimal)
_add_push_step(b"F", lambda m: float(m.read_line()))  # FLOAT
_add_push_step(b"S", _read_quoted)  # STRING
_add_push_step(b"V", lambda m: m.read_line().decode("raw-unicode-escape"))  # UNICODE
_add_push_step(b"]", lambda m: m.charge_for(2, []))  # EMPTY_LIST
_add_push_step(b"}", lambda m: m.charge_for(2, {}))  # EMPTY_DICT
_add_push_step(b"d", lambda m: m.set_items({}, m.pop_mark()))  # DICT
_add_push_step(b"\x8f", lambda m: m.charge_for(6, set()))  # EMPTY_SET
_add_push_step(b"l", lambda m: m.charge_for(2, m.pop_mark()))  # LIST
_add_push_step(b"\x91", lambda m: frozenset(m.add_members(m.charge_for(6, set()), m.pop_mark())))  # FROZENSET
_add_push_step(b"\x87", lambda m: m.charge_for(1, tuple(m.pop_values(3))))  # TUPLE3
_add_push_step(b"2", lambda m: m.stack[-1])  # DUP
_add_push_step(b"g", lambda m: m.get(_read_slot(m)))  # GET
_add_push_step(b"j", lambda m: m.get(m.read_uint(4)))  # LONG_BINGET
_add_push_step(b"c", _read_global)  # GLOBAL
_add_push_step(b"\x93", lambda m: m.note_global(*m.pop_values(2)))  # STACK_GLOBAL
_add_push_step(b"i", lambda m: m.reduce(_read_global(m), tuple(m.pop_mark())))  # INST
_add_push_step(b"\x92", lambda m: m.reduce(*m.pop_values(3)))  # NEWOBJ_EX
_add_push_step(b"P", lambda m: m.make_persistent(str(m.read_line(), "utf-8")))  # PERSID
_add_push_step(b"Q", lambda m: m.make_persistent(m.stack.pop()))  # BINPERSID
_add_push_step(b"\x97", lambda m: m.make_persistent("out-of-band buffer"))  # NEXT_BUFFER


def _step_reduce(m: Machine) -> None:
    """Replace a function and its arguments on the stack by the call."""
    args = m.stack.pop()
    m.stack[-1] = m.reduce(m.stack[-1], args)


def _step_obj(m: Machine) -> None:
    """Replace a class and its arguments, which lie above a MARK, by the call."""
    items = m.pop_mark()
    m.stack.append(m.reduce(items[0], tuple(items[1:])))


def _step_setitems(m: Machine) -> None:
    """Put the items above the last MARK, keys and values by turns, into the dict below it."""
    items = m.pop_mark()
    m.set_items(m.stack[-1], items)


for _op, _step in (
    (b"p", lambda m: m.put(_read_slot(m), m.stack[-1])),  # PUT
    (b"a", lambda m: m.append_items(m.pop_values(1))),  # APPEND
    (b"e", lambda m: m.append_items(m.pop_mark())),  # APPENDS
    (b"\x90", lambda m: m.append_items(m.pop_mark())),  # ADDITEMS
    (b"s", lambda m: m.set_items(m.stack[-3], m.pop_values(2))),  # SETITEM
    (b"u", _step_setitems),  # SETITEMS
    (b"R", _step_reduce),  # REDUCE
    (b"\x81", _step_reduce),  # NEWOBJ
    (b"o", _step_obj),  # OBJ
    (b"0", lambda m: m.stack.pop() if m.stack else m.pop_mark()),  # POP
    (b"1", Machine.pop_mark),  # POP_MARK
    (b"b", lambda m: m.build()),  # BUILD: a JoblibMachine has another
    (b"\x80", Machine.read_proto),  # PROTO
    (b"\x95", Machine.open_frame),  # FRAME
    (b"\x98", lambda m: m.stack[-1]),  # READONLY_BUFFER: changes no value
    # Machine.run reads these itself, unless ``data`` ends within them: take() raises NeedMore
    (b"h", lambda m: m.take(1)),  # BINGET
    (b"q", lambda m: m.take(1)),  # BINPUT
    (b"K", lambda m: m.take(1)),  # BININT1
    (b"r", lambda m: m.take(4)),  # LONG_BINPUT
):
    STEPS[_op[0]] = _step


# ---- Arrays as joblib.dump writes them: their elements lie in the pickle's stream, behind the object that
# describes them.
#
# Facts: joblib/numpy_pickle.py (NumpyArrayWrapper: write_array, read_array) of joblib 1.6; before 1.2 nothing
# pads. numpy/_core/src/multiarray/descriptor.c (arraydescr_reduce).


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
        """Give an object its state; go on behind an array's elements. Raise Nested if these are a pickle."""
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
    """Return the bytes of an array's elements (-1: a pickle), and whether padded. Raise ValueError."""
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
