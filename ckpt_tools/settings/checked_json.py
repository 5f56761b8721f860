"""JSON that others may have written: each value of its type and within bounds, or an error says where not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, NoReturn, TypeVar

from msgspec import Meta, ValidationError, convert

T = TypeVar("T")
_ENDS = r"[^\0\ud800-\udc7f\udd00-\udfff]*\Z"
Text = Annotated[str, Meta(pattern=rf"\A{_ENDS}")]
"""A text that can be a word of a command or the value of a variable: it has no NUL and can be encoded."""
Path = Annotated[str, Meta(pattern=rf"\A(?:/|[A-Za-z][A-Za-z0-9+.-]*://){_ENDS}")]
"""An absolute path, or a URL."""
Whole = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Number = Annotated[float, Meta(gt=-1e18, lt=1e18)]
"""A finite number of seconds."""
DEPTH = 32
"""The most levels of nesting in a JSON file. Of the files that ckpt writes a decision has the most, seven."""
MOST = 256 << 20
"""The most bytes of a JSON file: the decision for 100,000 ranks has 50 MB."""


class NoJson(ValueError):
    """One error: the bytes are no JSON, because the file is cut off or of another format."""


class Invalid(ValueError):
    """One error: the bytes are JSON, but a value has the wrong type or is out of range."""


def parse(data: bytes) -> object:
    """Return the value of JSON bytes; bytes that are no UTF-8 come as surrogates. Raise NoJson."""
    if len(data) > MOST:
        raise NoJson(f"it is larger than {MOST >> 20} MiB")
    try:
        return json.loads(data.decode("utf-8", "surrogateescape"), parse_constant=_reject_constant)
    except RecursionError:
        raise NoJson("it is nested too deeply") from None
    except ValueError as e:
        raise NoJson(str(e)) from e


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def require_shallow(body: object) -> None:
    """Raise Invalid if a body cannot be printed again: nested deeper than DEPTH, or with NaN or infinity."""
    level = [body]
    for _ in range(DEPTH):
        level = [value for node in level for value in _list_children(node)]
        if any(isinstance(value, float) and not math.isfinite(value) for value in level):
            raise Invalid("a number in it is not finite")
        if not level:
            return
    raise Invalid(f"it is nested deeper than {DEPTH} levels")


def nodes(body: object) -> Iterator[object]:
    """Yield a JSON value and each value within it, at every depth."""
    left = [body]
    while left:
        yield (node := left.pop())
        left.extend(_list_children(node))


def _list_children(node: object) -> Sequence[object]:
    """Return the values of an object or a list of JSON; () for any other value."""
    return list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else ()


def decode(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Return a JSON value as ``kind``; unless ``strict`` a text may be a number. Raise Invalid."""
    try:
        return convert(value, kind, strict=strict)
    except (ValidationError, UnicodeEncodeError) as e:  # UnicodeEncodeError: a key with surrogates
        raise Invalid(str(e)) from e
