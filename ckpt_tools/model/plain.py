"""What is sent to other machines, as numbers, texts, bytes, None and tuples of these: nothing else comes out
of the other side than what this package's own names make of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

_BARE = (int, str, bytes, type(None))
_GATHERED: dict[str, type] = {t.__name__: t for t in (tuple, list, set, frozenset)}


def encode(value: object) -> Any:
    """A value as plain data. Raises TypeError when it cannot be one: an open file, a function within a
    function, a value that does not say that it may be ``SENT`` (it may hold a key).
    """
    kind = type(value)
    if kind in _BARE:
        return value
    if kind in _ENCODED:
        return (kind.__name__, *_ENCODED[kind](value))
    if value is hashlib.sha256:
        return "hashlib", "sha256"
    if kind.__module__.startswith("ckpt_tools.") and "__reduce__" in kind.__dict__:
        known = kind.__dict__["__reduce__"](value)
        if isinstance(known, str):  # a constant, by its name in its module
            return "named", kind.__module__, known
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ("record", *_name(kind), *_all(value))
    if getattr(value, "SENT", False) and not isinstance(value, type):
        names: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]
        return ("record", *_name(kind), *(encode(getattr(value, name)) for name in names))
    return "named", *_name(value)


def _all(values: Iterable[object]) -> Iterator[Any]:
    # not all by encode: an index may say thousands of things about a file
    return (x if type(x) in _BARE else encode(x) for x in values)


def _sorted(values: Iterable[object]) -> Iterable[Any]:
    return sorted(map(encode, values), key=repr)  # the same on every machine


_ENCODED: dict[type, Callable[[Any], Iterable[Any]]] = {
    **dict.fromkeys((bool, float), lambda value: [str(value)]),
    **dict.fromkeys((tuple, list), _all),
    **dict.fromkeys((set, frozenset), _sorted),
    dict: lambda value: _all(x for pair in value.items() for x in pair),
    partial: lambda value: _all((value.func, value.args, value.keywords)),
}


def decode(data: Any) -> Any:
    """The reverse. Names are looked up in this package and in hashlib alone. Raises TypeError for anything
    else.
    """
    if type(data) in _BARE:
        return data
    kind, *rest = data
    if kind == "record":
        maker = _found(*rest[:2])
        if not isinstance(maker, type) or not (getattr(maker, "SENT", False) or issubclass(maker, tuple)):
            raise TypeError(f"{maker!r} is no record")
        return maker(*(x if type(x) in _BARE else decode(x) for x in rest[2:]))
    if kind == "bool":
        return rest[0] == "True"
    if kind == "float":
        return float(rest[0])
    if kind in _GATHERED:
        return _GATHERED[kind](map(decode, rest))
    if kind == "dict":
        items = list(map(decode, rest))
        return dict(zip(items[::2], items[1::2], strict=True))
    if kind == "partial":
        made, args, keywords = map(decode, rest)
        return partial(made, *args, **keywords)
    if kind == "hashlib":
        return {"sha256": hashlib.sha256}[rest[0]]
    if kind == "named":
        return _found(*rest)
    raise TypeError(f"{kind!r} is not plain data")


def _name(value: object) -> tuple[str, str]:
    module, name = getattr(value, "__module__", "") or "", getattr(value, "__qualname__", "")
    if not module.startswith("ckpt_tools.") or not name.isidentifier():
        raise TypeError(f"{value!r} is not for another process")
    return module, name


@lru_cache(1024)
def _found(module: str, name: str) -> Any:
    if not module.startswith("ckpt_tools.") or not name.isidentifier():
        raise TypeError(f"{module}.{name} is none of ours")
    return getattr(import_module(module), name)
