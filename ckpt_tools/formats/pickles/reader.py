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
from ckpt_tools.formats.pickles.joblib_arrays import JoblibMachine
from ckpt_tools.formats.pickles.machine import LONG, MAX_MADE, MAX_OPS, Machine, Step
from ckpt_tools.formats.pickles.stubs import (
    Call,
    Dict,
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
    """Read the pickle at ``data[start:]``, where ``data`` begins at ``base``. Raises Damage (NeedMore).
    ``seen`` and ``called`` collect its globals with their first offsets, also before damage: calls come
    before it.
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
    """The same for a pickle in a file up to ``stop``, of which ``head`` was read; with ``arrays`` joblib's
    are gone over. One window at a time is in memory. Raises ShortRead, too.
    """
    kind = JoblibMachine if arrays else Machine
    return _read_on(kind(head, 0, start, seen, called), source, stop)


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
            # what is known and not enough is a line
            n = max(4 * known, min(4 * len(machine.data), WINDOW), need - at)
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
_DIGITS = 20
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def _text(raw: bytes) -> str | bytes:
    """A Python 2 ``str``: text if it is ASCII, as names are; bytes otherwise."""
    return raw.decode("ascii") if raw.isascii() and type(raw) is bytes else raw


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
    """A memo entry in digits; read as another number, one with too many could hide what is named."""
    raw = m.line()
    if len(raw) > _DIGITS:
        raise m.bad("the number of a memo entry has too many digits")
    return int(raw)


def _decimal(m: Machine) -> int:
    raw = m.line()
    if len(raw) > 4300:  # conversion is quadratic; newer Pythons draw the line here, too
        raise m.bad("a number of too many digits")
    return bool(int(raw)) if raw in (b"00", b"01") else int(raw.rstrip(b"L"))


def _global(m: Machine) -> Global:
    return m.name(str(m.line(), "utf-8"), str(m.line(), "utf-8"))


def _pushes(opcode: bytes, value: Callable[[Machine], Any]) -> None:
    def step(m: Machine) -> None:
        v = value(m)  # first: going back to a mark exchanges the stack
        m.stack.append(v)

    STEPS[opcode[0]] = step


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


def _read_text(m: Machine, n: int) -> str | bytes:
    return m.string(m.take(n)) if n <= LONG else m.binary(n)


for _op, _layout in ((b"M", "<H"), (b"J", "<i"), (b"G", ">d")):
    _fixed(_op, _layout)
# BINUNICODE (here only when cut off), SHORT_BINUNICODE, BINUNICODE8
for _op, _n in ((b"X", 4), (b"\x8c", 1), (b"\x8d", 8)):
    _pushes(_op, lambda m, n=_n: _read_text(m, m.uint(n)))  # type: ignore[misc]
# BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8
for _op, _n in ((b"B", 4), (b"C", 1), (b"\x8e", 8), (b"\x96", 8)):
    _pushes(_op, lambda m, n=_n: m.binary(m.uint(n)))  # type: ignore[misc]
for _op, _n in ((b"T", 4), (b"U", 1)):  # BINSTRING, SHORT_BINSTRING
    _pushes(_op, lambda m, n=_n: _text(m.binary(m.uint(n))))  # type: ignore[misc]
for _op, _n in ((b"\x8a", 1), (b"\x8b", 4)):  # LONG1, LONG4
    _pushes(_op, lambda m, n=_n: _long(m, m.uint(n)))  # type: ignore[misc]
# EXT: a number that the reader's copyreg maps to a global
for _op, _n in ((b"\x82", 1), (b"\x83", 2), (b"\x84", 4)):
    _pushes(_op, lambda m, n=_n: _extension(m, m.uint(n)))  # type: ignore[misc]
for _op in (b"I", b"L"):
    _pushes(_op, _decimal)
_pushes(b"F", lambda m: float(m.line()))
_pushes(b"S", _quoted)
_pushes(b"V", lambda m: m.line().decode("raw-unicode-escape"))
_pushes(b"]", lambda m: m.make(2, []))
_pushes(b"}", lambda m: m.make(2, {}))
_pushes(b"d", lambda m: m.setitems({}, m.marked()))
_pushes(b"\x8f", lambda m: m.make(6, set()))
_pushes(b"l", lambda m: m.make(2, m.marked()))
_pushes(b"\x91", lambda m: frozenset(m.add(m.make(6, set()), m.marked())))
_pushes(b"\x87", lambda m: m.make(1, tuple(m.pop(3))))
_pushes(b"2", lambda m: m.stack[-1])
_pushes(b"g", lambda m: m.get(_slot(m)))
_pushes(b"j", lambda m: m.get(m.uint(4)))
_pushes(b"c", _global)
_pushes(b"\x93", lambda m: m.name(*m.pop(2)))
_pushes(b"i", lambda m: m.reduce(_global(m), tuple(m.marked())))
_pushes(b"\x92", lambda m: m.reduce(*m.pop(3)))
_pushes(b"P", lambda m: m.persistent(str(m.line(), "utf-8")))
_pushes(b"Q", lambda m: m.persistent(m.stack.pop()))
_pushes(b"\x97", lambda m: m.persistent("out-of-band buffer"))


def _reduce(m: Machine) -> None:
    args = m.stack.pop()
    m.stack[-1] = m.reduce(m.stack[-1], args)


def _obj(m: Machine) -> None:
    items = m.marked()
    m.stack.append(m.reduce(items[0], tuple(items[1:])))


def _setitems(m: Machine) -> None:
    items = m.marked()
    m.setitems(m.stack[-1], items)


for _op, _step in (
    (b"p", lambda m: m.put(_slot(m), m.stack[-1])),
    (b"a", lambda m: m.append(m.pop(1))),
    (b"e", lambda m: m.append(m.marked())),
    (b"\x90", lambda m: m.append(m.marked())),
    (b"s", lambda m: m.setitems(m.stack[-3], m.pop(2))),
    (b"u", _setitems),
    (b"R", _reduce),
    (b"\x81", _reduce),
    (b"o", _obj),
    (b"0", lambda m: m.stack.pop() if m.stack else m.marked()),
    (b"1", Machine.marked),
    (b"b", lambda m: m.build()),  # joblib's machine has its own
    (b"\x80", Machine.proto),
    (b"\x95", Machine.open_frame),
    (b"\x98", lambda m: m.stack[-1]),  # READONLY_BUFFER changes no value
    # Machine.run does these itself, unless they are cut off
    (b"h", lambda m: m.take(1)),
    (b"q", lambda m: m.take(1)),
    (b"K", lambda m: m.take(1)),
    (b"r", lambda m: m.take(4)),
):
    STEPS[_op[0]] = _step
