"""Reads and judges pickles of a file: the shared first step of every format that holds a pickle."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import HEAD, Anatomy, Damage, structure
from ckpt_tools.formats.pickles.globals import (
    FOLLOWED,
    Usage,
    calls_arguments,
    is_worse_if_passed,
    judge_names,
    to_python3,
)
from ckpt_tools.formats.pickles.machine import BUILTINS, GETATTR
from ckpt_tools.formats.pickles.reader import WINDOW, read_from, read_pickle
from ckpt_tools.formats.pickles.stubs import Call, Dict, Global, Key, Long, NeedMore, Offsets, Pickled
from ckpt_tools.formats.torch.tensors import LOAD_FROM_BYTES, is_proto, legacy_magic
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Level
from ckpt_tools.storage import BytesSource, Source

_FIRST = 64 * 1024
_MANY = 32
_HOLDING = (dict, tuple, list, set, frozenset, Call, Key)
_VALUES = 500_000
"""The most containers that are searched for names; if there are more, every name counts as an argument."""
RUNS = frozenset({"unsafe-pickle", "unread-pickle", "suspect-call"})
"""Finding codes that are passed on from a pickle inside a file of another format."""
_BUFFERS = frozenset({Global("_io", "BytesIO"), Global("io", "BytesIO")})
_DEEP, _BUFFERED = 3, 16 << 20
"""Limits on files in BytesIO: levels of one inside another, and bytes of all files in one pickle."""
_LEGACY = 5  # pickles of a legacy torch file
_RANGES = frozenset((module, name) for module in BUILTINS for name in ("range", "xrange"))
_FILLED_TYPES = ("bytes", "bytearray", "list", "tuple", "set", "frozenset")
_FILLED = {("collections", "deque"), *((module, name) for module in BUILTINS for name in _FILLED_TYPES)}
"""Types whose call makes as many bytes or items as its argument, a number or a range, says."""


def read_judged(
    source: Source,
    start: int,
    stop: int,
    anatomy: Anatomy,
    *,
    whole: bool = False,
    harmless: tuple[str, ...] = (),
    first: int = _FIRST,
    arrays: bool = False,
) -> Generator[Finding, None, Pickled]:
    """Read the pickle between ``start`` and ``stop`` of a file and judge its names; of a damaged one, the
    names before the damage. The first read has ``first`` bytes, or a WINDOW if ``whole``; ``arrays``: see
    ``read_from``. Names that begin with ``harmless`` are not judged. Add names to ``anatomy``. Raise Damage.
    """
    names = _Names()
    head = source.read(start, min(stop - start, WINDOW if whole else first))
    try:
        pickled = read_from(source, start, stop, head, names.seen, called=names.called, arrays=arrays)
    except Damage as e:
        yield from _judge(names.list_usages(head), anatomy, harmless)
        if isinstance(e, NeedMore) and stop == source.size:
            raise Damage("truncated", "the file ends before its pickle does", stop) from None
        raise
    for name, at in pickled.repeated_keys:
        why = f"the pickle gives one dict the key {name!r} twice; the later value wins"
        yield finding("duplicate-key", why, offset=at)
    found = names.list_usages(head, pickled)
    yield from _judge_nested(pickled, found, 3)
    yield from _judge_buffered(pickled, anatomy)
    yield from _judge(found, anatomy, harmless)
    yield from _find_bombs(pickled, source.size)
    protocol = head[1] if head[:1] == b"\x80" else 0
    return pickled._replace(end=start + pickled.end, protocol=protocol)


def judge_without_joblib(source: Source) -> Iterator[Finding]:
    """Yield ``unsafe-pickle`` for names that an unpickler finds which takes joblib's arrays for opcodes."""
    names = _Names()
    head = source.read(0, min(source.size, _FIRST))
    with suppress(Damage):
        read_from(source, 0, source.size, head, names.seen, called=names.called)
    found = judge_names(names.list_usages(head), [])
    yield from (f for f in found if f.code == "unsafe-pickle")


