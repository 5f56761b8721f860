"""Reads pickles of protocols 0 to 5 into plain values and stubs: imports nothing, calls nothing that the
stream names.

The opcodes are those of CPython's Lib/pickletools.py. The result is bounded by the stream's length and by
MAX_OPS, but it may be deep, shared or refer to itself: walk it with a stack of your own and a set of the ids
already visited.
"""

from __future__ import annotations

import gc
import re
import struct
from collections.abc import Callable
from typing import Any

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.pickles.joblib_arrays import ALIGNMENT, WRAPPER, behind
from ckpt_tools.formats.pickles.machine import LONG, MAX_MADE, MAX_OPS, Machine, Step
from ckpt_tools.formats.pickles.stubs import (
    Call,
    Dict,
    Filled,
    Global,
    Key,
    Long,
    NeedMore,
    Nested,
    Number,
    Persistent,
    Pickled,
)
from ckpt_tools.storage import Source

# ---- Reads pickles with joblib's arrays in their stream: a machine that goes over the elements behind
# each.


class JoblibMachine(Machine):
    """A machine that knows where the pickle goes on behind an array."""

    __slots__ = ()

    def build(self) -> None:
        target = self.stack[-2]
        if type(target) is Call and target.func == WRAPPER:
            self._array(self.stack[-1], target)
        else:
            super().build()

    def _array(self, state: Any, target: Call) -> None:
        """An array, and the elements behind it. Raises Nested where these are a pickle."""
        follows, at = behind(state), self.pos
        if follows.padded:
            at = self._behind_padding()
        if self.frame not in (-1, self.pos):
            raise self.bad("an array lies inside a frame")
        self.frame = -1
        self.stack.pop()
        target.state = state
        self.bare += not follows.padded
        if follows.objects:
            raise Nested
        self.filled.append(Filled(target, self.base + at, follows.nbytes))
        self.pos = at + follows.nbytes

    def _behind_padding(self) -> int:
        """Where the elements begin: a byte says how many bytes 0xff come first."""
        at, known = self.pos, len(self.data)
        end = at + 1 if at >= known else at + 1 + self.data[at]
        if end > known or at >= known:
            raise NeedMore(end, self.base + at)
        padding = self.data[at + 1 : end]
        if not 0 < len(padding) <= ALIGNMENT or padding.strip(b"\xff"):
            raise self.bad("the padding before an array is not joblib's")
        return end


__all__ = [
    "MAX_MADE",
    "MAX_OPS",
    "WINDOW",
    "Call",
    "Dict",
    "Global",
    "Key",
    "Long",
    "NeedMore",
    "Number",
    "Persistent",
    "Pickled",
    "read_from",
    "read_pickle",
]
WINDOW = 4 << 20
"""Bytes of a pickle in memory, unless a single line of it is longer."""
_NESTED = 4096
"""Bytes that are read first of a pickle inside another one, and behind it."""


def read_pickle(
    data: bytes,
    start: int = 0,
    *,
    base: int = 0,
    seen: dict[Global, int] | None = None,
    called: dict[Global, int] | None = None,
) -> Pickled:
    """Read the pickle at ``data[start:]``; ``base`` is the file offset of ``data[0]``. Raises Damage
    (NeedMore when the data ends early).

    ``seen`` collects every global that the pickle names, with the file offset of its first mention, also when
    the pickle is damaged further on: an unpickler makes the calls before it meets the damage. ``called``
    collects those that it calls.
    """
    return _run(Machine(data, start, base, {} if seen is None else seen, called))


def read_from(
    source: Source,
    start: int,
    stop: int,
    head: bytes,
    seen: dict[Global, int],
    *,
    called: dict[Global, int] | None = None,
    arrays: bool = False,
) -> Pickled:
    """The same for the pickle at ``start`` of a file, which ends at ``stop`` at the latest; ``head`` is what
    was read of it. Raises ShortRead, too.

    A window goes over the file: neither its bytes nor long texts in it are all in memory. With ``arrays``
    those that joblib keeps in the stream are gone over.
    """
    if arrays:
        return _read_on(JoblibMachine(head, 0, start, seen, called), source, stop)
    return _read_on(Machine(head, 0, start, seen, called), source, stop)


def _read_on(machine: Machine, source: Source, stop: int) -> Pickled:
    while True:
        try:
            return _run(machine)
        except Nested:
            _go_over(machine, source, stop)
        except NeedMore as e:
            at, need = machine.base + machine.op, machine.base + e.upto
            if need > stop:
                machine.forget()
                raise
            known = len(machine.data) - machine.op
            n = max(
                4 * known, min(4 * len(machine.data), WINDOW), need - at
            )  # what is known and not enough is a line
            machine.feed(source.read(at, min(n, stop - at)))
        except Damage:
            machine.forget()
            raise


