"""The state of our restricted pickle machine, and a method for each change of that state; reader.py maps
opcodes to these methods.

The stack discipline is that of CPython's Lib/pickle.py (_Unpickler). No method recurses, or hashes, copies or
converts a value at a cost that a hostile stream could inflate: time and memory are linear in its length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.pickles.globals import is_only_made
from ckpt_tools.formats.pickles.stubs import (
    Call,
    Dict,
    Global,
    Key,
    Long,
    NeedMore,
    Number,
    Offsets,
    Persistent,
    Pickled,
    StateBytes,
    salt_number,
)

LIMIT = 512 << 20
"""The most bytes of one frame."""
MAX_OPS = 5_000_000
"""The most opcodes that are read of one pickle. A tensor in a state_dict takes about 35."""
MAX_MADE = 4_000_000
"""The budget of one pickle for the objects that it makes and copies, in units of about 40 bytes of memory:
one byte of the stream may make an object of 200 bytes.
"""
LONG, BEGINNING = 1 << 20, 4096
"""Of a text or bytes object of more than LONG bytes, only the first BEGINNING bytes are kept: a legacy torch
file that is hidden in one needs less than 1000.
"""
_MAX_LINE = 16 << 20  # bytes
_MAX_MARKS = 100_000
"""The most MARKs that may be open at a time. Picklers recurse, so they end at a few thousand."""

_MAPPINGS = {("collections", "OrderedDict"), ("collections", "defaultdict"), ("collections", "Counter")}
BUILTINS = ("builtins", "__builtin__")
_SETS = {(m, n) for m in BUILTINS for n in ("set", "frozenset")}
GETATTR = {(m, "getattr") for m in BUILTINS}
_BYTES = {(m, "bytes") for m in BUILTINS}
_NEWOBJ = {(m, n) for m in ("copyreg", "copy_reg") for n in ("__newobj__", "_reconstructor")}
_ENCODE = ("_codecs", "encode")
_SIZE = ("torch", "Size")
_PLAIN = {*_MAPPINGS, *_SETS, *_BYTES, _ENCODE, _SIZE}
_CONSTANTS: dict[int, Any] = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}
_REDUCE, _INST_OBJ = 0x52, b"io"
"""Opcodes that call; INST and OBJ without arguments only make an object, as NEWOBJ does."""
_MANY = 16  # arguments of a call that cost nothing extra; also: keys given twice that are reported
_SMALL = 4096  # ints below it may be dict keys as they are: too few to collide on purpose
_HOLE: Any = object()  # in the memo: a number without an entry; as a result: no plain value
_GAP, _HOLES = 1024, 1 << 16
"""How far beyond the end of ``memo`` an entry may lie, and how many numbers may have no entry; all other
entries go to ``far``. Picklers number entries one by one.
"""


def make_key(value: Any) -> Any:
    """Return ``value``, or a stub for it, as a dict key that no stream can make slow to hash or to find."""
    kind = type(value)
    if kind is str or (kind is int and 0 <= value < _SMALL):
        return value
    if kind is int:
        return Number(value) if value.bit_length() <= 64 else Key(value)
    if kind is float:
        return make_key(int(value)) if value.is_integer() and abs(value) < 1 << 63 else Number(value)
    slow = isinstance(value, (tuple, list, dict, set, frozenset, Long)) and kind is not Global
    return Key(value) if slow else value


class Machine:
    """One reading of one pickle. In ``data``, the bytes at hand, the current opcode is at index ``op``, the
    next byte at ``pos``; ``base`` is the file offset of ``data[0]``.

    ``seen`` and ``called`` collect the globals named and called, each with the file offset of its first time.
    """

    def __init__(
        self, data: bytes, start: int, base: int, seen: Offsets, called: Offsets | None = None
    ) -> None:
        self.data, self.start, self.pos, self.op, self.base, self.seen = data, start, start, start, base, seen
        self.stack: list[Any] = []
        self.metastack: list[list[Any]] = []
        # A list: a stream could choose numbers that a dict searches for ever. Entries far off go to ``far``.
        self.memo: list[Any] = []
        self.holes, self.far = 0, dict[str, Any]()  # holes: how often ``memo`` has _HOLE
        self.ticks = iter(range(MAX_OPS))
        self.left = MAX_MADE
        self.first = base  # as it is at first: feed() raises ``base``
        self.text = len(data)  # characters that _codecs.encode may still encode: each of the stream once
        self.frame = -1  # where the current frame ends
        self.persistents: list[Persistent] = []
        self.calls: list[Call] = []
        self.called: Offsets = {} if called is None else called
        self.repeated_keys: list[tuple[str, int]] = []  # keys that one dict is given twice, and where
        self.unpadded_arrays = 0  # arrays of joblib without padding: see reader.py
        self.last = (b"", 0, 0)  # what read_bytes() read last, its file offset and its length
        self.state_bytes: list[StateBytes] = []

    def run(self, steps: Sequence[Step | None]) -> Pickled:  # noqa: C901, PLR0912, PLR0915 - a branch for each frequent opcode: a call would take three times as long
        """Run opcodes up to STOP; ``steps`` has a function for each opcode but STOP and unknown ones. Raise
        Damage, or IndexError, KeyError or ValueError for a damaged stream.

        After NeedMore, feed() the machine and call this again: it goes on at the opcode that needed more.
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
                        raise self.make_damage("an opcode crosses the end of its frame")
                    frame = self.frame = -1
                op = data[at]
                # Nine of ten opcodes of a state_dict have a branch here, the most frequent first: a branch
                # takes a third of the time of a call.
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
                    if len(metastack) > _MAX_MARKS:
                        raise self.make_excess_damage()
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
                    stack.append(self.decode_text(data[at + 5 : end]))
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
        raise self.make_excess_damage()

    def feed(self, data: bytes) -> None:
        """Replace the bytes at hand by ``data``, which begins at the current opcode: ``run`` repeats it."""
        self.base, self.start = self.base + self.op, self.start - self.op
        self.frame = self.frame - self.op if self.frame >= 0 else -1
        self.data, self.pos, self.op = data, 0, 0
        self.text += len(data)

    def forget(self) -> None:
        """Empty the stacks, the memo and the lists of stubs: an exception keeps this machine in memory."""
        self.memo.clear()
        for made in (self.stack, self.metastack, self.far, self.persistents, self.calls, self.state_bytes):
            made.clear()

    def put(self, i: int, value: Any) -> None:
        """Store a value as entry ``i`` of the memo; in ``far`` if that is far beyond the end of ``memo``."""
        gap = i - len(self.memo)
        if gap == 0:
            self.memo.append(value)
        elif 0 <= i < len(self.memo):
            self.holes -= self.memo[i] is _HOLE
            self.memo[i] = value
        elif 0 < gap < _GAP and self.holes < _HOLES:
            self.memo += [_HOLE] * gap
            self.holes += gap
            self.memo.append(value)
        else:
            self.charge(4)
            self.far[salt_number(i)] = value

    def get(self, i: int) -> Any:
        """Return entry ``i`` of the memo. Raise KeyError if nothing was stored there."""
        near = 0 <= i < len(self.memo) and self.memo[i] is not _HOLE
        return self.memo[i] if near else self.far[salt_number(i)]

    def stop(self, op: int) -> Pickled:
        """Return the result at STOP. Raise Damage for an unknown opcode, or if the pickle is not complete."""
        if op != 0x2E:
            raise self.make_damage(f"there is no opcode 0x{op:02x}")
        if self.metastack or len(self.stack) != 1 or self.frame not in (-1, self.pos):
            raise self.make_damage("it stops before its end")
        end, joblib = self.base + self.pos - self.first, (self.state_bytes, self.unpadded_arrays)
        return Pickled(self.stack[0], end, self.persistents, self.calls, self.repeated_keys, *joblib)

    def make_excess_damage(self) -> Damage:
        """Return the error for a pickle with too many opcodes, or with objects that take too much memory."""
        why = f"the pickle has more than {MAX_OPS:,} opcodes, or makes more than is kept"
        return Damage("unread-pickle", f"{why}; the rest was not read", self.base + self.op)

    def make_damage(self, why: str) -> Damage:
        """Return the error ``bad-pickle`` at the file offset of the current opcode."""
        return Damage("bad-pickle", f"the pickle is damaged: {why}", self.base + self.op)

    def charge(self, n: int) -> None:
        """Take ``n`` units of about 40 bytes from the budget of memory. Raise Damage if it is used up."""
        self.left -= n
        if self.left < 0:
            raise self.make_excess_damage()

    def decode_text(self, raw: bytes) -> str:
        """Decode a text from UTF-8, and charge its memory: in ASCII, a byte per character."""
        out = str(raw, "utf-8", "surrogatepass")
        self.charge(len(raw) // 32 + 2 if out.isascii() else len(raw) // 8 + 2)
        return out

    def read_bytes(self, n: int) -> bytes:
        """Return the next ``n`` bytes (over 1 MiB, the first 4096 as a ``Long``); note them in ``last``."""
        at, count = self.pos, n if n <= LONG else BEGINNING
        self.charge(count // 32 + 2)
        out = self.take(count) if n <= LONG else Long(self.take(count))
        self.pos = at + n
        self.last = (out, self.base + at, n)
        return out

    def charge_for(self, n: int, value: Any) -> Any:
        """Return ``value`` after its ``n`` units were taken from the budget of memory."""
        self.charge(n)
        return value

    def pop_values(self, n: int) -> list[Any]:
        """Remove the last ``n`` values from the stack and return them. Raise IndexError if it has fewer."""
        out = self.stack[-n:]
        if len(out) < n:
            raise IndexError
        del self.stack[-n:]
        return out

    def take(self, n: int) -> bytes:
        """Return the next ``n`` bytes. Raise NeedMore if they are not at hand."""
        at, end = self.pos, self.pos + n
        if n < 0:
            raise self.make_damage("a negative length")
        if end > len(self.data):
            raise NeedMore(end, self.base + self.op)
        self.pos = end
        return self.data[at:end]

    def read_uint(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    def read_line(self) -> bytes:
        """Return the next bytes up to a newline. Raise NeedMore if none is at hand."""
        end = self.data.find(b"\n", self.pos)
        if end < 0 and len(self.data) - self.pos > _MAX_LINE:
            raise self.make_excess_damage()
        if end < 0:
            raise NeedMore(len(self.data) + 1, self.base + self.op)
        self.charge((end - self.pos) // 32 + 1)
        out, self.pos = self.data[self.pos : end], end + 1
        return out

    def pop_mark(self) -> list[Any]:
        """Remove the last MARK and the values above it from the stack; return these values."""
        items, self.stack = self.stack, self.metastack.pop()
        return items

    def note_global(self, module: Any, name: Any) -> Global:
        """Return the global of this name, and note it in ``seen``. Raise Damage if it is not two texts."""
        if type(module) is not str or type(name) is not str:
            if Call in (type(module), type(name)):
                why = "the pickle names a global by what a call gives: it hides what it imports"
                raise Damage("unsafe-pickle", why, self.base + self.op)
            raise self.make_damage("a global's name is not a string")
        self.charge((len(module) + len(name)) // 32 + 8)
        out = Global(module, name)
        self.seen.setdefault(out, self.base + self.op)
        return out

    def reduce(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        """Return the plain value of calling ``func``, or a Call as its stub; note its name in ``called``."""
        if type(func) not in (Global, Call, Persistent) or type(args) is not tuple:
            raise self.make_damage("it calls something that cannot be called")
        if len(args) > _MANY:  # they are copied, and a stream may pass one tuple again and again
            self.charge(len(args))
        origin = self.find_origin(func)
        if type(func) is Global:
            if func in _NEWOBJ and args and type(args[0]) is Global:
                for base in args[1:2]:
                    if type(base) is Global:  # copyreg._reconstructor makes the object with this class
                        self.note_call(base, outright=True)
                func, args = args[0], args[1:]
                origin = func
                self.note_call(func, outright=False)
            else:
                self.note_call(func, outright=self.calls_outright(args))
            if func in _PLAIN and (value := self.make_plain(func, args)) is not _HOLE:
                return value
            if func in GETATTR and len(args) > 1:
                origin = self.find_attribute(args)
        else:
            self.called.setdefault(origin, self.base + self.op)
        self.charge(4)
        call = Call(func, args, kwargs, self.base + self.op, origin)
        self.calls.append(call)
        return call

    def calls_outright(self, args: tuple[Any, ...]) -> bool:
        """Return whether the current opcode calls a class, not only makes an object of it as NEWOBJ does."""
        return self.data[self.op] == _REDUCE or (bool(args) and self.data[self.op] in _INST_OBJ)

    def note_call(self, func: Global, *, outright: bool) -> None:
        """Note a global in ``called``; if ``outright``, also ``__init__`` of a class picklers only make."""
        self.called.setdefault(func, self.base + self.op)
        if outright and is_only_made(*func):
            self.called.setdefault(Global(func.module, f"{func.name}.__init__"), self.base + self.op)

    def make_plain(self, func: Global, args: tuple[Any, ...]) -> Any:
        """Return what a call of dict, set, Size or bytes gives; _HOLE if no pickler writes such arguments."""
        if func in _MAPPINGS:
            return self.make_mapping(func, args)
        if func in _SETS and len(args) <= 1 and all(type(a) is list for a in args):
            self.charge(sum(map(len, args)))
            return {make_key(v) for a in args for v in a}
        if func == _SIZE and len(args) == 1 and type(args[0]) is tuple:
            return args[0]
        if func in _BYTES and not args:  # protocol 2 has no other way to write b""
            return b""
        if func == _ENCODE and args:
            return self.encode(args[0], args[1:])
        return _HOLE

    def encode(self, text: Any, how: tuple[Any, ...]) -> Any:
        """Return the bytes that protocol 2 writes as ``_codecs.encode(text, "latin1")``; _HOLE for others."""
        if type(text) is Long:
            return text
        if how not in (("latin1",), ("latin-1",)) or type(text) is not str or len(text) > self.text:
            return _HOLE
        self.text -= len(text)
        return text.encode("latin-1")

    def find_origin(self, func: Global | Call | Persistent) -> Global:
        """Return the name by which a callable is reported: ``f()`` if a call of ``f`` gave it."""
        if type(func) is Global:
            return func
        if type(func) is Call:
            self.charge(len(func.named.name[:500]) // 32 + 8)
            f = func.named
            return f if func.func in GETATTR else Global(f.module, f"{f.name[:500].removesuffix('()')}()")
        pid = func.pid if type(func) is Persistent else None
        if type(pid) is tuple and len(pid) > 1 and type(pid[1]) is Global:
            return pid[1]  # torch.load answers with the class itself
        return Global("", "a persistent object")

    def find_attribute(self, args: tuple[Any, ...]) -> Global:
        """Return the name that getattr reaches; ``__getattribute__`` if it is computed or has a default."""
        owner = args[0].named if type(args[0]) is Call else args[0]
        owner = owner if type(owner) is Global else Global("builtins", "getattr")
        attribute = args[1] if type(args[1]) is str and len(args) == 2 else "__getattribute__"
        return self.note_global(owner.module, f"{owner.name[:500]}.{attribute[:500]}")

    def note_change(self, target: Call) -> None:
        """Note an object that getattr gave as called: to change an object is as grave as to call it."""
        if target.func in GETATTR:
            self.called.setdefault(target.named, self.base + self.op)

    def make_mapping(self, func: Global, args: tuple[Any, ...]) -> Dict:
        """Return the Dict for a call of OrderedDict, defaultdict or Counter, with the arguments' items."""
        self.charge(4)
        skip = 1 if func.name == "defaultdict" else 0  # its first argument makes missing values
        out = Dict(func, args[0] if skip and args else None)
        for a in args[skip : skip + 1]:
            self.charge(len(a) if isinstance(a, (list, dict)) else 0)
            if isinstance(a, dict):
                out.update(a)
            elif type(a) is list:  # Python 2 wrote the items as an argument: a list of pairs
                pairs = (p for p in a if type(p) in (list, tuple) and len(p) == 2)
                self.set_items(out, [v for p in pairs for v in p])
        return out

    def make_persistent(self, pid: Any) -> Persistent:
        """Return a reference to the object with this persistent id, and note it in ``persistents``."""
        self.charge(3)
        self.persistents.append(Persistent(pid, self.base + self.op))
        return self.persistents[-1]

    def append_items(self, items: list[Any]) -> None:
        """Add items to the list or set on top of the stack, or to the Call that stands for one."""
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif type(target) is set:
            self.add_members(target, items)
        elif type(target) is Call:  # a deque, a list's subclass …
            self.note_change(target)
            target.items = target.items or []
            target.items.extend(items)
        else:
            raise self.make_damage("it appends to something that is not a list")

    def add_members(self, target: set[Any], items: list[Any]) -> set[Any]:
        """Add ``items`` to a set as safe keys (``make_key``), and return the set."""
        self.charge(2 * len(items))
        target.update(map(make_key, items))
        return target

    def set_items(self, target: Any, items: list[Any]) -> Any:
        """Put ``items``, keys and values by turns, into a dict or the Call that stands for one; return it."""
        entries = target
        if type(target) is Call:
            self.note_change(target)
            entries = target.entries = target.entries or {}
        if not isinstance(entries, dict) or len(items) % 2:
            raise self.make_damage("it sets an item of something that is not a dict")
        self.charge(len(items))
        for i in range(0, len(items), 2):
            k = items[i]
            if type(k) is not str:
                self.charge(4)
            elif k in entries and len(self.repeated_keys) < _MANY:
                self.repeated_keys.append((k[:200], self.base + self.op))
            entries[k if type(k) is str else make_key(k)] = items[i + 1]
        return target

    def build(self) -> None:
        """Give the Call or Dict on the stack its state; note bytes at its end in ``state_bytes``."""
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) not in (Call, Dict):
            raise self.make_damage("it gives a state to a plain value")
        if type(target) is Call:
            self.note_change(target)
            if type(state) is tuple and state and state[-1] is self.last[0]:
                self.charge(2)
                self.state_bytes.append(StateBytes(target, *self.last[1:]))
        target.state = state

    def read_proto(self) -> None:
        """Raise Damage unless the number behind PROTO is at most 5 and the pickle begins with it."""
        if self.read_uint(1) > 5 or self.op != self.start:
            raise self.make_damage("an unknown protocol")

    def open_frame(self) -> None:
        """Read the length of a frame, and note where the frame ends. Raise Damage if it is too long."""
        n = self.read_uint(8)
        if self.frame >= 0 or n > LIMIT:
            raise self.make_damage("a frame inside a frame")
        self.frame = self.pos + n


Step = Callable[[Machine], object]