class _Names:
    """The globals that one pickle names (``seen``) and calls (``called``), with their first file offsets."""

    def __init__(self) -> None:
        self.seen: Offsets = {}
        self.called: Offsets = {}

    def list_usages(self, data: bytes, pickled: Pickled | None = None, at: int | None = None) -> list[Usage]:
        """Return a Usage for each global of a pickle that begins with ``data``. Callbacks are only found with
        ``pickled``, its content; ``at`` replaces offsets that would mislead.
        """
        protocol = data[1] if data[:1] == b"\x80" and len(data) > 1 else 0
        passed = set[Global]() if pickled is None else self._find_callbacks(pickled, protocol)
        offsets = {**self.called, **self.seen}
        offsets = offsets if at is None else dict.fromkeys(offsets, at)
        return [
            Usage(to_python3(g, protocol), o, g in self.called, g in passed, g if g in self.seen else None)
            for g, o in offsets.items()
        ]

    def _find_callbacks(self, pickled: Pickled, protocol: int) -> set[Global]:
        """Return the names that other code may call: arguments of functions that call their arguments, and
        FOLLOWED names (getattr) among the arguments of any call or in the value.
        """
        names = {g: to_python3(g, protocol) for g in (*self.seen, *self.called)}
        followed = {g for g, name in names.items() if name in FOLLOWED}
        if not followed and not any(is_worse_if_passed(name, g in self.called) for g, name in names.items()):
            return set()
        callers = {g for g in self.called if calls_arguments(str(names[g]))}
        found = _find_arguments([c for c in pickled.calls if c.named in callers]) if callers else set()
        if found is None:
            return {*self.seen, *self.called}
        arguments = _find_arguments([*pickled.calls, pickled.value]) if followed else None
        return found | (followed & (arguments or set()))


def _find_arguments(values: list[Any]) -> set[Global] | None:
    """Return the globals at any depth in calls and plain values; None if over 500,000 containers."""
    found, visited = set[Global](), set[int]()
    while values:
        value = values.pop()
        if type(value) is Global:
            found.add(value)
        elif isinstance(value, _HOLDING) and id(value) not in visited:
            visited.add(id(value))
            if isinstance(value, dict):
                values += (*value.keys(), *value.values())
                values += (value.factory, value.state) if isinstance(value, Dict) else ()
            elif isinstance(value, Call):
                values += (value.named if value.func in GETATTR else None, value.args, value.kwargs)
                values += (value.state, value.items, value.entries)
            else:
                values += (value.value,) if isinstance(value, Key) else value
        if len(visited) > _VALUES:
            return None
    return found


def _judge(names: list[Usage], anatomy: Anatomy, harmless: tuple[str, ...]) -> Iterator[Finding]:
    """Yield the findings for names, and add the names to ``anatomy``; ``harmless``: prefixes of modules."""
    listed = set(anatomy.globals)
    spellings = (f"{g.module[:256]} {g.name[:256]}" for g in (n.spelling for n in names) if g is not None)
    anatomy.globals.extend(text for text in dict.fromkeys(spellings) if text not in listed)
    yield from judge_names((n for n in names if not n.name.module.startswith(harmless)), anatomy.unlisted)


