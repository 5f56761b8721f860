"""JSON that others may have written: every value of its type and within its bounds, or an error that says
where it is not.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

from ckpt_tools.storage.urls import is_url

Check = Callable[[object, str], None]
"""Called with a value and where it stands; raises Invalid."""

DEPTH = 32
"""Levels of nesting, at most: of what ckpt writes a decision has the most, seven."""
MOST = 256 << 20
"""Bytes of one file, at most: the decision for 100,000 ranks has 50 MB."""
_WHOLE = 1 << 63


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
    raise ValueError(f"{text} is no number of JSON")


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
    """A value and all that is in it."""
    left = [body]
    while left:
        yield (node := left.pop())
        left.extend(_inside(node))


def _inside(node: object) -> Sequence[object]:
    return list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else ()


def wrong(at: str, wanted: str) -> NoReturn:
    """Say what a value should have been."""
    raise Invalid(f"{at.lstrip('.') or 'the whole'} must be {wanted}")


def text(value: object, at: str) -> None:
    """What can be a word of a command or the value of a variable."""
    if not isinstance(value, str) or "\0" in value:
        wrong(at, "a text without NUL")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        wrong(at, "a text that the system can encode")


def path(value: object, at: str) -> None:
    """An absolute path of a file, or its URL in a store."""
    text(value, at)
    if not str(value).startswith("/") and not is_url(str(value)):
        wrong(at, "an absolute path")


def whole(value: object, at: str) -> None:
    """An integer of 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not -_WHOLE <= value < _WHOLE:
        wrong(at, "an integer of 64 bits")


def count(value: object, at: str) -> None:
    """An integer of 64 bits that is not negative."""
    whole(value, at)
    if isinstance(value, int) and value < 0:
        wrong(at, "0 or more")


def truth(value: object, at: str) -> None:
    """True or false."""
    if not isinstance(value, bool):
        wrong(at, "true or false")


def number(value: object, at: str) -> None:
    """A finite number of seconds."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -1e18 < value < 1e18:
        wrong(at, "a number of seconds")


def nothing_or(check: Check) -> Check:
    """Null, or what passes the check."""

    def inner(value: object, at: str) -> None:
        if value is not None:
            check(value, at)

    return inner


def listed(check: Check) -> Check:
    """A list of what passes the check."""

    def inner(value: object, at: str) -> None:
        if not isinstance(value, list):
            wrong(at, "a list")
        for i, item in enumerate(value):
            check(item, f"{at}[{i}]")

    return inner


def named(key: Check, check: Check) -> Check:
    """An object whose names and values pass the checks."""

    def inner(value: object, at: str) -> None:
        if not isinstance(value, dict):
            wrong(at, "an object")
        for name, item in value.items():
            key(name, at)
            check(item, f"{at}.{name}")

    return inner


def fields(needed: Mapping[str, Check], optional: Mapping[str, Check]) -> Check:
    """An object that has the needed fields, and may have the optional ones."""

    def inner(value: object, at: str) -> None:
        if not isinstance(value, dict):
            wrong(at, "an object")
        for name, check in needed.items():
            if name not in value:
                wrong(f"{at}.{name}", "there")
            check(value[name], f"{at}.{name}")
        for name, check in optional.items():
            if name in value:
                check(value[name], f"{at}.{name}")

    return inner
