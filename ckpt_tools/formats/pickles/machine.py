"""The state of our restricted pickle machine and what its opcodes do to it; reader.py holds the opcodes
themselves.

The stack discipline is that of CPython's Lib/pickle.py (_Unpickler). Nothing here recurses, and nothing is
hashed, copied or converted whose cost a stream could inflate, so time and memory are linear in the stream's
length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.pickles.known_globals import only_made
from ckpt_tools.formats.pickles.stubs import (
    Call,
    Dict,
    Filled,
    Global,
    Key,
    Long,
    NeedMore,
    Number,
    Persistent,
    Pickled,
    salted,
)

LIMIT = 512 << 20
"""Bytes of one frame at most."""
MAX_OPS = 5_000_000
"""Opcodes of one pickle read at most. A tensor in a state_dict takes about 35."""
MAX_MADE = 4_000_000
"""What one pickle may make and copy at most, in units of about 40 bytes of memory: one byte may buy an object
of 200.
"""
LONG, BEGINNING = 1 << 20, 4096
"""Bytes of a text from which on it is passed over, and how many of them are kept: a legacy torch file that is
hidden in one needs less than 1000.
"""
_LINE = 16 << 20
_DEEP = 100_000
"""Levels of marks. Picklers recurse, so they end at a few thousand."""

_MAPPINGS = {("collections", "OrderedDict"), ("collections", "defaultdict"), ("collections", "Counter")}
_BUILTIN = ("builtins", "__builtin__")
_SETS = {(m, n) for m in _BUILTIN for n in ("set", "frozenset")}
GETATTR = {(m, "getattr") for m in _BUILTIN}
_BYTES = {(m, "bytes") for m in _BUILTIN}
_NEWOBJ = {(m, n) for m in ("copyreg", "copy_reg") for n in ("__newobj__", "_reconstructor")}
_ENCODE = ("_codecs", "encode")
_SIZE = ("torch", "Size")
_PLAIN = {*_MAPPINGS, *_SETS, *_BYTES, _ENCODE, _SIZE}
_CONSTANTS: dict[int, Any] = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}
_REDUCE, _OLD = 0x52, b"io"
"""Opcodes that call: INST and OBJ make an object of no arguments as NEWOBJ does."""
_MANY = 16  # arguments of a call
_SMALL = 4096  # ints below are few enough to hash to themselves
_HOLE: Any = object()
_GAP, _HOLES = 1024, 1 << 16
"""How far beyond the memo's end an entry may be put, and how many may be left out: picklers number them one
by one.
"""


def key(value: Any) -> Any:
    """``value`` as a dict key whose hash and search cost nothing that the stream could inflate."""
    kind = type(value)
    if kind is str:
        return value
    if kind is int:
        return value if 0 <= value < _SMALL else Number(value) if value.bit_length() <= 64 else Key(value)
    if kind is float:
        return key(int(value)) if value.is_integer() and abs(value) < 1 << 63 else Number(value)
    return (
        Key(value)
        if isinstance(value, (tuple, list, dict, set, frozenset, Long)) and kind is not Global
        else value
    )


class Machine:
    """One run over one pickle."""

    def __init__(
        self,
        data: bytes,
        start: int,
        base: int,
        seen: dict[Global, int],
        called: dict[Global, int] | None = None,
    ) -> None:
        self.data, self.start, self.pos, self.op, self.base, self.seen = data, start, start, start, base, seen
        self.stack: list[Any] = []
        self.metastack: list[list[Any]] = []
        # A list: a stream could choose numbers that a dict searches for ever. What is far off lies apart.
        self.memo: list[Any] = []
        self.holes, self.far = 0, dict[str, Any]()
        self.ticks = iter(range(MAX_OPS))
        self.left = MAX_MADE
        self.first = base
        self.text = len(data)  # bytes that _codecs.encode may still make: every str of the stream once
        self.frame = -1  # where the current frame ends
        self.persistents: list[Persistent] = []
        self.calls: list[Call] = []
        self.called: dict[Global, int] = {} if called is None else called  # what is called, and where first
        self.twice: list[tuple[str, int]] = []
        self.bare = 0  # arrays of joblib without padding: see joblib_machine
        self.last = (b"", 0, 0)  # the bytes read last, and where in the file
        self.filled: list[Filled] = []

    def run(self, steps: Sequence[Step | None]) -> Pickled:  # noqa: C901, PLR0912, PLR0915 - a branch for each frequent opcode: a call would take three times as long
        """Read to STOP, the one opcode without a step; ``steps`` maps the other opcodes. Raises Damage, and
        IndexError, KeyError or ValueError for a damaged stream.

        After NeedMore it goes on where it was, once it was fed.
        """
        data, size, memo, metastack, at = self.data, len(self.data), self.memo, self.metastack, self.pos
        stack, frame = self.stack, self.frame
        try:
            for _ in self.ticks:
                if at >= size:
                    raise NeedMore(at + 1, self.base + at)
                if 0 <= frame <= at:
                    if at > frame:
                        self.op = at
                        raise self.bad("an opcode crosses the end of its frame")
                    frame = self.frame = -1
                op = data[at]
                # Nine of ten opcodes of a state_dict are among these, the most frequent first; spelled out
                # they take a third of the time of a call.
                if op == 0x72 and at + 4 < size:  # LONG_BINPUT
                    i = data[at + 1] | data[at + 2] << 8 | data[at + 3] << 16 | data[at + 4] << 24
                    memo.append(stack[-1]) if i == len(memo) else self.put(i, stack[-1])
                    at += 5
                elif op == 0x4B and at + 1 < size:  # BININT1
                    stack.append(data[at + 1])
                    at += 2
                elif op == 0x68 and at + 1 < size:  # BINGET
                    i = data[at + 1]
                    stack.append(self.get(i) if i >= len(memo) or memo[i] is _HOLE else memo[i])
                    at += 2
                elif op == 0x28:  # MARK
                    metastack.append(stack)
                    if len(metastack) > _DEEP:
                        raise self.complex()
                    stack = []
                    at += 1
                elif op == 0x71 and at + 1 < size:  # BINPUT
                    memo.append(stack[-1]) if data[at + 1] == len(memo) else self.put(data[at + 1], stack[-1])
                    at += 2
                elif (
                    op == 0x58
                    and at + 4 < size
                    and (end := at + 5 + int.from_bytes(data[at + 1 : at + 5], "little"))
                    <= min(size, at + LONG)
                ):  # BINUNICODE
                    stack.append(self.string(data[at + 5 : end]))
                    at = end
                elif op == 0x94:  # MEMOIZE
                    self.put(len(memo) - self.holes + len(self.far), stack[-1])
                    at += 1
                elif op == 0x74:  # TUPLE
                    items, stack = stack, metastack.pop()
                    stack.append(tuple(items))
                    at += 1
                elif op == 0x85:  # TUPLE1
                    self.op = at
                    self.charge(1)
                    stack[-1] = (stack[-1],)
                    at += 1
                elif op == 0x4D and at + 2 < size:  # BININT2
                    self.op = at
                    self.charge(1)
                    stack.append(data[at + 1] | data[at + 2] << 8)
                    at += 3
                elif op in _CONSTANTS:
                    stack.append(_CONSTANTS[op])
                    at += 1
                elif op == 0x86:  # TUPLE2
                    stack[-2:] = [(stack[-2], stack[-1])]
                    at += 1
                else:
                    self.op, self.pos, self.stack = at, at + 1, stack
                    step = steps[op]
                    if step is None:
                        return self.stop(op)
                    step(self)
                    at, stack, frame = self.pos, self.stack, self.frame
        finally:
            self.op, self.stack = at, stack
        raise self.complex()

    def feed(self, data: bytes) -> None:
        """Go on with the bytes from ``op`` on."""
        self.base, self.start = self.base + self.op, self.start - self.op
        self.frame = self.frame - self.op if self.frame >= 0 else -1
        self.data, self.pos, self.op = data, 0, 0
        self.text += len(data)

    def forget(self) -> None:
        """Let go of all that was made: an exception that is kept keeps this machine."""
        self.memo.clear()
        for made in (self.stack, self.metastack, self.far, self.persistents, self.calls, self.filled):
            made.clear()

    def put(self, i: int, value: Any) -> None:
        """Into the memo."""
        gap = i - len(self.memo)
        if gap == 0:
            self.memo.append(value)
        elif -gap <= len(self.memo) and gap < 0:
            self.holes -= self.memo[i] is _HOLE
            self.memo[i] = value
        elif 0 < gap < _GAP and self.holes < _HOLES:
            self.memo += [_HOLE] * gap
            self.holes += gap
            self.memo.append(value)
        else:
            self.charge(4)
            self.far[salted(i)] = value

    def get(self, i: int) -> Any:
        """From the memo. Raises KeyError."""
        return self.memo[i] if 0 <= i < len(self.memo) and self.memo[i] is not _HOLE else self.far[salted(i)]

    def stop(self, op: int) -> Pickled:
        if op != 0x2E:
            raise self.bad(f"there is no opcode 0x{op:02x}")
        if self.metastack or len(self.stack) != 1 or self.frame not in (-1, self.pos):
            raise self.bad("it stops before its end")
        end = self.base + self.pos - self.first
        return Pickled(self.stack[0], end, self.persistents, self.calls, self.twice, self.filled, self.bare)

    def complex(self) -> Damage:
        why = (
            f"the pickle has more than {MAX_OPS:,} opcodes, or makes more than is kept; the rest was not read"
        )
        return Damage("unread-pickle", why, self.base + self.op)

    def bad(self, why: str) -> Damage:
        return Damage("bad-pickle", f"the pickle is damaged: {why}", self.base + self.op)

    def charge(self, n: int) -> None:
        self.left -= n
        if self.left < 0:
            raise self.complex()

    def string(self, raw: bytes) -> str:
        """A text of at most LONG bytes."""
        out = str(raw, "utf-8", "surrogatepass")
        self.charge(len(raw) // 32 + 2 if out.isascii() else len(raw) // 8 + 2)
        return out

    def binary(self, n: int) -> bytes:
        """The next ``n`` bytes; of very many only the first."""
        at, kept = self.pos, n if n <= LONG else BEGINNING
        self.charge(kept // 32 + 2)
        out = self.take(kept) if n <= LONG else Long(self.take(kept))
        self.pos = at + n
        self.last = (out, self.base + at, n)
        return out

    def make(self, n: int, value: Any) -> Any:
        self.charge(n)
        return value

    def pop(self, n: int) -> list[Any]:
        """The last ``n`` values. Raises IndexError."""
        out = self.stack[-n:]
        if len(out) < n:
            raise IndexError
        del self.stack[-n:]
        return out

    def take(self, n: int) -> bytes:
        at, end = self.pos, self.pos + n
        if n < 0:
            raise self.bad("a negative length")
        if end > len(self.data):
            raise NeedMore(end, self.base + self.op)
        self.pos = end
        return self.data[at:end]

    def uint(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.pos)
        if end < 0 and len(self.data) - self.pos > _LINE:
            raise self.complex()
        if end < 0:
            raise NeedMore(len(self.data) + 1, self.base + self.op)
        self.charge((end - self.pos) // 32 + 1)
        out, self.pos = self.data[self.pos : end], end + 1
        return out

    def marked(self) -> list[Any]:
        items, self.stack = self.stack, self.metastack.pop()
        return items

    def name(self, module: Any, name: Any) -> Global:
        if type(module) is not str or type(name) is not str:
            if Call in (type(module), type(name)):
                why = "the pickle names a global by what a call gives: it hides what it imports"
                raise Damage("unsafe-pickle", why, self.base + self.op)
            raise self.bad("a global's name is not a string")
        self.charge((len(module) + len(name)) // 32 + 8)
        out = Global(module, name)
        self.seen.setdefault(out, self.base + self.op)
        return out

    def reduce(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        if type(func) not in (Global, Call, Persistent) or type(args) is not tuple:
            raise self.bad("it calls something that cannot be called")
        if len(args) > _MANY:  # copied below, and a stream may pass the same tuple again and again
            self.charge(len(args))
        named = self.find_origin(func)
        if type(func) is Global:
            if func in _NEWOBJ and args and type(args[0]) is Global:
                for base in args[1:2]:
                    if type(base) is Global:  # copyreg._reconstructor makes the object with this class
                        self.call(base, outright=True)
                func, args = args[0], args[1:]
                named = func
                self.call(func, outright=False)
            else:
                self.call(func, outright=self.calls_outright(args))
            if func in _PLAIN and (made := self.plain(func, args)) is not _HOLE:
                return made
            if func in GETATTR and len(args) > 1:
                named = self.attribute(args)
        else:
            self.called.setdefault(named, self.base + self.op)
        self.charge(4)
        call = Call(func, args, kwargs, self.base + self.op, named)
        self.calls.append(call)
        return call

    def calls_outright(self, args: tuple[Any, ...]) -> bool:
        """Whether the opcode calls, and not only asks a class to make an object as NEWOBJ does."""
        return self.data[self.op] == _REDUCE or (bool(args) and self.data[self.op] in _OLD)

    def call(self, func: Global, *, outright: bool) -> None:
        """Note a name that is called."""
        self.called.setdefault(func, self.base + self.op)
        if outright and only_made(*func):
            self.called.setdefault(Global(func.module, f"{func.name}.__init__"), self.base + self.op)

    def plain(self, func: Global, args: tuple[Any, ...]) -> Any:
        """The plain value of a call in ``_PLAIN``; _HOLE where its arguments are no pickler's."""
        if func in _MAPPINGS:
            return self.make_mapping(func, args)
        if func in _SETS and len(args) <= 1 and all(type(a) is list for a in args):
            self.charge(sum(map(len, args)))
            return {key(v) for a in args for v in a}
        if func == _SIZE and len(args) == 1 and type(args[0]) is tuple:
            return args[0]
        if func in _BYTES and not args:  # protocol 2 has no other way to write b""
            return b""
        if func == _ENCODE and args:
            return self.encode(args[0], args[1:])
        return _HOLE

    def encode(self, text: Any, how: tuple[Any, ...]) -> Any:
        """The bytes of a text as protocol 2 writes them; _HOLE where the arguments are no pickler's."""
        if type(text) is Long:
            return text
        if how not in (("latin1",), ("latin-1",)) or type(text) is not str or len(text) > self.text:
            return _HOLE
        self.text -= len(text)
        return text.encode("latin-1")

    def find_origin(self, func: Global | Call | Persistent) -> Global:
        """What to call what is called by: a global, an attribute that getattr gave, or what a call gave."""
        if type(func) is Global:
            return func
        if type(func) is Call:
            self.charge(len(func.named.name[:500]) // 32 + 8)
            of = func.named
            return of if func.func in GETATTR else Global(of.module, f"{of.name[:500].removesuffix('()')}()")
        pid = func.pid if type(func) is Persistent else None
        if type(pid) is tuple and len(pid) > 1 and type(pid[1]) is Global:
            return pid[1]  # torch.load answers with the class itself
        return Global("", "a persistent object")

    def attribute(self, args: tuple[Any, ...]) -> Global:
        """The name that getattr reaches; a computed one, or one with a default, reaches everything."""
        of = args[0].named if type(args[0]) is Call else args[0]
        of = of if type(of) is Global else Global("builtins", "getattr")
        attribute = args[1] if type(args[1]) is str and len(args) == 2 else "__getattribute__"
        return self.name(of.module, f"{of.name[:500]}.{attribute[:500]}")

    def touch(self, target: Call) -> None:
        """An attribute of something that is named is changed: as much as a call."""
        if target.func in GETATTR:
            self.called.setdefault(target.named, self.base + self.op)

    def make_mapping(self, func: Global, args: tuple[Any, ...]) -> Dict:
        self.charge(4)
        out = Dict(func, args[0] if func.name == "defaultdict" and args else None)
        for a in args[func.name == "defaultdict" :][:1]:
            self.charge(len(a) if isinstance(a, (list, dict)) else 0)
            if isinstance(a, dict):
                out.update(a)
            elif type(a) is list:  # Python 2 wrote the items as arguments
                self.setitems(out, [v for p in a if type(p) in (list, tuple) and len(p) == 2 for v in p])
        return out

    def persistent(self, pid: Any) -> Persistent:
        self.charge(3)
        self.persistents.append(Persistent(pid, self.base + self.op))
        return self.persistents[-1]

    def append(self, items: list[Any]) -> None:
        """Put some more into the list, the set or what stands for one on top of the stack."""
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif type(target) is set:
            self.add(target, items)
        elif type(target) is Call:  # a deque, a list's subclass …
            self.touch(target)
            target.items = target.items or []
            target.items.extend(items)
        else:
            raise self.bad("it appends to something that is not a list")

    def add(self, target: set[Any], items: list[Any]) -> set[Any]:
        self.charge(2 * len(items))
        target.update(map(key, items))
        return target

    def setitems(self, target: Any, items: list[Any]) -> Any:
        """Put keys and values into a dict or what stands for one; returns it."""
        into = target
        if type(target) is Call:
            self.touch(target)
            into = target.entries = target.entries or {}
        if not isinstance(into, dict) or len(items) % 2:
            raise self.bad("it sets an item of something that is not a dict")
        self.charge(len(items))
        for i in range(0, len(items), 2):
            k = items[i]
            if type(k) is not str:
                self.charge(4)
            elif k in into and len(self.twice) < _MANY:
                self.twice.append((k[:200], self.base + self.op))
            into[k if type(k) is str else key(k)] = items[i + 1]
        return target

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) not in (Call, Dict):
            raise self.bad("it gives a state to a plain value")
        if type(target) is Call:
            self.touch(target)
            if type(state) is tuple and state and state[-1] is self.last[0]:
                self.charge(2)
                self.filled.append(Filled(target, *self.last[1:]))
        target.state = state

    def proto(self) -> None:
        if self.uint(1) > 5 or self.op != self.start:
            raise self.bad("an unknown protocol")

    def open_frame(self) -> None:
        n = self.uint(8)
        if self.frame >= 0 or n > LIMIT:
            raise self.bad("a frame inside a frame")
        self.frame = self.pos + n


Step = Callable[[Machine], object]