def _find_bombs(pickled: Pickled, size: int) -> Iterator[Finding]:
    """Yield a warning for the first call that makes more bytes or items than the file has: ``bytearray(2 **
    40)``, ``list(range(2 ** 40))``. Picklers write the contents of both (copyreg, Objects/bytearrayobject.c).
    """
    for call in pickled.calls:
        first = call.args[0] if call.func in _FILLED and call.args else None
        count = first if type(first) is int else 0
        if type(first) is Call and first.func in _RANGES and all(type(a) is int for a in first.args):
            with suppress(TypeError, ValueError):
                numbers = range(*first.args)
                count = max(0, (numbers.stop - numbers.start) // numbers.step)
        if count > size:
            text = f"it makes {count:,} bytes or items of nothing, which no pickler writes: loading it"
            text, hint = f"{text} may take all memory", "find out who wrote it before anything loads it"
            yield finding("bad-pickle", text, offset=call.offset, severity=Severity.WARNING, hint=hint)
            return


def _judge_nested(pickled: Pickled, names: list[Usage], depth: int) -> Iterator[Finding]:
    """Judge files in arguments of ``_load_from_bytes``, up to ``depth`` levels; add to ``names``."""
    calls = [c for c in pickled.calls if c.func == LOAD_FROM_BYTES]
    odd = next((c for c in calls if not _has_legacy_argument(c)), None)
    if odd is not None:
        why = "the pickle hands torch.load something else than a legacy torch file"
        yield finding("unsafe-pickle", why, offset=odd.offset)
    # each bytes object once: a stream may use one in many calls
    hidden = list({id(c.args[0]): c for c in calls if c.args and isinstance(c.args[0], bytes)}.values())
    most = _MANY if depth else 0
    for call in hidden[:most]:
        for p in _read_legacy(call.args[0], names, call.offset):
            if isinstance(p, Finding):
                yield p
            else:
                yield from _judge_nested(p, names, depth - 1)
    if len(hidden) > most:
        why = "the pickle hides more files for torch.load than are looked into"
        yield finding("unread-pickle", why, offset=hidden[-1].offset)


def _judge_buffered(pickled: Pickled, anatomy: Anatomy) -> Iterator[Finding]:
    """Judge files in BytesIO, which frameworks unpickle in turn (Transformer Engine's ``_extra_state``)."""
    left = _BUFFERED
    for call in (c for c in pickled.calls if c.named in _BUFFERS):
        state = call.state if type(call.state) is tuple and call.state else call.args
        data = state[0] if state else None
        if not isinstance(data, bytes) or not (is_proto(data) or data.startswith(b"PK\3\4")):
            continue
        left -= len(data)
        if type(data) is Long or anatomy.depth >= _DEEP or left < 0:
            why = "the pickle holds files in BytesIO that are larger, or deeper inside, than is looked into"
            yield finding("unread-pickle", why, offset=call.offset)
            return
        yield from _judge_inner(data, anatomy, call.offset)


def _judge_inner(data: bytes, anatomy: Anatomy, offset: int) -> Iterator[Finding]:
    """Yield the findings about code of a file inside a pickle; add the names in it to ``anatomy``."""
    from ckpt_tools.formats import format_of  # not at the top: the formats import this module

    inner = Anatomy(depth=anatomy.depth + 1)
    zipped, legacy = data.startswith(b"PK\3\4"), legacy_magic(data[:HEAD])
    fmt = format_of("torch_zip" if zipped else "torch_legacy" if legacy else "pickle_plain")
    for f in structure(BytesSource(data), inner, fmt.checks[Level.STRUCTURE]):
        if f.code in RUNS:
            yield replace(f, offset=offset)
    anatomy.named(inner)


def _has_legacy_argument(call: Call) -> bool:
    """Return whether the first argument of a call is the bytes of a file in torch's legacy format."""
    return bool(call.args) and isinstance(call.args[0], bytes) and legacy_magic(call.args[0][:HEAD])


def _read_legacy(data: bytes, names: list[Usage], offset: int) -> Iterable[Pickled | Finding]:
    """Yield the five pickles of a legacy file, or a Finding; add all names before any damage."""
    at = 0
    for _ in range(_LEGACY):
        found = _Names()
        try:
            pickled = read_pickle(data, at, seen=found.seen, called=found.called)
        except Damage as e:
            names += found.list_usages(data[at : at + 2], None, offset)
            if e.finding.code == "unread-pickle":
                yield replace(e.finding, offset=offset)
            elif type(data) is Long and isinstance(e, NeedMore):
                why = "the pickle hides a file whose pickles are longer than what is read of it"
                yield finding("unread-pickle", why, offset=offset)
            return
        names += found.list_usages(data[at : at + 2], pickled, offset)
        yield pickled
        at = pickled.end
