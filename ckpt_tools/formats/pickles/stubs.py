"""The stubs that our pickle machine puts in place of all that it does not build: globals, calls, persistent
references, unhashable keys.

Also the findings and questions about names in no list, and how ``--trust global=PATTERN`` lifts them. Pure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from shlex import quote
from typing import Any, NamedTuple

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.model.finding import Finding, Verdict, worst
from ckpt_tools.model.report import Report, Unlisted


class Global(NamedTuple):
    """A name that an unpickler would import, as the pickle spells it: names of Python 2 as they are."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


Offsets = dict[Global, int]
"""Globals, each with the file offset of its first use."""


class Call:
    """The object that an unpickler would build by calling ``func`` at ``offset``; ``named`` is the name for
    ``func`` in reports. APPENDS fill ``items``, SETITEMS ``entries``, BUILD ``state``. Equal by identity.
    """

    __slots__ = ("args", "entries", "func", "items", "kwargs", "named", "offset", "state")

    def __init__(
        self, func: object, args: tuple[Any, ...], kwargs: object, offset: int, named: Global
    ) -> None:
        self.func, self.args, self.kwargs, self.offset, self.named = func, args, kwargs, offset, named
        self.state: Any = None
        self.items: list[Any] | None = None
        self.entries: dict[Any, Any] | None = None


class Dict(dict[Any, Any]):
    """An OrderedDict, defaultdict or Counter: a dict with its class (``func``), the state that BUILD gave it
    (``_metadata`` of a state_dict), and the ``factory`` that a defaultdict calls for a missing key.
    """

    __slots__ = ("factory", "func", "state")

    def __init__(self, func: Global, factory: Any = None) -> None:
        super().__init__()
        self.func, self.factory = func, factory
        self.state: Any = None


class Persistent:
    """A reference by persistent id; in torch files ``meaning`` is the storage that it refers to."""

    __slots__ = ("meaning", "offset", "pid")

    def __init__(self, pid: Any, offset: int) -> None:
        self.pid, self.offset = pid, offset
        self.meaning: Any = None


class Key:
    """A stub for a dict key or set member whose hash or search could take for ever. Equal by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


_SALT = os.urandom(8).hex()


def salt_number(value: float) -> str:
    """Return a number as a text whose hash no stream can foresee: keys with one hash are slow to search."""
    return f"{_SALT}{value!r}"


class Number(Key):
    """A number as a dict key: equal to the same number, at a place in the dict that no stream can choose."""

    __slots__ = ("mark",)

    def __init__(self, value: float) -> None:
        super().__init__(value)
        self.mark = salt_number(value)

    def __hash__(self) -> int:
        return hash(self.mark)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self.mark == other.mark


class Long(bytes):
    """The first bytes of a long text or bytes object, whose other bytes were not read."""


class NeedMore(Damage):
    """Raised if the bytes at hand end within an opcode, which needs the first ``upto`` bytes of ``data``."""

    def __init__(self, upto: int, offset: int) -> None:
        super().__init__("bad-pickle", "the pickle is cut off: its bytes end before its STOP", offset)
        self.upto = upto


class Nested(Exception):
    """Raised where another pickle, with a memo of its own, begins inside the pickle that a machine reads."""


class StateBytes(NamedTuple):
    """The bytes in the state of an object, such as an array's elements, and where they lie in the file."""

    call: Call
    offset: int
    nbytes: int


class Pickled(NamedTuple):
    """One pickle, which ends before byte ``end``: its value, and the stubs that were made for it."""

    value: Any
    end: int
    persistents: list[Persistent]
    calls: list[Call]
    repeated_keys: Sequence[tuple[str, int]] = ()
    """The first few keys that one dict is given twice, with the offset of the second time."""
    state_bytes: Sequence[StateBytes] = ()
    unpadded_arrays: int = 0
    """How many arrays of joblib have no padding: other unpicklers take their bytes for opcodes."""
    protocol: int = 0


_MOST = 8  # findings for one name each
_FLAG = "--trust global="
_PUBLIC = frozenset({"torch", "numpy", *sys.stdlib_module_names})
"""Packages that are nobody's own."""


def list_first(names: Sequence[str], count: int = 0) -> str:
    """Return the first four names as a text, and how many more there are, of ``count`` if that is larger."""
    more = max(count, len(names)) - 4
    return ", ".join(names[:4]) + (f" and {more} more" if more > 0 else "")


def report_suspects(called: Sequence[Unlisted]) -> Iterator[Finding]:
    """Yield ``suspect-call`` for names in no list that a pickle calls."""
    for u in called[:_MOST]:
        why = f"loading the pickle calls {u.name[:120]}, which ckpt does not know"
        yield finding("suspect-call", why, offset=u.offset)
    if len(called) > _MOST:
        why = f"loading the pickle calls {len(called) - _MOST:,} more that ckpt does not know"
        yield finding("suspect-call", why, offset=called[_MOST].offset)


def _report_strangers(names: Sequence[Unlisted]) -> Iterator[Finding]:
    """Yield ``unknown-global`` for names in no list, in a file that is unpickled without asking."""
    for u in names[:_MOST]:
        how = "calls" if u.called else "imports"
        why = f"loading the pickle {how} {u.name[:120]}, which ckpt does not know, and its framework"
        yield finding("unknown-global", f"{why} loads it without asking", offset=u.offset, hint=_advise([u]))
    if len(names) > _MOST:
        why = f"{len(names) - _MOST:,} more that ckpt does not know"
        yield finding("unknown-global", why, offset=names[_MOST].offset)


def lift_trusted(report: Report, trusted: Sequence[str], unasked: bool) -> Report:
    """Return the report without the warnings about names that ``trusted`` patterns match; errors stay. If the
    framework loads the file ``unasked``, each other name in no list is a question.
    """
    if not report.unlisted or not (trusted or unasked):
        return report
    names = [u for u in report.unlisted if not any(fnmatchcase(u.name, p) for p in trusted)]
    others = [f for f in report.findings if f.code not in ("suspect-call", "unknown-global")]
    called = [u for u in names if u.called]
    findings = (*others, *(_report_strangers(names) if unasked else report_suspects(called)))
    verdict = Verdict.UNKNOWN if report.verdict is Verdict.UNKNOWN else worst(findings)
    return replace(report, findings=findings, verdict=verdict, unlisted=tuple(names))


def to_pattern(name: str) -> str:
    """Return the pattern for all names of a name's package, or the name itself if it has no package."""
    package = name.partition(".")[0]
    return f"{package}.*" if package.isidentifier() and package != name else name


def _advise(names: Sequence[Unlisted]) -> str:
    """Return the hint about names in no list: to trust them, or, of a public package, to restore the file."""
    if any(u.name.partition(".")[0] in _PUBLIC for u in names):
        again = (
            "restore the file from a copy; of a framework newer than ckpt see 'ckpt explain unknown-global'"
        )
        return f"a flipped bit makes such a name: {again}"
    flags = " ".join(f"{_FLAG}{quote(p)}" for p in list(dict.fromkeys(to_pattern(u.name) for u in names))[:4])
    return f"if that is your own code, add {flags}; if not, do not load the file"


def ask_about(path: str, names: Sequence[Unlisted]) -> tuple[str, str]:
    """Return the question about a file whose framework would load names in no list: text and hint."""
    first = list_first([u.name[:120] for u in names])
    text = f"{path} names {first}, which ckpt does not know; its framework unpickles the file without asking,"
    return f"{text} and runs what it names", _advise(names)
