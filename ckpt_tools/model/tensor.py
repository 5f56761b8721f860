"""A tensor as its file describes it, and the statistics of its numbers."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class Box(NamedTuple):
    """A piece of a larger tensor: ``stop`` is the first index behind it in each dimension."""

    start: tuple[int, ...]
    stop: tuple[int, ...]


class Tensor(Struct, frozen=True):
    """One tensor as its file describes it: ``shape`` in elements, ``offset`` and ``nbytes`` in bytes of the
    file.

    ``storage`` names the record that holds the bytes; ``offset`` is None when the file does not place them
    (meta tensors).
    ``pieces`` are the (offset, nbytes) of the bytes where they are not one run from ``offset`` on; one of no
    bytes says that other data lies between them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int | None = None
    storage: str = ""
    pieces: tuple[tuple[int, int], ...] = ()


class Stats(Struct, frozen=True):
    """One tensor's numbers. ``count`` is how many were looked at: bytes that an earlier tensor shares count
    there, a complex number is two.

    ``min`` and ``max`` are over the finite ones, None when there are none. ``absurd`` is 0 where it was not
    decided (fewer than 64 numbers). ``magnitudes`` are (power of two, how many) of a sample of those that are
    neither zero, denormal nor special; with (p, n) begin those before the next p.
    """

    name: str
    dtype: str
    count: int
    nan: int
    inf: int
    denormal: int
    absurd: int
    zeros: int
    min: float | None
    max: float | None
    magnitudes: tuple[tuple[int, int], ...] = ()
