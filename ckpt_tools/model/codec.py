"""Values of this package <-> what JSON can hold, by the types that their fields declare.

A record is the list of its fields. Nothing is decoded but what those types allow, whoever wrote it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
_AS_IT_IS = frozenset({str, float, bool, NoneType})
_NOTHING: Mapping[str, Any] = {}
_DECIMAL_BITS = 1024
"""Integers beyond that are hexadecimal: Python refuses decimals of thousands of digits."""


def encode(value: object) -> Any:
    """A value as lists, objects, numbers and texts. Raises TypeError where it is none of ours."""
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if isinstance(value, int) and kind is int:
        return {"hex": hex(value)} if value.bit_length() > _DECIMAL_BITS else value
    if isinstance(value, Enum):
        return value.value
    if names := getattr(kind, "__match_args__", None):
        return _listed([getattr(value, name) for name in names])
    if isinstance(value, tuple):
        return _listed(value)
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    if isinstance(value, (int, float, str)):  # of a class of its own
        return value
    raise TypeError(f"{value!r} is no plain value")


def _listed(values: Iterable[object]) -> list[Any]:
    return [x if type(x) in _AS_IT_IS else encode(x) for x in values]


def decode(kind: type[T], data: object) -> T:
    """The reverse. Raises TypeError or ValueError for what no value of that type is encoded as."""
    read: Callable[[object], T] = _decoder(kind)  # type: ignore[arg-type]  # classes are hashable
    return read(data)


def encode_object(record: Any) -> dict[str, Any]:
    """A record as an object: its fields by name."""
    return dict(zip(type(record).__match_args__, encode(record), strict=True))


def decode_object(kind: type[T], data: Mapping[str, Any]) -> T:
    """The reverse, of an object that has every field. Raises as ``decode`` does."""
    return decode(kind, [data[name] for name in kind.__match_args__])  # type: ignore[attr-defined]


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is tuple and inside[1:] == (...,):
        item = _decoder(inside[0])
        return lambda data: tuple(map(item, _exactly(list, data)))
    if origin is tuple:
        return _row(lambda *items: items, inside)
    if origin is Mapping:
        item = _decoder(inside[1])
        return lambda data: {_once(k): item(v) for k, v in _exactly(dict, data).items()} or _NOTHING
    if isinstance(kind, type) and issubclass(kind, Enum):
        stored = type(next(iter(kind)).value)
        return lambda data: kind(_exactly(stored, data))
    if names := getattr(kind, "__match_args__", ()):
        hints = get_type_hints(kind)
        return _row(kind, [hints[name] for name in names])
    return _scalar(inside or (kind,))


def _row(make: Callable[..., Any], kinds: Iterable[Any]) -> Callable[[Any], Any]:
    items = tuple(map(_decoder, kinds))
    return lambda data: make(*[read(x) for read, x in zip(items, _exactly(list, data), strict=True)])


def _scalar(members: tuple[type, ...]) -> Callable[[Any], Any]:
    kinds = {*members, int} if float in members else {*members}  # JSON may write 1.0 as 1

    def read(data: Any) -> Any:
        if type(data) in kinds:
            return _once(data)
        if int in members:
            return int(_exactly(dict, data)["hex"], 16)
        raise TypeError(f"it is {type(data).__name__}")

    return read


def _once(value: Any) -> Any:
    """The same, a text as the one that is in memory already: reports on 100,000 files say the same words."""
    return sys.intern(value) if type(value) is str else value


def _exactly(kind: type[T], data: object) -> T:
    """The same, where it is of that very type: True is no integer here. Raises TypeError for others."""
    if type(data) is not kind:
        raise TypeError(f"it is {type(data).__name__}, not {kind.__name__}")
    return data
