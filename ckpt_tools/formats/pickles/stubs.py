"""What our pickle machine puts in place of everything that it does not build: globals, calls, persistent
references, unhashable keys.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ckpt_tools.formats.common.format import Damage


class Global(NamedTuple):
    """A name that an unpickler would import, as it is written: those of Python 2 stay."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Call:
    """What an unpickler would build by calling ``func`` at ``offset``, which comes from the global ``named``;
    APPENDS fill ``items``, SETITEMS ``entries``, BUILD ``state``. Equal by identity.
    """

    __slots__ = ("args", "entries", "func", "items", "kwargs", "named", "offset", "state")

    def __init__(
        self,
        func: object,
        args: tuple[Any, ...],
        kwargs: object = None,
        offset: int = 0,
        named: Global = Global("", ""),  # noqa: B008
    ) -> None:
        self.func, self.args, self.kwargs, self.offset, self.named = func, args, kwargs, offset, named
        self.state: Any = None
        self.items: list[Any] | None = None
        self.entries: dict[Any, Any] | None = None


class Dict(dict[Any, Any]):
    """An OrderedDict, defaultdict or Counter: a dict that remembers its class and what BUILD gave it
    (``_metadata`` of a state_dict), and of a defaultdict what it calls for a missing key.
    """

    __slots__ = ("factory", "func", "state")

    def __init__(self, func: Global, factory: Any = None) -> None:
        super().__init__()
        self.func, self.factory = func, factory
        self.state: Any = None


class Persistent:
    """A reference by persistent id, in torch files to a storage: its ``meaning``."""

    __slots__ = ("meaning", "offset", "pid")

    def __init__(self, pid: Any, offset: int) -> None:
        self.pid, self.offset = pid, offset
        self.meaning: Any = None


class Key:
    """A dict key or set member that must not be hashed by value, which can take for ever."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


_SALT = os.urandom(8).hex()


def salted(value: float) -> str:
    """A number as a text that no stream can foresee: many numbers of one hash are slow to search."""
    return f"{_SALT}{value!r}"


class Number(Key):
    """A number as a dict key: as equal as its value, at a place in the dict that the stream cannot choose."""

    __slots__ = ("mark",)

    def __init__(self, value: float) -> None:
        super().__init__(value)
        self.mark = salted(value)

    def __hash__(self) -> int:
        return hash(self.mark)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self.mark == other.mark


class Long(bytes):
    """The beginning of a long text or of many bytes; the rest was passed over."""


class NeedMore(Damage):
    """The bytes at hand end before the pickle: its next opcode needs ``upto`` bytes of data."""

    def __init__(self, upto: int, offset: int) -> None:
        super().__init__("bad-pickle", "the pickle is cut off: its bytes end before its STOP", offset)
        self.upto = upto


class Nested(Exception):
    """Where the machine stands, another pickle begins, which has a memo of its own."""


class Filled(NamedTuple):
    """An object that was given bytes, as an array is given its elements, and where in the file they lie."""

    call: Call
    offset: int
    nbytes: int


class Pickled(NamedTuple):
    """One pickle, which ends before byte ``end``, and the stubs that it made."""

    value: Any
    end: int
    persistents: list[Persistent]
    calls: list[Call]
    twice: Sequence[tuple[str, int]] = ()
    """Keys that one dict was given twice, with the offset of the second time: the first few."""
    filled: Sequence[Filled] = ()
    bare: int = 0
    """Arrays of joblib without a padding before them: another unpickler takes their bytes for opcodes."""
    protocol: int = 0
