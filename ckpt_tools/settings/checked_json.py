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
"""What can be a word of a command or the value of a variable: without NUL, and the system can encode it."""
Path = Annotated[str, Meta(pattern=rf"\A(?:/|[A-Za-z][A-Za-z0-9+.-]*://){_ENDS}")]
"""An absolute path, or a URL."""
Whole = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Number = Annotated[float, Meta(gt=-1e18, lt=1e18)]
"""A finite number of seconds."""
DEPTH = 32
"""Levels of nesting, at most: of what ckpt writes a decision has the most, seven."""
MOST = 256 << 20
"""Bytes of one file, at most: the decision for 100,000 ranks has 50 MB."""


class NoJson(ValueError):
    """The bytes are no JSON: cut off, or another kind of file."""


class Invalid(ValueError):
    """It is JSON, and says what cannot be."""


def parsed(data: bytes) -> object:
    """The JSON in some bytes; names that are no UTF-8 come back as the system gives them. Raises NoJson."""
    if len(data) > MOST:
        raise NoJson(f"it is larger than {MOST >> 20} MiB")
    try:
        value: object = json.loads(data.decode("utf-8", "surrogateescape"), parse_constant=_no_number)
        return value
    except RecursionError:
        raise NoJson("it is nested too deeply") from None
    except ValueError as e:
        raise NoJson(str(e)) from e


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def shallow(body: object) -> None:
    """Raises Invalid for a body that could not be printed again."""
    level = [body]
    for _ in range(DEPTH):
        level = [value for node in level for value in _inside(node)]
        if any(isinstance(value, float) and not math.isfinite(value) for value in level):
            raise Invalid("a number in it is not finite")
        if not level:
            return
    raise Invalid(f"it is nested deeper than {DEPTH} levels")


def nodes(body: object) -> Iterator[object]:
    left = [body]
    while left:
        yield (node := left.pop())
        left.extend(_inside(node))


def _inside(node: object) -> Sequence[object]:
    return list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else ()


def checked(value: object, kind: type[T]) -> T:
    """Return a value of JSON as one of that type. Raises Invalid where it is none."""
    try:
        return convert(value, kind, strict=True)
    except (ValidationError, UnicodeEncodeError) as e:  # the second of names that no field has
        raise Invalid(str(e)) from e