def _go_over(outer: Machine, source: Source, stop: int) -> None:
    """Read the pickle of an array's objects where the machine stands, and let it go on behind that."""
    at = outer.base + outer.pos
    head = source.read(at, min(_NESTED, stop - at))
    inner = Machine(head, 0, at, outer.seen, outer.called)
    inner.ticks, inner.left = outer.ticks, outer.left
    pickled = _read_on(inner, source, stop)
    outer.left = inner.left
    outer.calls += pickled.calls
    outer.stack[-1].items = [pickled.value]
    end = at + pickled.end
    outer.op = end - outer.base
    outer.feed(source.read(end, min(_NESTED, stop - end)))


def _run(machine: Machine) -> Pickled:
    collecting = gc.isenabled()
    # everything made here stays: going through it again and again would take a third of the time
    gc.disable()
    try:
        return machine.run(STEPS)
    except IndexError:
        raise machine.bad("an opcode takes more values than there are") from None
    except KeyError:
        raise machine.bad("it refers to a memo entry that was never stored") from None
    except ValueError as e:  # also UnicodeDecodeError
        raise machine.bad(str(e)[:200]) from None  # it may quote all it was given
    finally:
        if collecting:
            gc.enable()


STEPS: list[Step | None] = [None] * 256
_INTS = {b"M": "<H", b"J": "<i", b"G": ">d"}
_CONSTANTS: dict[bytes, Any] = {b"N": None, b"\x88": True, b"\x89": False, b")": ()}
_DIGITS = 20
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def _text(raw: bytes) -> str | bytes:
    """A Python 2 ``str``: text if it is ASCII, as names are; bytes otherwise."""
    return raw.decode("ascii") if raw.isascii() and type(raw) is bytes else raw


def _unicode(m: Machine, n: int) -> str | bytes:
    return m.string(m.take(n)) if n <= LONG else m.binary(n)


def _long(m: Machine, n: int) -> int | bytes:
    raw = m.binary(n)
    return raw if type(raw) is Long else int.from_bytes(raw, "little", signed=True)


def _unescape(match: re.Match[bytes]) -> bytes:
    what = match[1]
    if len(what) > 1 or what.isdigit():
        return bytes([int(what[1:], 16) if what[:1] == b"x" else int(what, 8) & 255])
    return _ESCAPES.get(what, what)


def _quoted(m: Machine) -> str | bytes:
    raw = m.line().strip()
    if len(raw) < 2 or raw[0] != raw[-1] or raw[:1] not in (b"'", b'"'):
        raise m.bad("a string without quotes")
    return _text(_ESCAPE.sub(_unescape, raw[1:-1]))


def _slot(m: Machine) -> int:
    """A memo entry named in digits. One with more than fit is refused: read as another, it could hide what
    the pickle names.
    """
    raw = m.line()
    if len(raw) > _DIGITS:
        raise m.bad("the number of a memo entry has too many digits")
    return int(raw)


def _decimal(m: Machine) -> int:
    raw = m.line()
    if len(raw) > 4300:  # conversion is quadratic; newer Pythons draw the line here, too
        raise m.bad("a number of too many digits")
    return bool(int(raw)) if raw in (b"00", b"01") else int(raw.rstrip(b"L"))


def _pushes(opcode: bytes, value: Callable[[Machine], Any]) -> None:
    def step(m: Machine) -> None:
        v = value(m)  # first: going back to a mark exchanges the stack
        m.stack.append(v)

    STEPS[opcode[0]] = step


def _does(opcode: bytes) -> Callable[[Step], Step]:
    def put(step: Step) -> Step:
        STEPS[opcode[0]] = step
        return step

    return put


def _extension(m: Machine, code: int) -> Global:
    if not 0 < code < 1 << 31:  # signed, and refused by every unpickler
        raise m.bad("the number of an extension is below 1")
    return m.name("copyreg", f"extension {code}")


def _fixed(opcode: bytes, layout: str) -> None:
    unpack, n = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def step(m: Machine) -> None:
        at = m.pos
        if at + n > len(m.data):
            m.take(n)  # raises NeedMore
        m.pos = at + n
        m.charge(1)
        m.stack.append(unpack(m.data, at)[0])

    STEPS[opcode[0]] = step


def _constant(opcode: bytes, value: Any) -> None:
    STEPS[opcode[0]] = lambda m: m.stack.append(value)


for _op, _layout in _INTS.items():
    _fixed(_op, _layout)
for _op, _value in _CONSTANTS.items():
    _constant(_op, _value)
for _op, _n in (
    (b"X", 4),
    (b"\x8c", 1),
    (b"\x8d", 8),
):  # BINUNICODE (here only when cut off), SHORT_BINUNICODE, BINUNICODE8
    _pushes(_op, lambda m, n=_n: _unicode(m, m.uint(n)))  # type: ignore[misc]
