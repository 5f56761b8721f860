"""The map of a ``.metadata``'s bytes: which of its opcodes, names and numbers something else contradicts when
one bit of them changes.

The pickle is walked once more, opcode by opcode, as pickletools does (CPython, Lib/pickletools.py). Whatever
the walk does not know counts as unprotected to the end of the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.formats.dcp.metadata import ATTRIBUTES, CLASSES, LAYOUTS
from ckpt_tools.formats.torch.tensors import ITEMSIZE
from ckpt_tools.model.report import Guard

_FIXED = {0x80: 1, 0x95: 8, 0x68: 1, 0x6A: 4, 0x4B: 1, 0x4D: 2, 0x4A: 4}
"""PROTO, FRAME, BINGET, LONG_BINGET, BININT1, BININT2 and BININT: bytes of the argument."""
_COUNTED = {0x8C: 1, 0x58: 4, 0x8A: 1}
"""SHORT_BINUNICODE, BINUNICODE and LONG1: that many bytes tell how long the argument is."""
_BARE = frozenset(b"\x94\x93)\x81}](Rb\x85\x86\x87tusaeN\x88\x89.")
_TEXT, _INT, _GET = (0x8C, 0x58), (0x4B, 0x4D, 0x4A, 0x8A), (0x68, 0x6A)
_GLOBAL, _MEMOIZE, _FRAME, _PROTO, _BOOLS = 0x93, 0x94, 0x95, 0x80, (0x88, 0x89)
_KINDS = {0x8C: "text", 0x58: "text", 0x93: "global", 0x7D: "dict", 0x5D: "list"} | dict.fromkeys(
    b"\x85\x86\x87tR\x81", "value"
)
_WHAT = "pickle of the state_dict's entries and their places"
_DEPRECATED = "deprecated property of a tensor"
_TARGET = 64 * 1024
MAX_SPOTS = 1 << 16
"""Unprotected ranges that are told apart; what follows them is one."""
_FIRM = (
    {w for n, modules in CLASSES.items() for w in (n, *modules)}
    | {w for names in ATTRIBUTES.values() for w in names}
    | {f"torch.{n}" for n in LAYOUTS}
    | {"torch", "Size", "torch.serialization", "_get_layout", "1.0.0", "stream.zstd/1"}
    | {d for d in ITEMSIZE if not d.startswith(("int", "uint")) or d.endswith(("8", "16", "32", "64"))}
)
"""Names whose every flipped bit is noticed: the flipped one is unknown. Not so int1 and int3."""


class Op(NamedTuple):
    """One opcode of a pickle: where it begins and ends, and its argument as written."""

    at: int
    code: int
    arg: bytes
    end: int

    @property
    def text(self) -> str:
        return self.arg.decode("utf-8", "replace")


def read_ops(data: bytes) -> Iterator[Op]:
    """The opcodes of a pickle of protocol 4 or 5 as far as they are those that a .metadata has."""
    at = 0
    while at < len(data):
        code, start = data[at], at + 1
        if code in _COUNTED:
            n = _COUNTED[code]
            start, length = start + n, int.from_bytes(data[start : start + n], "little")
        elif code in _FIXED or code in _BARE:
            length = _FIXED.get(code, 0)
        else:
            return
        yield Op(at, code, data[start : start + length], start + length)
        at = start + length


def explain(
    data: bytes, anatomy: Anatomy, names: Collection[str], extra: Collection[str], *, sizes: bool
) -> None:
    """Explain the bytes of a good .metadata.

    ``names`` are texts that other texts in the file repeat, ``extra`` the attributes that other programs
    added (nothing is known about them); ``sizes`` says that shapes and offsets are compared with the data
    files and with each other.
    """
    walk = _Walk(names, sizes)
    at, end, left = 0, 0, MAX_SPOTS
    rest = "what another program added, or wrote in another way"
    for op in read_ops(data):
        if op.code in _TEXT and op.text in extra:
            break
        why, start = walk.find_weak(op)
        if why:
            anatomy.explain(at, start - at, _WHAT)
            anatomy.explain(start, op.end - start, why, Guard.UNPROTECTED)
            at, left = op.end, left - 1
            if not left:
                rest = "a pickle of more unprotected places than are told apart"
                break
        end = op.end
    else:
        anatomy.explain(at, end - at, _WHAT)
        at = end
    anatomy.explain(at, len(data) - at, rest, Guard.UNPROTECTED)


class _Walk:
    """Goes through the opcodes and keeps what the next ones need."""

    def __init__(self, names: Collection[str], sizes: bool) -> None:
        self._names, self._sizes = {*names, *_FIRM}, sizes
        self._memo: list[tuple[str, str]] = []  # what was stored: one of _KINDS, and its text or name
        self._last = 0  # the opcode before this one
        self._text = ""  # the last text: the key of what follows
        self._global = ""  # the last global

    def find_weak(self, op: Op) -> tuple[str, int]:
        """Why bytes of an opcode may change unseen, "" where none may, and where they begin."""
        why, start = "", op.end - len(op.arg)
        if op.code in _TEXT:
            self._text = op.text
            if self._text not in self._names:
                # Its length as well: what is left of the text may happen to be opcodes.
                why, start = "text that is stored once: a name, an id, the path of the save", op.at
        elif op.code == _GLOBAL:
            self._global, self._text = self._text, ""
        elif op.code == _MEMOIZE:
            text = self._global if self._last == _GLOBAL else self._text
            self._memo.append((_KINDS.get(self._last, ""), text))
        elif op.code in _GET:
            why = self._follow(op)
        elif op.code in _INT:
            why = self._weigh_number()
        elif op.code in _BOOLS:
            why, start = _DEPRECATED, op.at
        elif op.code == _PROTO:
            why = "protocol: 4 and 5 do not differ here"
        elif op.code == _FRAME and (op.at != 2 or int.from_bytes(op.arg, "little") >= _TARGET):
            why = "length of a frame"
        self._last = op.code
        return why, start

    def _follow(self, op: Op) -> str:
        """What is weak about a reference to what was stored before."""
        index = int.from_bytes(op.arg, "little")
        kind, text = self._memo[index] if index < len(self._memo) else ("", "")
        if kind == "global":
            self._global = text
        self._text = text if kind == "text" else ""
        others = (index ^ 1 << bit for bit in range(8 * len(op.arg)))
        if any(other < len(self._memo) and self._memo[other][0] == kind for other in others):
            return "reference to a value stored before: one that leads to an equal value is not noticed"
        return ""

    def _weigh_number(self) -> str:
        if self._global.endswith("MEM_FORMAT_ENCODING"):
            return _DEPRECATED
        firm = self._sizes or self._text in ("offset", "length", "index")
        return "" if firm else "shape or offset: only what lies outside of its tensor is noticed"
