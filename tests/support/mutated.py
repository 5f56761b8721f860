"""Every JSON that differs from a given one in a single place: gone, of another type, out of bounds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

INSTEAD: tuple[Any, ...] = (
    None, True, -1, 2**64, 10**400, 1e300, "", "x", "/etc/passwd", "a\0b", "\ud800", "\x1b[2J", [], [None], [[]], {}, {"x": {}},
    {"": None},
)  # fmt: skip
"""What is put in the place of any value."""


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """The way to each node below a value; () is the value itself."""
    yield ()
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from ((key, *way) for way in places(item))


def mutants(value: Any, instead: tuple[Any, ...] = INSTEAD) -> Iterator[tuple[str, Any]]:
    """(what was done, the JSON) for each node and each thing that can be done to it; the JSON is changed
    again for the next one.
    """
    for way in list(places(value)):
        if not way:
            yield from ((f"all is {_short(other)}", other) for other in instead)
            continue
        node = value
        for key in way[:-1]:
            node = node[key]
        kept = copy.copy(node)
        for other in instead:
            node[way[-1]] = other
            yield f"{way} is {_short(other)}", value
        del node[way[-1]]
        yield f"{way} gone", value
        if isinstance(node, list):
            node[:] = kept
        else:
            node.clear()
            node.update(kept)


def _short(value: Any) -> str:
    return repr(hex(value) if isinstance(value, int) else value)[:20]