for _op, _n in (
    (b"B", 4),
    (b"C", 1),
    (b"\x8e", 8),
    (b"\x96", 8),
):  # BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8
    _pushes(_op, lambda m, n=_n: m.binary(m.uint(n)))  # type: ignore[misc]
for _op, _n in ((b"T", 4), (b"U", 1)):  # BINSTRING, SHORT_BINSTRING
    _pushes(_op, lambda m, n=_n: _text(m.binary(m.uint(n))))  # type: ignore[misc]
for _op, _n in ((b"\x8a", 1), (b"\x8b", 4)):  # LONG1, LONG4
    _pushes(_op, lambda m, n=_n: _long(m, m.uint(n)))  # type: ignore[misc]
for _op, _n in (
    (b"\x82", 1),
    (b"\x83", 2),
    (b"\x84", 4),
):  # EXT: a number that the reader's copyreg maps to a global
    _pushes(_op, lambda m, n=_n: _extension(m, m.uint(n)))  # type: ignore[misc]
for _op in (b"I", b"L"):
    _pushes(_op, _decimal)
_pushes(b"F", lambda m: float(m.line()))
_pushes(b"S", _quoted)
_pushes(b"V", lambda m: m.line().decode("raw-unicode-escape"))
_pushes(b"]", lambda m: m.made(2, []))
_pushes(b"}", lambda m: m.made(2, {}))
_pushes(b"\x8f", lambda m: m.empty_set())
_pushes(b"l", lambda m: m.made(2, m.marked()))
_pushes(b"\x91", lambda m: frozenset(m.append(m.empty_set(), m.marked())))
_pushes(b"\x85", lambda m: m.made(1, (m.stack.pop(),)))
_pushes(b"2", lambda m: m.stack[-1])
_pushes(b"g", lambda m: m.get(_slot(m)))
_pushes(b"j", lambda m: m.get(m.uint(4)))
_pushes(b"c", lambda m: m.name(str(m.line(), "utf-8"), str(m.line(), "utf-8")))
_pushes(b"P", lambda m: m.persistent(str(m.line(), "utf-8")))
_pushes(b"Q", lambda m: m.persistent(m.stack.pop()))
_pushes(b"\x97", lambda m: m.persistent("out-of-band buffer"))


@_does(b"p")
def _put(m: Machine) -> None:
    m.put(_slot(m), m.stack[-1])


@_does(b"\x87")
def _tuple3(m: Machine) -> None:
    m.charge(1)
    m.stack[-3:] = [(m.stack[-3], m.stack[-2], m.stack[-1])]


@_does(b"d")
def _dict(m: Machine) -> None:
    items, out = m.marked(), dict[Any, Any]()
    m.setitems(out, items)
    m.stack.append(out)


@_does(b"a")
def _append(m: Machine) -> None:
    item = m.stack.pop()
    m.append(m.stack[-1], [item])


@_does(b"e")
@_does(b"\x90")
def _appends(m: Machine) -> None:
    items = m.marked()
    m.append(m.stack[-1], items)


@_does(b"s")
def _setitem(m: Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    m.setitems(m.stack[-1], [key, value])


@_does(b"u")
def _setitems(m: Machine) -> None:
    items = m.marked()
    m.setitems(m.stack[-1], items)


@_does(b"R")
@_does(b"\x81")
def _reduce(m: Machine) -> None:
    args = m.stack.pop()
    m.stack[-1] = m.reduce(m.stack[-1], args)


@_does(b"\x92")
def _newobj_ex(m: Machine) -> None:
    kwargs, args = m.stack.pop(), m.stack.pop()
    m.stack[-1] = m.reduce(m.stack[-1], args, kwargs)


@_does(b"i")
def _inst(m: Machine) -> None:
    func = m.name(str(m.line(), "utf-8"), str(m.line(), "utf-8"))
    args = tuple(m.marked())
    m.stack.append(m.reduce(func, args))


@_does(b"o")
def _obj(m: Machine) -> None:
    items = m.marked()
    m.stack.append(m.reduce(items[0], tuple(items[1:])))


@_does(b"\x93")
def _stack_global(m: Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    m.stack.append(m.name(module, name))


@_does(b"0")
def _pop(m: Machine) -> None:
    if m.stack:
        m.stack.pop()
    else:
        m.marked()


for _op, _n in (
    (b"h", 1),
    (b"q", 1),
    (b"K", 1),
    (b"r", 4),
):  # Machine.run does these itself, unless they are cut off
    STEPS[_op[0]] = lambda m, n=_n: m.take(n)  # type: ignore[misc]
STEPS[ord("1")] = Machine.marked
STEPS[ord("b")] = lambda m: m.build()  # joblib's machine has its own
STEPS[0x80] = Machine.proto
STEPS[0x95] = Machine.open_frame
STEPS[0x98] = lambda m: m.stack[-1]  # READONLY_BUFFER changes no value
